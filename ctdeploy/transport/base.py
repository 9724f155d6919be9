"""The transport in four verbs: connect, run, put, get. Everything above sees only this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Output:
    """What came since the last read. `ended`: both streams are at their end and the exit status is known."""

    stdout: bytes
    stderr: bytes
    ended: bool


class Process(Protocol):
    """A command that runs on the host. Standard output and error are read together, so neither can block the other."""

    def write(self, data: bytes) -> None:
        """Send to its standard input. Raises NetworkError when the connection is gone."""

    def close_stdin(self) -> None:
        """End of its standard input."""

    def read(self, timeout_s: float) -> Output:
        """Whatever is there, waiting at most so long for the first of it. Raises NetworkError."""

    @property
    def exit_code(self) -> int | None:
        """Its exit status; None while it runs, or when the connection broke before it was told."""

    def close(self) -> None:
        """Let go of the channel. The command is not killed; it sees the end of its input."""


class Transport(Protocol):
    """One connection to one host."""

    def connect(self) -> None:
        """Log in. Raises NetworkError with the phase that failed and what to do."""

    def run(self, argv: Sequence[str]) -> Process:
        """Start a command. `argv` reaches it exactly: it is quoted once for the host's login shell."""

    def put(self, data: bytes, path: str) -> str | None:
        """Write a new file on the host, mode 0600. Returns the way used (`sftp`, `scp`), None where neither works."""

    def get(self, path: str) -> bytes:
        """Read a file of the host."""

    def close(self) -> None:
        """Hang up."""


@dataclass(frozen=True)
class Endpoint:
    """Where and how to log in."""

    host: str  # the name in hosts.toml, for messages
    address: str
    port: int | None = None
    user: str | None = None
    identity: str | None = None
    known_hosts: str | None = None
    jump: str | None = None
    connect_s: float = 10.0
