"""The lock of one app in one container: an flock, which cannot outlive its holder, and a file that names it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, Callable, Optional

from ctdeploy.remote.payloads.files import Failure, read_json, replace_json


class AppLock:
    """Held from `acquire` until `release`, or until this process ends in whatever way."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._descriptor: Optional[int] = None

    def holder(self) -> Optional[dict[str, Any]]:
        """Who holds the lock now; None when nobody does, whatever an ended holder may have left written."""
        try:
            descriptor = os.open(os.path.join(self._folder, "flock"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_json(os.path.join(self._folder, "holder.json")) or {"who": "somebody", "why": "unknown"}
        finally:
            os.close(descriptor)
        return None

    def acquire(self, holder: dict[str, Any], wait_s: float, gone: Callable[[float], bool]) -> None:
        """Take the lock, waiting at most so long. `gone(seconds)` sleeps and tells whether our own client left.

        Raises Failure("locked") with the holder's words.
        """
        os.makedirs(self._folder, exist_ok=True)
        descriptor = os.open(os.path.join(self._folder, "flock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline or gone(0.1):
                    os.close(descriptor)
                    raise self._locked() from None
        self._descriptor = descriptor
        replace_json(os.path.join(self._folder, "holder.json"), dict(holder, since=time.time(), pid=os.getpid()))

    def release(self) -> None:
        """Let go. The holder's file goes first, so nobody reads of a holder that is none."""
        if self._descriptor is None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, "holder.json"))
        os.close(self._descriptor)
        self._descriptor = None

    def _locked(self) -> Failure:
        holder = read_json(os.path.join(self._folder, "holder.json")) or {}
        since = holder.get("since")
        ago = f", {int(time.time() - since)} s ago" if since else ""
        who = holder.get("who", "somebody")
        return Failure("locked", f"locked by {who} ({holder.get('why', 'unknown')}{ago})", holder=holder)
