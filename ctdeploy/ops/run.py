"""run: verify the active release, launch it detached, and follow it until it is ready or dead."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ctdeploy.errors import RunFailed, TimedOut, VerifyError
from ctdeploy.inventory.values import App, Container
from ctdeploy.ops.connection import Link, connect, who
from ctdeploy.ops.logs import follow
from ctdeploy.ops.measure import launch_as, measure
from ctdeploy.ops.readiness import LIVED_S, Watch
from ctdeploy.ops.reporter import Reporter
from ctdeploy.ops.states import describe_end
from ctdeploy.ops.stop import GRACE_S
from ctdeploy.remote.payloads.runs import ENDED
from ctdeploy.remote.session import Session

READY_S = 900.0


@dataclass(frozen=True)
class RunOptions:
    """What the command line may ask of a run."""

    args: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    detach: bool = False
    follow: bool = False
    ready_s: float = READY_S
    lock_wait_s: float = 0.0


@dataclass(frozen=True)
class RunResult:
    """A launched run. `ready`: it passed its start markers and its ready pattern; None where nobody waited."""

    app: str
    container: str
    run: str
    release: str
    state: str
    ready: bool | None
    markers_at_start: tuple[str, ...]
    ready_line: str | None
    folder: str
    seconds: float
    exit_code: int | None = None


def run(
    container: Container,
    app: App,
    options: RunOptions,
    reporter: Reporter,
    show: Callable[[bytes], None] = lambda _: None,
    on_launch: Callable[[str | None], None] = lambda _: None,
) -> RunResult:
    """Launch. `show` gets the log's bytes while the run is followed, `on_launch` None when the launch is
    asked for, and the run's id once it is there.

    Raises VerifyError when the release is not what was pushed or an import of it cannot be found, RunFailed when the
    run died before it was ready, TimedOut (and the run lives on) when it was not ready in time.
    """
    began = time.monotonic()
    with connect(container, reporter) as link:
        launched = _launch(link, container, app, options, reporter, on_launch)
    name = launched["run"]
    on_launch(name)
    reporter.step(f"{name} of {app.name} runs release {launched['release']} in {container.label}")
    watch = Watch(app)
    if options.detach:
        if launched["state"] == "failed":
            raise RunFailed(f"{name} of {app.name} {describe_end(launched)}", next=_next(launched))
        return _result(container, app, launched, watch, None, began)
    try:
        described = _follow(container, app, name, options, watch, reporter, show)
    except TimedOut as error:
        raise TimedOut(
            f"{name} of {app.name} was not ready within {options.ready_s:.0f} s ({watch.lacks()}); it goes on",
            next=f"ctdeploy logs {name} -f, or ctdeploy stop {name}",
        ) from error
    return _result(container, app, described, watch, watch.ready, began)


def _launch(
    link: Link,
    container: Container,
    app: App,
    options: RunOptions,
    reporter: Reporter,
    on_launch: Callable[[str | None], None],
) -> dict[str, Any]:
    reporter.step(f"verifying {app.name} in {container.label}")
    launch = launch_as(container, app, options.env)
    with Session(link.transport, link.place, app.name, who()) as session:
        hello = session.hello()
        session.call("lock", why=f"run {app.name}", wait_s=options.lock_wait_s, answer_s=options.lock_wait_s + 30)
        measured = measure(session, hello, markers=app.markers, forbidden=app.forbidden, run=launch)
        if measured.imports_missing:
            raise VerifyError(
                f"{container.python} in {container.label} cannot import {', '.join(measured.imports_missing)}",
                next=f"install it there: {container.python} -m pip install {' '.join(measured.imports_missing)}",
            )
        release = measured.release
        assert release is not None
        on_launch(None)
        return session.call(
            "launch",
            release={key: release[key] for key in ("name", "number", "path")},
            entry=release["manifest"]["entry"],
            args=list(app.args if options.args is None else options.args),
            env=dict(launch.env),
            user=launch.user,
            grace_s=GRACE_S,
        )


def _follow(
    container: Container,
    app: App,
    name: str,
    options: RunOptions,
    watch: Watch,
    reporter: Reporter,
    show: Callable[[bytes], None],
) -> dict[str, Any]:
    began = time.monotonic()
    described: dict[str, Any] = {}
    for chunk in follow(container, app, name, reporter):
        described = chunk.run
        watch.feed(chunk.data)
        if chunk.data:
            show(chunk.data)
        lived = time.monotonic() - began
        ready = watch.ready and (not watch.waits_for_time or lived >= LIVED_S)
        if ready and not options.follow:
            return described
        if not ready and lived > options.ready_s:
            raise TimedOut("not ready")
    if described["state"] == "done" or (described["state"] == "stopped" and options.follow):
        if not watch.ready:
            raise RunFailed(
                f"{name} of {app.name} {describe_end(described)}, but was never ready: {watch.lacks()}",
                next=f"ctdeploy logs {name}",
                remote="\n".join(watch.last),
            )
        return described
    raise RunFailed(
        f"{name} of {app.name} {describe_end(described)}",
        next=_next(described),
        remote="\n".join(watch.last),
    )


def _next(described: dict[str, Any]) -> str | None:
    """The log says more, unless nothing ever wrote to it."""
    return None if described.get("reason") else f"ctdeploy logs {described['run']}"


def _result(
    container: Container, app: App, described: dict[str, Any], watch: Watch, ready: bool | None, began: float
) -> RunResult:
    return RunResult(
        app=app.name,
        container=container.label,
        run=described["run"],
        release=described["release"],
        state=described["state"],
        ready=ready,
        markers_at_start=tuple(line for lines in watch.seen.values() for line in lines),
        ready_line=watch.ready_line,
        folder=described["path"],
        seconds=round(time.monotonic() - began, 3),
        exit_code=described.get("exit_code") if described["state"] in ENDED else None,
    )
