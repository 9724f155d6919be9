"""Runs ctdeploy with a transport that counts its messages and kills this very process (SIGKILL) at one of them.

    python -m tests.support.kill_at before|after NUMBER TRACE ctdeploy-arguments...

A message is whatever our code hands to the transport: connect, run, put, get, each write to a command, the end of a
command's input, each close. Their names are appended to the file TRACE. NUMBER 0 kills at none.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ctdeploy.cli.main import main
from ctdeploy.ops import connection


class Messages:
    """Counts, notes, kills."""

    def __init__(self, when: str, number: int, trace: str) -> None:
        self._when = when
        self._number = number
        self._trace = trace
        self._count = 0

    def send(self, name: str, action: Callable[[], Any]) -> Any:
        self._count += 1
        with open(self._trace, "a", encoding="utf-8") as file:
            file.write(name + "\n")
        if (self._when, self._number) == ("before", self._count):
            os.kill(os.getpid(), signal.SIGKILL)
        result = action()
        if (self._when, self._number) == ("after", self._count):
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class CountedProcess:
    """A command of the counted transport. Reading sends nothing, so it does not count."""

    def __init__(self, process: Any, messages: Messages, label: str) -> None:
        self._process = process
        self._messages = messages
        self._label = label

    def write(self, data: bytes) -> None:
        line = data[:40].split(b"\n")[0].decode("ascii", "replace")
        if b'"op": ' in data:
            line = data.split(b'"op": "')[1].split(b'"')[0].decode()
        self._messages.send(f"{self._label} write {line}", lambda: self._process.write(data))

    def close_stdin(self) -> None:
        self._messages.send(f"{self._label} close_stdin", self._process.close_stdin)

    def close(self) -> None:
        self._messages.send(f"{self._label} close", self._process.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


class CountedTransport:
    """The real transport, message by message."""

    def __init__(self, transport: Any, messages: Messages) -> None:
        self._transport = transport
        self._messages = messages

    def connect(self) -> None:
        self._messages.send("connect", self._transport.connect)

    def run(self, argv: Any) -> CountedProcess:
        label = "stage" if "ctdeploy-stage" in argv else "session"
        process = self._messages.send(f"run {label}", lambda: self._transport.run(argv))
        return CountedProcess(process, self._messages, label)

    def put(self, data: bytes, path: str) -> str | None:
        way: str | None = self._messages.send("put", lambda: self._transport.put(data, path))
        return way

    def get(self, path: str) -> bytes:
        data: bytes = self._messages.send("get", lambda: self._transport.get(path))
        return data

    def close(self) -> None:
        self._messages.send("hang up", self._transport.close)


if __name__ == "__main__":
    when, number, trace, *arguments = sys.argv[1:]
    messages = Messages(when, int(number), trace)
    real = connection.new_transport
    connection.new_transport = lambda endpoint: CountedTransport(real(endpoint), messages)  # type: ignore[assignment]
    main(arguments)
