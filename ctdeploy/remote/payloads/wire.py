"""Frames between the laptop and the session payload.

A request is one line of ASCII JSON. An answer is a line
`<nonce> <length of JSON> <length of blob>` and then both: the nonce tells it from whatever else a login shell or a
library may print on the same stream.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

MAX_LINE = 64 * 1024 * 1024


class EndOfInput(Exception):
    """The other side closed its end: it is gone, or it has finished."""


class Silence(Exception):
    """Nothing, not even a heartbeat, came for too long."""


class Wire:
    """Requests from file descriptor `source`, answers to file descriptor `sink`."""

    def __init__(self, source: int, sink: int, silence_s: float = 60.0) -> None:
        self._source = source
        self._sink = sink
        self._silence_s = silence_s
        self._buffer = b""
        self.nonce = ""

    def receive(self) -> dict[str, Any]:
        """The next request. Heartbeats are swallowed. Raises EndOfInput, Silence, ValueError."""
        while True:
            request = json.loads(self._line())
            if not isinstance(request, dict):
                raise ValueError("a request is a JSON object")
            if request.get("op") != "beat":
                return request

    def answer(self, body: dict[str, Any], blob: bytes = b"") -> None:
        """Send one answer. Raises EndOfInput when nobody listens any more."""
        text = json.dumps(body).encode("ascii")
        head = f"{self.nonce} {len(text)} {len(blob)}\n".encode("ascii")
        view = memoryview(head + text + blob)
        try:
            while view:
                view = view[os.write(self._sink, view) :]
        except OSError as error:
            raise EndOfInput from error

    def waiting(self, seconds: float) -> bool:
        """Wait for input, at most so long. True when a request or the end of input is there to be received."""
        deadline = time.monotonic() + seconds
        while True:
            if self._discard_beats():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not select.select([self._source], [], [], left)[0]:
                return False
            chunk = os.read(self._source, 65536)
            if not chunk:
                return True
            self._buffer += chunk

    def _discard_beats(self) -> bool:
        while b"\n" in self._buffer:
            line, rest = self._buffer.split(b"\n", 1)
            if json.loads(line).get("op") != "beat":
                return True
            self._buffer = rest
        return False

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise ValueError("a request is too long")
            self._fill()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _fill(self) -> None:
        if not select.select([self._source], [], [], self._silence_s)[0]:
            raise Silence
        chunk = os.read(self._source, 1 << 20)
        if not chunk:
            raise EndOfInput
        self._buffer += chunk
