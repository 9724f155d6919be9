"""The whole story in the lab: push, verify, run, follow to the end, and look at what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ctdeploy.errors import RunFailed
from ctdeploy.inventory.inventory import Inventory
from ctdeploy.inventory.values import App, Container
from ctdeploy.ops import push as pushing
from ctdeploy.ops import run as running
from ctdeploy.ops.connection import connect, who
from ctdeploy.ops.reporter import Reporter
from ctdeploy.ops.verify import VerifyResult, verify
from ctdeploy.remote.session import Session

APP = "dflash_train"
RUN_S = 1500.0
WANTED_RISE = 1.0


@dataclass(frozen=True)
class DemoResult:
    """What happened. `training`: the trainer's own result.json. `rise`: acceptance length after minus before."""

    push: pushing.PushResult
    verify: VerifyResult
    run: running.RunResult
    training: dict[str, Any]
    rise: float
    checkpoint: str
    seconds: float


def demo(inventory: Inventory, reporter: Reporter, show: Callable[[bytes], None]) -> DemoResult:
    """Train the bundled drafter on 8 prompts in the lab's container 200; `show` gets the run's log as it grows.

    Raises RunFailed when the acceptance length on the memorised prompts rose by less than 1.0: an untrained drafter
    stays at about 1.
    """
    began = time.monotonic()
    container, app = inventory.container("200@lab"), inventory.app(APP)
    pushed = pushing.push(container, app, pushing.PushOptions(start=True), reporter)
    verified = verify(container, app, reporter)
    ran = running.run(container, app, running.RunOptions(follow=True, ready_s=RUN_S), reporter, show)
    training = _result_of(container, app, ran.run, reporter)
    memorised = training["memorised"]
    result = DemoResult(
        push=pushed,
        verify=verified,
        run=ran,
        training=training,
        rise=memorised["tau_after"] - memorised["tau_before"],
        checkpoint=training["checkpoint"],
        seconds=round(time.monotonic() - began, 1),
    )
    if result.rise < WANTED_RISE:
        raise RunFailed(
            f"the acceptance length on the memorised prompts went from {memorised['tau_before']:.2f} to"
            f" {memorised['tau_after']:.2f}; a trained drafter gains at least {WANTED_RISE}",
            next=f"ctdeploy logs {ran.run}",
        )
    return result


def _result_of(container: Container, app: App, run: str, reporter: Reporter) -> dict[str, Any]:
    with connect(container, reporter) as link, Session(link.transport, link.place, app.name, who()) as session:
        session.hello()
        _, data = session.call_with_data("run_file", run=run, path="result.json", limit=1 << 20)
    result: dict[str, Any] = json.loads(data)
    return result
