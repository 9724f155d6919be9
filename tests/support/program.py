"""ctdeploy as a user starts it: a process of its own, with arguments, streams and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 120


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Program:
    """Runs `ctdeploy` in one working folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        limit_s: float = LIMIT_S,
    ) -> Ended:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "ctdeploy", *arguments],
            cwd=cwd or self.folder,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *arguments: str, **more: Any) -> Ended:
        """The same, where anything but success is a failed test."""
        ended = self(*arguments, **more)
        assert ended.code == 0, f"ctdeploy {' '.join(arguments)} ended with {ended.code}\n{ended.out}\n{ended.err}"
        return ended

    def write(self, name: str, text: str) -> Path:
        """A file of the working folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """A terminal-less, colourless environment."""
    return {**os.environ, "TERM": "dumb", "NO_COLOR": "1", **(more or {})}
