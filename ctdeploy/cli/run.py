"""ctdeploy run: launch the active release and follow it until it is ready or dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ctdeploy.cli.common import AppOption, CtOption, command
from ctdeploy.cli.environment import Environment
from ctdeploy.errors import UsageError

if TYPE_CHECKING:
    from ctdeploy.ops.run import RunResult


def register(app: typer.Typer) -> None:
    command(app, "run")(run)


def run(
    env: Environment,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Instead of the app's arguments.")
    ] = None,
    ct: CtOption = None,
    app: AppOption = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait until it is ready.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log to the end.")] = False,
    variable: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="For the run.")] = None,
) -> None:
    """Verify the active release, launch it detached, wait until it is ready. Ctrl-C only detaches."""
    from ctdeploy.ops import run as ops

    if detach and follow:
        raise UsageError("--detach and --follow exclude each other")
    options = ops.RunOptions(
        args=tuple(args) if args else None,
        env=tuple(_pair(each) for each in variable or ()),
        detach=detach,
        follow=follow,
        ready_s=env.options.timeout if env.options.timeout is not None else ops.READY_S,
        lock_wait_s=env.options.lock_wait,
    )
    what, container = env.app(app), env.container(ct)
    # While it is followed the log is the result; while it is only waited for, it is progress.
    show = env.raw if follow and not env.options.json else env.progress
    launched: list[str | None] = []
    try:
        result = ops.run(container, what, options, env, show, launched.append)
    except KeyboardInterrupt:
        env.rest()
        name = launched[-1] if launched else None
        if name:
            env.hint(f"detached; the run goes on: ctdeploy logs {name} -f, ctdeploy stop {name}")
        elif launched:
            env.hint("interrupted while the launch was under way, so a run may be there: ctdeploy status")
        raise
    env.result(result, lambda: _render(env, result))


def _render(env: Environment, result: RunResult) -> None:
    for line in result.markers_at_start:
        env.line(line)
    if result.ready_line:
        env.line(result.ready_line)
    state = "ready" if result.ready and result.state == "running" else result.state
    env.line(
        f"{result.app}@{result.container}: {result.run} is {state}, release {result.release}, {result.seconds:.1f} s"
        f" after the launch; folder {result.folder}"
    )
    if result.state in ("running", "starting"):
        env.hint(f"next: ctdeploy logs {result.run} -f, ctdeploy status, ctdeploy stop {result.run}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--env {name}: expected NAME=VALUE", next="ctdeploy run --env SEED=1")
    return name, value
