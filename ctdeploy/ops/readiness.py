"""When a run counts as started: what its log must show, or how long it must live."""

from __future__ import annotations

import re

from ctdeploy.inventory.values import App

LIVED_S = 10.0
LAST_LINES = 15


class Watch:
    """Looks for the start markers and the ready pattern in the lines of a log, and keeps its last lines."""

    def __init__(self, app: App) -> None:
        self._wanted = [(marker, re.compile(marker.pattern)) for marker in app.markers_at_start]
        self._ready = re.compile(app.ready) if app.ready else None
        self._partial = b""
        self.seen: dict[str, list[str]] = {marker.pattern: [] for marker, _ in self._wanted}
        self.ready_line: str | None = None
        self.last: list[str] = []

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
            self.last = [*self.last[-(LAST_LINES - 1) :], line]
            for marker, pattern in self._wanted:
                if pattern.search(line):
                    self.seen[marker.pattern].append(line.strip())
            if self._ready and self.ready_line is None and self._ready.search(line):
                self.ready_line = line.strip()

    @property
    def markers_seen(self) -> bool:
        """Every start marker as often as asked."""
        return all(len(self.seen[marker.pattern]) >= marker.count for marker, _ in self._wanted)

    @property
    def ready(self) -> bool:
        """The start markers, and the ready pattern where there is one."""
        return self.markers_seen and (self._ready is None or self.ready_line is not None)

    @property
    def waits_for_time(self) -> bool:
        """Without a ready pattern a run counts as started when it lived for a while."""
        return self._ready is None

    def lacks(self) -> str:
        """What it still waits for, in words."""
        for marker, _ in self._wanted:
            if len(self.seen[marker.pattern]) < marker.count:
                return f"saw {len(self.seen[marker.pattern])} of {marker.count} lines like {marker.pattern!r}"
        if self._ready is None:
            return f"without a ready pattern it has to live {LIVED_S:.0f} s"
        return f"no line like {self._ready.pattern!r}"
