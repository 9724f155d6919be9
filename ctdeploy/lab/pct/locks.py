"""The lock of one container: a flock, taken by all that changes it, and by push and pull for as long as they run."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ctdeploy.lab.pct.caller import say
from ctdeploy.lab.pct.errors import INTERRUPTED, PctError

FOLDER = "/run/lock/lxc"
LIMIT_S = 10


class _Late(Exception):
    pass


@contextmanager
def config_lock(vmid: int) -> Iterator[None]:
    """Hold the flock of a container; says so on stderr when it has to wait. Raises PctError (4) after 10 s."""
    os.makedirs(FOLDER, exist_ok=True)
    path = f"{FOLDER}/pve-config-{vmid}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(b"trying to acquire lock...\n")
            if not _wait(handle):
                raise PctError(f"can't lock file '{path}' - got timeout\n", INTERRUPTED) from None
            say(b" OK\n")
        yield
    finally:
        # Not unlocked by hand: a task that was forked meanwhile shares the lock and keeps it while it works.
        os.close(handle)


def _wait(handle: int) -> bool:
    def late(_number: int, _frame: FrameType | None) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except _Late:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True
