"""ctdeploy status: what is active and what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ctdeploy.cli.common import AppOption, CtOption, command
from ctdeploy.cli.environment import Environment, ago, at

if TYPE_CHECKING:
    from ctdeploy.ops.status import StatusResult


def register(app: typer.Typer) -> None:
    command(app, "status", "ps")(status)


def status(
    env: Environment,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Only this run.")] = None,
    ct: CtOption = None,
    app: AppOption = None,
) -> None:
    """The active release and the newest runs, by their own files in the container."""
    from ctdeploy.ops.status import status as look

    what, container = env.app(app), env.container(ct)
    with env.deadline():
        result = look(container, what, env, run)
    env.result(result, lambda: _render(env, result))


def _render(env: Environment, result: StatusResult) -> None:
    from rich.table import Table

    from ctdeploy.ops.states import short

    active = "no release is active"
    if result.release and result.pushed_at:
        active = f"release {result.release}, pushed {ago(result.now - result.pushed_at)} ago"
    env.line(f"{result.app}@{result.container}: {active}")
    if result.lock:
        since = ago(result.now - result.lock["since"])
        env.line(f"locked by {result.lock['who']} for {since}: {result.lock['why']}")
    if not result.runs:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("RUN", "STATE", "RELEASE", "STARTED", "TIME", "STEP", "LOSS"):
        table.add_column(name, no_wrap=True)
    for each in result.runs:
        metrics = each.get("metrics") or {}
        started = each.get("started")
        ended = each.get("ended") or result.now
        table.add_row(
            each["run"],
            short(each),
            each.get("release", "?"),
            at(started) if started else "-",
            ago(ended - started) if started else "-",
            str(metrics.get("step", "-")),
            f"{metrics['loss']:.4f}" if isinstance(metrics.get("loss"), float) else "-",
        )
    env.out.print(table)
