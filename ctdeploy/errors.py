"""The error tree and the frozen exit codes (docs/exit-codes.md). Everything that a user can cause is one of these."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process ends with. Frozen: scripts rely on these numbers."""

    DONE = 0
    BUG = 1
    USAGE = 2
    CONFIG = 3
    CHECK = 4
    NETWORK = 5
    HOST = 6
    VERIFY = 7
    LOCKED = 8
    RUN = 9
    MIXED = 10
    MISSING = 11
    DECLINED = 12
    TIMEOUT = 124
    COMMAND = 125
    INTERRUPTED = 130
    PIPE = 141
    TERMINATED = 143


class CtdeployError(Exception):
    """An expected failure: one sentence, the layer that failed, and the next command to try.

    `layer` is one of laptop, ssh, host, pct, container, verify. `remote` holds the words that the other side said, cut
    to what is useful. The CLI prints these without a traceback.
    """

    code = ExitCode.BUG
    layer = "laptop"

    def __init__(self, message: str, *, next: str | None = None, layer: str | None = None, remote: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next = next
        self.remote = remote.strip()
        if layer is not None:
            self.layer = layer


class UsageError(CtdeployError):
    """A command line that cannot be meant: unknown app, container, tag, or a bad option value."""

    code = ExitCode.USAGE


class ConfigError(CtdeployError):
    """hosts.toml cannot be read or is wrong; the message starts with file:line."""

    code = ExitCode.CONFIG


class CheckError(CtdeployError):
    """The local check failed: syntax, marker, forbidden text."""

    code = ExitCode.CHECK


class NetworkError(CtdeployError):
    """SSH or the network failed: name, port, host key, login, or a connection that died."""

    code = ExitCode.NETWORK
    layer = "ssh"


class HostError(CtdeployError):
    """pct, the container or the host is not in a state in which this can work."""

    code = ExitCode.HOST
    layer = "host"


class VerifyError(CtdeployError):
    """What is in the container is not what was meant to be there."""

    code = ExitCode.VERIFY
    layer = "verify"


class LockedError(CtdeployError):
    """Another operation holds the lock of this app in this container."""

    code = ExitCode.LOCKED
    layer = "container"


class RunFailed(CtdeployError):
    """The run ended badly, or died before it was ready."""

    code = ExitCode.RUN
    layer = "container"


class MissingError(CtdeployError):
    """No such run or release."""

    code = ExitCode.MISSING
    layer = "container"


class TimedOut(CtdeployError):
    """A deadline passed."""

    code = ExitCode.TIMEOUT
