"""ctdeploy lab demo: the whole story on this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from ctdeploy.cli.common import command
from ctdeploy.cli.environment import Environment
from ctdeploy.errors import HostError

if TYPE_CHECKING:
    from ctdeploy.ops.demo import DemoResult


def register(app: typer.Typer) -> None:
    command(app, "demo")(demo)


def demo(env: Environment) -> None:
    """Push the bundled trainer into the lab, verify it, train a drafter there, and show what it learned."""
    from ctdeploy.inventory.find import built_in
    from ctdeploy.inventory.inventory import Inventory
    from ctdeploy.inventory.parse import read
    from ctdeploy.lab.preflight import check
    from ctdeploy.ops.demo import demo as story

    for lack in check():
        raise HostError(lack.message, next=lack.mend)
    env.step(
        "demo: a DFlash drafter learns 8 prompts by heart in container 200 of the lab (about 3 minutes on 2 cores the"
        " first time, less afterwards)"
    )
    located = built_in()
    try:
        with env.deadline():
            result = story(Inventory(read(located.path), located), env, env.log)
    except KeyboardInterrupt:
        env.rest()
        env.hint("detached; the run goes on in the lab: ctdeploy logs --ct 200@lab -f, ctdeploy stop --ct 200@lab")
        raise
    env.result(result, lambda: _render(env, result))


def _render(env: Environment, result: DemoResult) -> None:
    training: dict[str, Any] = result.training
    memorised, heldout = training["memorised"], training["heldout"]
    env.line("")
    env.line(f"release      {result.verify.release}: {result.verify.files} files, each measured in the container")
    for found in result.verify.markers:
        env.line(f"marker       {found.path}:{found.line}: {found.text}")
    for line in result.run.markers_at_start:
        env.line(f"in the log   {re.sub(r'^.*?(?=drafter)', '', line)}")
    env.line(
        f"training     {training['steps']} steps, loss {training['first_loss']:.3f} -> {training['last_loss']:.3f}"
    )
    env.line(
        f"acceptance   {memorised['tau_before']:.2f} -> {memorised['tau_after']:.2f} tokens per verification on the"
        f" {memorised['prompts']} prompts that it memorised (that is what this demo does; a rise of 1.0 is checked)"
    )
    env.line(
        f"             {heldout['tau_before']:.2f} -> {heldout['tau_after']:.2f} on {heldout['prompts']} held-out"
        " prompts (shown, not checked)"
    )
    same = "token for token the same" if training["lossless"] else "NOT the same"
    env.line(f"decoding     speculative and plain greedy decoding gave {same} text")
    env.line(f"checkpoint   {result.checkpoint}")
    env.line(f"             in container 200: ctdeploy lab sh -- pct exec 200 -- ls {result.checkpoint}")
    env.line(f"time         {result.seconds:.0f} s, of which the run {training['seconds']:.0f} s")
    env.hint("the lab stays up: ctdeploy status, ctdeploy logs; ctdeploy lab down ends it")
