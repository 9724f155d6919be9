"""ctdeploy stop: end a run and everything it started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ctdeploy.cli.common import AppOption, CtOption, command
from ctdeploy.cli.environment import Environment

if TYPE_CHECKING:
    from ctdeploy.ops.stop import StopResult


def register(app: typer.Typer) -> None:
    command(app, "stop")(stop)


def stop(
    env: Environment,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Default: the newest.")] = None,
    ct: CtOption = None,
    app: AppOption = None,
    grace: Annotated[
        float | None,
        typer.Option("--grace", metavar="SECONDS", min=0, help="Between SIGTERM and SIGKILL (default: 120)."),
    ] = None,
) -> None:
    """SIGTERM, grace, SIGKILL, for the whole process tree; the bundled trainer saves a checkpoint on SIGTERM."""
    from ctdeploy.ops.stop import GRACE_S
    from ctdeploy.ops.stop import stop as end

    what, container = env.app(app), env.container(ct)
    with env.deadline():
        result = end(container, what, env, run, GRACE_S if grace is None else grace)
    env.result(result, lambda: _render(env, result))
    if result.left:
        raise typer.Exit(9)


def _render(env: Environment, result: StopResult) -> None:
    how = f"exit code {result.exit_code}" if result.exit_code is not None else result.signal or "no exit code"
    if result.was == result.state:
        env.line(f"{result.app}@{result.container}: {result.run} had ended before ({result.state}, {how})")
    else:
        env.line(f"{result.app}@{result.container}: {result.run} stopped in {result.seconds:.1f} s ({how})")
    for killed in result.killed:
        env.line(f"outlived the grace and was killed: {killed}")
    for left in result.left:
        env.line(f"still there: pid {left['pid']}: {left['command']}")
    if not result.left:
        env.line("nothing of it is left in the container")
