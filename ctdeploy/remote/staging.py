"""One bundle's way onto the host and, by `pct push`, into the container; beside a session that checks what arrived."""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass
from typing import Any, Self

from ctdeploy.errors import CtdeployError, HostError, NetworkError, TimedOut
from ctdeploy.remote import layout, pct, shell
from ctdeploy.remote.session import Place
from ctdeploy.transport.base import Process, Transport

STEP_S = 60.0
SLOWEST_BYTES_PER_S = 256 * 1024  # of a host's storage, for the time that `pct push` gets


@dataclass(frozen=True)
class Pushed:
    """What `pct push` was given, for the container to measure what came of it. `said`: its words, if any."""

    path: str
    size: int
    sha256: str
    way: str
    said: str

    def as_request(self) -> dict[str, Any]:
        """The part that the session needs."""
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


def staging_argv(place: Place, staging: layout.Staging, nonce: str) -> tuple[str, ...]:
    """The remote command of a staging: its folder, and the `pct push` that it will run."""
    return shell.stage_argv(staging.folder, nonce, place.ct, staging.incoming, place.pct.argv())


class Stager:
    """A private folder on the host for as long as this object lives."""

    def __init__(self, transport: Transport, place: Place, staging: layout.Staging, nonce: str) -> None:
        self._transport = transport
        self._place = place
        self._staging = staging
        self._nonce = nonce
        self._ready = False
        self._bundle = b""
        self._way = ""
        self._stdout = b""
        self._words = b""
        self._process: Process = transport.run(staging_argv(place, staging, self._nonce))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(clean=kind is None)

    def start(self, bundle: bytes) -> str:
        """Store the bundle on the host and start `pct push`. Returns the way it travelled."""
        if not self._ready:
            self._wait_for("ready")
            self._ready = True
        self._bundle = bundle
        self._way = self._transport.put(bundle, self._staging.bundle) or "stdin"
        if self._way == "stdin":
            self._process.write(b"stdin %d\n" % len(bundle) + bundle)
            self._wait_for("stored")
        self._process.write(b"push %d\n" % len(bundle))
        return self._way

    def finish(self) -> Pushed:
        """Wait for the end of `pct push`. Raises HostError only for what pct says plainly; it says little."""
        code = int(self._wait_for("pushed", STEP_S + len(self._bundle) / SLOWEST_BYTES_PER_S))
        said = self._said()
        if code != 0:
            error = pct.failure(self._place.ct, self._place.host, said, self._place.name)
            raise error or pct.unknown_failure(self._place.ct, self._place.host, said, code)
        digest = hashlib.sha256(self._bundle).hexdigest()
        return Pushed(self._staging.incoming, len(self._bundle), digest, self._way, said)

    def close(self, *, clean: bool) -> None:
        """Let the host remove the folder and, unless all went well, what landed in the container too."""
        with contextlib.suppress(CtdeployError):
            if clean:
                self._process.write(b"bye\n")
            self._process.close_stdin()
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and not self._process.read(0.5).ended:
                pass
        self._process.close()

    def _wait_for(self, word: str, limit_s: float = STEP_S) -> str:
        """The rest of the helper's line that starts with the nonce and `word`."""
        deadline = time.monotonic() + limit_s
        while True:
            while b"\n" in self._stdout:
                line, self._stdout = self._stdout.split(b"\n", 1)
                said = line.decode("utf-8", "replace").split()
                if said[:2] == [self._nonce, word]:
                    return " ".join(said[2:])
                if said[:2] == [self._nonce, "short"]:
                    raise self._short(said[2])
                self._words += line + b"\n"
            output = self._process.read(1.0)
            self._stdout += output.stdout
            self._words += output.stderr
            if output.ended and b"\n" not in self._stdout:
                raise self._ended()
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{self._place.host} did not get to '{word}' within {limit_s:.0f} s",
                    layer="host",
                    next="is another pct task busy there? ctdeploy push tries again",
                    remote=self._said(),
                )

    def _short(self, have: str) -> HostError:
        if have == "none":
            return HostError(
                f"{self._way} stored the bundle, but {self._staging.bundle} is not there for the shell of "
                f"{self._place.host}",
                next=f"SFTP may be confined to another root: set staging in [hosts.{self._place.host}]",
            )
        return HostError(
            f"{self._place.host} stored {have} of {len(self._bundle)} bytes in {self._staging.folder}",
            next="is its disk full? df -h /var/tmp on the host",
        )

    def _ended(self) -> CtdeployError:
        words = self._said()
        code = self._process.exit_code
        if code == 3:
            return HostError(
                f"{self._place.host} cannot make {self._staging.folder}",
                next=f'set staging = "/path" in [hosts.{self._place.host}] to a folder that can be written',
                remote=words,
            )
        if code is None or code < 0:
            return NetworkError(f"the connection to {self._place.host} broke", remote=words)
        return HostError(f"the staging helper on {self._place.host} ended with {code}", remote=words)

    def _said(self) -> str:
        return self._words.decode("utf-8", "replace").strip()[-4000:]
