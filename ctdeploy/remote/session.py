"""The laptop's end of a session: one `pct exec` for a whole operation (its other end: payloads/session.py)."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

from ctdeploy.errors import (
    CtdeployError,
    HostError,
    LockedError,
    MissingError,
    NetworkError,
    RunFailed,
    TimedOut,
    UsageError,
    VerifyError,
)
from ctdeploy.remote import payload, pct
from ctdeploy.remote.payloads import BOOT
from ctdeploy.transport.base import Process, Transport

HEARTBEAT_S = 15.0
# A pong is not needed: unanswered data ends the connection (transport/ssh.py), and the payload ends in silence.
ANSWER_S = 60.0
START_S = 30.0

_ERRORS: dict[str, type[CtdeployError]] = {
    "locked": LockedError,
    "verify": VerifyError,
    "host": HostError,
    "missing": MissingError,
    "run": RunFailed,
    "usage": UsageError,
}


class SessionKilled(HostError):
    """The payload was killed: its container stopped, or the kernel took its memory."""


@dataclass(frozen=True)
class Place:
    """A container as the remote layer needs it."""

    host: str
    ct: int
    name: str
    python: str
    dest: str
    pct: pct.Pct


@dataclass(frozen=True)
class Hello:
    """What the container said first."""

    python: tuple[int, ...]
    active: dict[str, Any] | None
    time: float


def session_argv(place: Place) -> tuple[str, ...]:
    """The remote command of a session."""
    return place.pct.exec(place.ct, [place.python, "-I", "-S", "-c", BOOT])


class Session:
    """Requests and answers, in order. Use as a context manager: leaving says goodbye and closes the channel."""

    def __init__(self, transport: Transport, place: Place, app: str, who: str) -> None:
        self._place = place
        self._nonce = secrets.token_hex(16)
        self._buffer = b""
        self._stderr = b""
        self._noise = b""
        self._greeted = False
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._process: Process = transport.run(session_argv(place))
        self._send_raw(payload.session())
        self._send({"nonce": self._nonce})
        self._send({"op": "hello", "dest": place.dest, "app": app, "who": who})
        threading.Thread(target=self._beat, name="ctdeploy-heartbeat", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hello(self) -> Hello:
        """Wait until the container has answered. Raises HostError with what pct said, TimedOut."""
        answer, _ = self._answer(START_S)
        self._greeted = True
        return Hello(tuple(answer["python"]), answer["active"], answer["time"])

    def call(self, op: str, *, answer_s: float = ANSWER_S, **request: Any) -> dict[str, Any]:
        """One request and its answer. Raises the error that the container answered, NetworkError, TimedOut."""
        return self.call_with_data(op, answer_s=answer_s, **request)[0]

    def call_with_data(self, op: str, *, answer_s: float = ANSWER_S, **request: Any) -> tuple[dict[str, Any], bytes]:
        """As `call`, with the answer's raw bytes."""
        self._send(dict(request, op=op))
        return self._answer(answer_s)

    def close(self) -> None:
        """Say goodbye, so that the payload has cleaned up before this returns."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._send({"op": "bye"})
        with contextlib.suppress(CtdeployError):
            self._process.close_stdin()
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and not self._process.read(0.5).ended:
                pass
        self._process.close()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            self._send({"op": "beat"})

    def _send(self, request: dict[str, Any]) -> None:
        self._send_raw(json.dumps(request).encode("ascii") + b"\n")

    def _send_raw(self, data: bytes) -> None:
        # A command that ended early (pct refused) cannot be written to; why it ended is told by what it said, so the
        # reader reports it, as it reports a connection that broke.
        with self._sending, contextlib.suppress(NetworkError):
            self._process.write(data)

    def _answer(self, limit_s: float) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + limit_s
        while True:
            frame = self._frame()
            if frame is not None:
                break
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOut(
                    f"container {self._place.name} on {self._place.host} did not answer within {limit_s:.0f} s",
                    layer="container",
                    next=f"a frozen container (backup, snapshot) hangs so: on the host, pct status {self._place.ct}",
                    remote=self._words(),
                )
            output = self._process.read(min(left, 1.0))
            self._buffer += output.stdout
            self._stderr = (self._stderr + output.stderr)[-20_000:]
            if output.ended:
                frame = self._frame()
                if frame is None:
                    raise self._ended()
                break
        body, blob = frame
        if "failure" in body:
            raise self._failure(body)
        return body, blob

    def _frame_start(self) -> int | None:
        at = self._buffer.find(self._nonce.encode())
        return None if at < 0 else at

    def _frame(self) -> tuple[dict[str, Any], bytes] | None:
        at = self._frame_start()
        if at is None or b"\n" not in self._buffer[at:]:
            return None
        self._noise = (self._noise + self._buffer[:at])[-20_000:]
        head, rest = self._buffer[at:].split(b"\n", 1)
        json_size, blob_size = (int(word) for word in head.split()[1:])
        if len(rest) < json_size + blob_size:
            return None
        self._buffer = rest[json_size + blob_size :]
        return json.loads(rest[:json_size]), rest[json_size : json_size + blob_size]

    def _failure(self, body: dict[str, Any]) -> CtdeployError:
        kind, message, next_step = body["failure"], body["message"], body.get("next")
        if kind == "bug":
            raise RuntimeError(f"the session in the container failed:\n{message}")
        error = _ERRORS[kind](message, next=next_step, remote=str(body["facts"].get("remote", "")))
        if kind == "host":
            error.layer = "container"
        return error

    def _ended(self) -> CtdeployError:
        place, words = self._place, self._words()
        known = pct.failure(place.ct, place.host, words, place.name)
        if known is not None:
            return known
        code = self._process.exit_code
        if code is None or code < 0:
            return NetworkError(f"the connection to {place.host} broke", remote=words)
        if code in (137, 143):
            return SessionKilled(
                f"the session in container {place.name} on {place.host} was killed: it stopped, or memory ran out",
                layer="container",
                next=f"on the host: pct status {place.ct}",
                remote=words,
            )
        if code == 0 and not self._greeted:
            return HostError(
                f"{place.python} in container {place.name} on {place.host} did not behave as Python",
                layer="container",
                next='say python = "/path/to/python" in its [containers.…] table',
                remote=words,
            )
        return pct.unknown_failure(place.ct, place.host, words, code)

    def _words(self) -> str:
        return (self._stderr + self._noise + self._buffer).decode("utf-8", "replace").strip()[-4000:]
