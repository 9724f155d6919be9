"""Other interpreters of this machine: payloads run under whatever Python a container has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def pythons() -> list[str]:
    """This interpreter, and every other from 3.9 on that this machine really has."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(9, 15)]
    candidates += map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    found = {sys.version_info[:2]: sys.executable}
    for candidate in filter(None, candidates):
        told = subprocess.run(
            [candidate, "-c", "import sys; print(*sys.version_info[:2], sys.executable)"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if told.returncode == 0:
            major, minor, path = told.stdout.split(maxsplit=2)
            if int(minor) >= 9:
                found.setdefault((int(major), int(minor)), path.strip())
    return sorted(found.values())
