"""logs: a run's log by byte offset, over as many connections as it takes, nothing lost and nothing twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ctdeploy.errors import NetworkError
from ctdeploy.inventory.values import App, Container
from ctdeploy.ops.connection import connect, who
from ctdeploy.ops.reporter import Reporter
from ctdeploy.remote.payloads.runs import ENDED
from ctdeploy.remote.session import Session, SessionKilled

POLL_S = 5.0
RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class LogChunk:
    """Bytes of the log at `offset`, and the run as it was then. `gap`: bytes that are gone (the log was cut)."""

    offset: int
    data: bytes
    run: dict[str, Any]
    gap: int = 0


def follow(container: Container, app: App, run: str | None, reporter: Reporter, offset: int = 0) -> Iterator[LogChunk]:
    """The log from `offset` to the run's end, as it grows. A broken connection is made again at the same byte.

    Yields also without data, every few seconds, so that the caller sees the state. Raises MissingError; NetworkError
    when the host stays away.
    """
    failures = 0
    while True:
        try:
            for chunk in _read(container, app, run, reporter, offset, POLL_S):
                failures = 0
                run, offset = chunk.run["run"], chunk.offset + len(chunk.data)
                yield chunk
            return
        except (NetworkError, SessionKilled) as error:
            if failures >= len(RETRY_S):
                raise
            reporter.warn(f"{error.message}; following again from byte {offset}")
            time.sleep(RETRY_S[failures])
            failures += 1


def tail(container: Container, app: App, run: str | None, reporter: Reporter, lines: int | None) -> Iterator[LogChunk]:
    """What the log holds now; with `lines`, only its last so many. Ends even if the run writes faster than we read."""
    with connect(container, reporter) as link, Session(link.transport, link.place, app.name, who()) as session:
        session.hello()
        offset = 0
        end: int | None = None
        if lines is not None:
            found = session.call("last_lines", run=run, lines=lines)
            run, offset, end = found["run"], found["start"], found["end"]
        while True:
            answer, data = session.call_with_data("log", run=run, offset=offset)
            end = answer["size"] if end is None else end
            data = data[: max(0, end - offset)]
            yield LogChunk(offset, data, answer["run"], answer.get("truncated", 0))
            run, offset = answer["run"]["run"], offset + len(data)
            if not data or offset >= end:
                return


def _read(
    container: Container, app: App, run: str | None, reporter: Reporter, offset: int, wait_s: float
) -> Iterator[LogChunk]:
    with connect(container, reporter) as link, Session(link.transport, link.place, app.name, who()) as session:
        session.hello()
        while True:
            chunk = _chunk(session, run, offset, wait_s)
            run, offset = chunk.run["run"], chunk.offset + len(chunk.data)
            yield chunk
            if not chunk.data and not chunk.gap and chunk.run["state"] in ENDED:
                return


def _chunk(session: Session, run: str | None, offset: int, wait_s: float) -> LogChunk:
    answer, data = session.call_with_data("log", run=run, offset=offset, wait_s=wait_s)
    return LogChunk(answer["offset"], data, answer["run"], answer.get("truncated", 0))
