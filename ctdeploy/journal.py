"""What this machine remembers: the last push to each container, and tracebacks of bugs. A hint, never the truth."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any


def state_folder() -> Path:
    """Our folder for state (XDG_STATE_HOME), private to the user. Raises OSError where there can be none."""
    import platformdirs

    folder = platformdirs.user_state_path("ctdeploy")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


class Journal:
    """The last push of one app, by container. State that cannot be read reads as 'nothing known'."""

    def __init__(self, app: str) -> None:
        self._app = app

    def last(self, container: str) -> dict[str, Any] | None:
        """What the last push from here left in a container (`ID@HOST`)."""
        found = self._read().get(container)
        return found if isinstance(found, dict) else None

    def newest(self) -> tuple[str, dict[str, Any]] | None:
        """The container that the last push from here went to."""
        entries = [(name, value) for name, value in self._read().items() if isinstance(value, dict)]
        return max(entries, key=lambda item: item[1].get("at", 0), default=None)

    def record(self, container: str, **facts: Any) -> bool:
        """Remember a push; False where that is not possible. Two at once: the later wins whole."""
        entries = self._read()
        entries[container] = dict(facts, at=time.time())
        try:
            path = self._path()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(entries, file, indent=1)
            Path(temporary).replace(path)
        except OSError:
            return False
        return True

    def _path(self) -> Path:
        return state_folder() / "pushes" / f"{self._app}.json"

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            value = json.loads(self._path().read_text(encoding="utf-8"))
            if isinstance(value, dict):
                return value
        return {}


def save_traceback(error: BaseException) -> Path | None:
    """Keep an unexpected error's traceback for a report. Returns where it lies; None when even that failed."""
    with contextlib.suppress(OSError):
        folder = state_folder() / "crashes"
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=time.strftime("%Y%m%d-%H%M%S-"), suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
        return Path(name)
    return None
