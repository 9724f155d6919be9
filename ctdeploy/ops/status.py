"""status: what is active, what runs, who holds the lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctdeploy.inventory.values import App, Container
from ctdeploy.ops.connection import connect, who
from ctdeploy.ops.reporter import Reporter
from ctdeploy.remote.session import Session


@dataclass(frozen=True)
class StatusResult:
    """One app in one container. `runs`: oldest first, as payloads/runs.py describes them."""

    app: str
    container: str
    release: str | None
    pushed_at: float | None
    runs: tuple[dict[str, Any], ...]
    lock: dict[str, Any] | None
    now: float


def status(container: Container, app: App, reporter: Reporter, run: str | None = None) -> StatusResult:
    """Look. Raises MissingError for a run that is not there."""
    with connect(container, reporter) as link, Session(link.transport, link.place, app.name, who()) as session:
        session.hello()
        answer = session.call("status", run=run)
    active = answer["active"]
    return StatusResult(
        app=app.name,
        container=container.label,
        release=active["name"] if active else None,
        pushed_at=active["manifest"].get("at") if active else None,
        runs=tuple(answer["runs"]),
        lock=answer["lock"],
        now=answer["time"],
    )
