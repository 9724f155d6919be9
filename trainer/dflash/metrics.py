"""What a run tells: metrics.jsonl, lines on the terminal, and the time that is left."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

_print_lock = threading.Lock()


def say(text: str) -> None:
    """One whole line to stdout, flushed, from any thread."""
    with _print_lock:
        print(text, flush=True)


class MetricsFile:
    """metrics.jsonl: one JSON object a line, appended and flushed at once. Units stand in the names."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def write(self, kind: str, **values: Any) -> None:
        """Adds a line; `kind` is train or evaluation."""
        line = {"kind": kind, **values, "elapsed_seconds": round(time.monotonic() - self._began, 3)}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def duration(seconds: float) -> str:
    """`75` -> `1m15s`."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
