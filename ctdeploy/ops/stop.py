"""stop: TERM, grace, KILL, for the whole process tree of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ctdeploy.errors import TimedOut
from ctdeploy.inventory.values import App, Container
from ctdeploy.ops.connection import connect, who
from ctdeploy.ops.reporter import Reporter
from ctdeploy.remote.payloads.runs import ENDED
from ctdeploy.remote.session import Session

# A run that is done earlier ends earlier; a checkpoint of a large drafter takes its time to write.
GRACE_S = 120.0
KILL_S = 20.0


@dataclass(frozen=True)
class StopResult:
    """How the run ended. `was`: its state before. `killed`: commands that outlived the grace. `left`: still alive."""

    app: str
    container: str
    run: str
    was: str
    state: str
    exit_code: int | None
    signal: str | None
    killed: tuple[str, ...]
    left: tuple[dict[str, Any], ...]
    seconds: float


def stop(
    container: Container, app: App, reporter: Reporter, run: str | None = None, grace_s: float = GRACE_S
) -> StopResult:
    """Ask the run's supervisor to end it and wait until all of it is gone. Raises MissingError, TimedOut."""
    began = time.monotonic()
    with connect(container, reporter) as link, Session(link.transport, link.place, app.name, who()) as session:
        session.hello()
        before = session.call("stop", run=run, grace_s=grace_s, answer_s=grace_s + KILL_S + 30)["run"]
        name = before["run"]
        if before["state"] not in ENDED:
            reporter.step(f"stopping {name}: SIGTERM, up to {grace_s:.0f} s, then SIGKILL")
        # What the run's own process leaves behind gets a grace of its own.
        deadline = time.monotonic() + 2 * grace_s + KILL_S
        while True:
            answer = session.call("wait", run=name, wait_s=2.0)
            if answer["run"]["state"] in ENDED:
                break
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{name} is still {answer['run']['state']} after SIGKILL",
                    layer="container",
                    next=f"ctdeploy status {name}",
                )
    ended = answer["run"]
    return StopResult(
        app=app.name,
        container=container.label,
        run=name,
        was=before["state"],
        state=ended["state"],
        exit_code=ended.get("exit_code"),
        signal=ended.get("signal"),
        killed=tuple(ended.get("left", ())),
        left=tuple(answer["left"]),
        seconds=round(time.monotonic() - began, 3),
    )
