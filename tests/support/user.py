"""Run something as an ordinary user of the machine, with this project's venv readable for him.

The base interpreter may lie where others cannot go (below /root). The child therefore gets a mount namespace of its own
in which such a folder is covered by an open one that holds nothing but what is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctdeploy.lab.syscalls import CLONE_NEWNS, bind, make_private, mount, unshare

UID = 54_321
REPOSITORY = Path(__file__).resolve().parents[2]


class User:
    """A throw-away user with a home of his own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def python(self, program: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run Python source as the user, with nothing of our environment."""
        environment = {
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            preexec_fn=self._become,
        )

    def _become(self) -> None:
        unshare(CLONE_NEWNS)
        make_private()
        _open_the_way([sys.prefix, sys.base_prefix, str(REPOSITORY)], str(self.home / "stage"))
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)


@contextmanager
def ordinary_user() -> Iterator[User]:
    """Needs root. The user's home is removed afterwards, and nothing of his may still run."""
    home = Path(tempfile.mkdtemp(prefix="user."))
    (home / "tmp").mkdir()
    (home / "stage").mkdir()
    for path in (home, home / "tmp"):
        os.chown(path, UID, UID)
    try:
        yield User(home)
    finally:
        shutil.rmtree(home)


def _open_the_way(needed: list[str], stage: str) -> None:
    """Cover each closed folder above a needed one by an open tmpfs in which the needed ones are mounted again."""
    closed: dict[Path, list[str]] = {}
    for path in needed:
        for above in reversed(Path(path).parents):
            if above.stat().st_mode & 0o005 != 0o005:
                closed.setdefault(above, []).append(path)
                break
    for cover, paths in closed.items():
        mount("tmpfs", stage, "tmpfs", 0, "mode=755")
        for number, path in enumerate(paths):
            Path(stage, str(number)).mkdir()
            bind(path, f"{stage}/{number}")
        mount("tmpfs", str(cover), "tmpfs", 0, "mode=755")
        for number, path in enumerate(paths):
            Path(path).mkdir(parents=True)
            bind(f"{stage}/{number}", path)
