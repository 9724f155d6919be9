"""Stopping on SIGTERM and SIGINT."""

from __future__ import annotations

import signal
from types import FrameType


class Stopped(Exception):
    """SIGTERM or SIGINT came where there is nothing to finish."""


class StopFlag:
    """Set by SIGTERM and SIGINT; `check` raises Stopped."""

    def __init__(self) -> None:
        self.signal = ""

    def install(self) -> None:
        """Takes over both signals of this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def _set(self, number: int, _frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name

    def requested(self) -> bool:
        """Whether one came."""
        return bool(self.signal)

    def check(self) -> None:
        """Raises Stopped when one came."""
        if self.signal:
            raise Stopped
