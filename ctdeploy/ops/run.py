"""run: verify the active release, launch it detached, and follow it until it is ready or dead."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ctdeploy.errors import RunFailed, TimedOut, VerifyError
from ctdeploy.inventory.values import App, Container
from ctdeploy.ops import checks
from ctdeploy.ops.connection import Link, connect, who
from ctdeploy.ops.logs import ENDED, follow
from ctdeploy.ops.reporter import Reporter
from ctdeploy.ops.states import describe_end
from ctdeploy.remote.session import Session

LIVED_S = 10.0
VERIFY_S = 300.0
READY_S = 900.0
GRACE_S = 30.0
SHOWN_AT_DEATH = 15


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
) -> RunResult:
    """Launch. `show` gets the log's bytes while the run is followed.

    Raises VerifyError when the release is not what was pushed or an import of it cannot be found, RunFailed when the
    run died before it was ready, TimedOut (and the run lives on) when it was not ready in time.
    """
    began = time.monotonic()
    with connect(container, reporter) as link:
        launched = _launch(link, container, app, options, reporter)
    name = launched["run"]
    reporter.step(f"{name} of {app.name} runs release {launched['release']} in {container.label}")
    watch = _Watch(app)
    if options.detach:
        return _result(container, app, launched, watch, None, began)
    try:
        described = _follow(container, app, name, options, watch, reporter, show)
    except TimedOut as error:
        raise TimedOut(
            f"{name} of {app.name} was not ready within {options.ready_s:.0f} s ({watch.lacks()}); it goes on",
            next=f"ctdeploy logs {name} -f, or ctdeploy stop {name}",
        ) from error
    return _result(container, app, described, watch, watch.ready, began)


def _launch(link: Link, container: Container, app: App, options: RunOptions, reporter: Reporter) -> dict[str, Any]:
    reporter.step(f"verifying {app.name} in {container.label}")
    with Session(link.transport, link.place, app.name, who()) as session:
        hello = session.hello()
        session.call("lock", why=f"run {app.name}", wait_s=options.lock_wait_s, answer_s=options.lock_wait_s + 30)
        answer = session.call(
            "verify",
            markers=list(app.markers),
            forbidden=[pattern._asdict() for pattern in app.forbidden],
            check_imports=True,
            answer_s=VERIFY_S,
        )
        checks.no_drift(answer["drift"], next="ctdeploy push --force")
        checks.no_compile_errors(answer["errors"], hello)
        checks.markers_as_wanted(answer["markers"], app.markers)
        if answer["imports_missing"]:
            raise VerifyError(
                f"{container.python} in {container.label} cannot import {', '.join(answer['imports_missing'])}",
                next=f"install it there: {container.python} -m pip install {' '.join(answer['imports_missing'])}",
            )
        release = answer["release"]
        return session.call(
            "launch",
            release={key: release[key] for key in ("name", "number", "path")},
            entry=release["manifest"]["entry"],
            args=list(app.args if options.args is None else options.args),
            env=_environment(container, app, options),
            user=container.run_as,
            grace_s=GRACE_S,
        )


def _environment(container: Container, app: App, options: RunOptions) -> dict[str, str]:
    """Nothing of the host; the launch interpreter's folder first on PATH, so its tools are the ones found."""
    folder = container.python.rsplit("/", 1)[0]
    return {
        "PATH": f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        **container.env,
        **app.env,
        **dict(options.env),
    }


class _Watch:
    """Looks for the start markers and the ready pattern in the lines of the log."""

    def __init__(self, app: App) -> None:
        self._wanted = [(marker, re.compile(marker.pattern)) for marker in app.markers_at_start]
        self._ready = re.compile(app.ready) if app.ready else None
        self._partial = b""
        self.seen: dict[str, list[str]] = {marker.pattern: [] for marker, _ in self._wanted}
        self.ready_line: str | None = None
        self.last: list[str] = []

    def feed(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
            self.last = [*self.last[-(SHOWN_AT_DEATH - 1) :], line]
            for marker, pattern in self._wanted:
                if pattern.search(line):
                    self.seen[marker.pattern].append(line.strip())
            if self._ready and self.ready_line is None and self._ready.search(line):
                self.ready_line = line.strip()

    @property
    def markers_seen(self) -> bool:
        return all(len(self.seen[marker.pattern]) >= marker.count for marker, _ in self._wanted)

    @property
    def ready(self) -> bool:
        return self.markers_seen and (self._ready is None or self.ready_line is not None)

    @property
    def waits_for_time(self) -> bool:
        return self._ready is None

    def lacks(self) -> str:
        for marker, _ in self._wanted:
            if len(self.seen[marker.pattern]) < marker.count:
                return f"saw {len(self.seen[marker.pattern])} of {marker.count} lines like {marker.pattern!r}"
        return f"no line like {self._ready.pattern!r}" if self._ready and not self.ready_line else "nothing is lacking"


def _follow(
    container: Container,
    app: App,
    name: str,
    options: RunOptions,
    watch: _Watch,
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
        if not watch.markers_seen:
            raise RunFailed(f"{name} of {app.name} ended well but {watch.lacks()}", next=f"ctdeploy logs {name}")
        return described
    raise RunFailed(
        f"{name} of {app.name} {describe_end(described)}",
        next=f"ctdeploy logs {name}",
        remote="\n".join(watch.last),
    )


def _result(
    container: Container, app: App, described: dict[str, Any], watch: _Watch, ready: bool | None, began: float
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
