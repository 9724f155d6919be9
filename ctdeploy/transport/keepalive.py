"""Notices a peer that is gone without a word (no FIN: a sleeping laptop, a lost route, a full NAT table)."""

from __future__ import annotations

import contextlib
import threading
import time

import paramiko

INTERVAL_S = 5.0
DEAD_AFTER_S = 20.0


class Keepalive:
    """Asks the server for an answer every few seconds, and closes the connection when none comes.

    paramiko's own set_keepalive sends requests that want no reply, so a dead peer goes unnoticed until the kernel's
    retransmissions end, a quarter of an hour later; a proxy in between would even acknowledge them.
    """

    def __init__(self, transport: paramiko.Transport, *, dead_after_s: float = DEAD_AFTER_S) -> None:
        self._transport = transport
        self._dead_after_s = dead_after_s
        self._asked_at: float | None = None
        self._stop = threading.Event()
        for work in (self._ask, self._watch):
            threading.Thread(target=work, name=f"ctdeploy-keepalive{work.__name__}", daemon=True).start()

    def stop(self) -> None:
        """No more questions."""
        self._stop.set()

    def _ask(self) -> None:
        while not self._stop.wait(INTERVAL_S) and self._transport.is_active():
            self._asked_at = time.monotonic()
            # Any answer will do; OpenSSH refuses this request, which is one. Returns at the latest on close.
            with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
                self._transport.global_request("keepalive@openssh.com", wait=True)
            self._asked_at = None

    def _watch(self) -> None:
        while not self._stop.wait(0.5) and self._transport.is_active():
            asked = self._asked_at
            if asked is not None and time.monotonic() - asked > self._dead_after_s:
                self._transport.close()
