"""The lab's two folders on the machine. Only what the lab made is ever removed: each carries a mark."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctdeploy.errors import HostError

STATE_MARK = ".ctdeploy-lab"
LOCK = "lock"
CACHE_MARK = ".ctdeploy-lab-cache"


def take(folder: Path, mark: str) -> None:
    """Make a folder ours: a new or empty one, or one that is already. Raises HostError for any other."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_ours(folder, mark):
            return
        # Asked again: another may have taken it between the two looks.
        if any(folder.iterdir()) and not is_ours(folder, mark):
            raise HostError(f"{folder} is not empty and no folder of the lab", next=f"ls {folder}")
        folder.chmod(0o700)
        (folder / mark).touch(mode=0o600)
    except OSError as error:
        raise HostError(f"the lab cannot use {folder}: {error.strerror}", next=f"ls -ld {folder}") from error


def is_ours(folder: Path, mark: str) -> bool:
    return os.path.lexists(folder / mark)


def remove(folder: Path, mark: str) -> None:
    """Remove a folder of ours, its mark last, so that one who was stopped on the way can go on.

    Never through a mount: the lab's own are in a namespace that is gone.
    """
    with open("/proc/self/mountinfo") as file:
        inside = [line.split()[4] for line in file if line.split()[4].startswith(f"{folder}/")]
    if inside:
        raise HostError(f"something is mounted in the lab's folder: {inside[0]}", next=f"umount {inside[0]}")

    def open_up(function: Callable[..., Any], path: str, _: Any) -> None:
        # A folder without rights for its owner, as a test in a container may have left one.
        with contextlib.suppress(FileNotFoundError):
            os.chmod(os.path.dirname(path), 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)
                shutil.rmtree(path)
            else:
                function(path)

    entries = sorted(folder.iterdir(), key=lambda entry: (entry.name == mark, entry.name == LOCK))
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, onerror=open_up)
        else:
            entry.unlink(missing_ok=True)
    folder.rmdir()
