"""A transport that runs the container's side of a command on this machine: `pct exec ID --` becomes nothing.

For tests of the session payload itself, without SSH and without pct. The same four verbs, real processes, real pipes.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ctdeploy.errors import NetworkError
from ctdeploy.remote import pct
from ctdeploy.remote.session import Place
from ctdeploy.transport.base import Output


class LocalProcess:
    def __init__(self, argv: Sequence[str]) -> None:
        self.popen = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        assert self.popen.stdin is not None
        self._streams = [self.popen.stdout.fileno(), self.popen.stderr.fileno()]
        for stream in self._streams:
            os.set_blocking(stream, False)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self.popen.stdin.write(view) :]
        except (OSError, ValueError) as error:  # ValueError: closed by us
            raise NetworkError("the pipe is closed") from error

    def close_stdin(self) -> None:
        self.popen.stdin.close()

    def read(self, timeout_s: float) -> Output:
        select.select(self._streams, [], [], timeout_s)
        stdout, stderr = (self._take(stream) for stream in self._streams)
        return Output(stdout, stderr, ended=not stdout and not stderr and self.popen.poll() is not None)

    @property
    def exit_code(self) -> int | None:
        return self.popen.poll()

    def close(self) -> None:
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            stream.close()
        self.popen.wait(10)

    def _take(self, stream: int) -> bytes:
        try:
            return os.read(stream, 1 << 20)
        except BlockingIOError:
            return b""


class LocalTransport:
    """Keeps what it was asked to run, and the processes, for tests to look at."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.processes: list[LocalProcess] = []

    def connect(self) -> None:
        pass

    def run(self, argv: Sequence[str]) -> LocalProcess:
        self.commands.append(tuple(argv))
        at = argv.index(pct.ENV)
        process = LocalProcess(argv[at:])
        self.processes.append(process)
        return process

    def put(self, data: bytes, path: str) -> str | None:
        Path(path).write_bytes(data)
        return "copy"

    def get(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def close(self) -> None:
        pass


def local_place(dest: Path, python: str) -> Place:
    return Place(host="here", ct=200, name="box", python=python, dest=str(dest), pct=pct.Pct())
