"""ctdeploy logs: a run's log, byte for byte."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated

import typer

from ctdeploy.cli.common import AppOption, CtOption, command
from ctdeploy.cli.environment import Environment

if TYPE_CHECKING:
    from ctdeploy.ops.logs import LogChunk


def register(app: typer.Typer) -> None:
    command(app, "logs")(logs)


def logs(
    env: Environment,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="r1, r2, …; default: the newest.")] = None,
    ct: CtOption = None,
    app: AppOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the run ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only the last so many lines (default: all).")
    ] = None,
) -> None:
    """Print a run's log; -f follows it over broken connections without losing or repeating a byte."""
    from ctdeploy.ops import logs as ops
    from ctdeploy.ops.states import describe_end

    what, container = env.app(app), env.container(ct)
    last: ops.LogChunk | None = None
    try:
        with env.deadline():
            offset = 0
            if lines is not None or not follow:
                for chunk in ops.tail(container, what, run, env, lines):
                    last = chunk
                    _show(env, chunk)
                if last is not None:
                    run, offset = last.run["run"], last.offset + len(last.data)
            if follow:
                for chunk in ops.follow(container, what, run, env, offset):
                    last = chunk
                    _show(env, chunk)
    except KeyboardInterrupt:
        if last is not None and last.run["state"] == "running":
            env.hint(f"detached; the run goes on: ctdeploy stop {last.run['run']}")
        raise
    if follow and last is not None:
        env.hint(f"{last.run['run']} {describe_end(last.run)}")


def _show(env: Environment, chunk: LogChunk) -> None:
    if chunk.gap:
        env.warn(f"the log was cut: {chunk.gap} bytes are gone")
    if not chunk.data:
        return
    if env.options.json:
        data = base64.b64encode(chunk.data).decode("ascii")
        env.document({"run": chunk.run["run"], "offset": chunk.offset, "data": data})
    else:
        env.raw(chunk.data)
