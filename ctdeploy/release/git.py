"""Which git revision the files come from. Everything here may fail quietly: a push does not need git."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from ctdeploy.release.model import GitState, ReleaseFile

LIMIT_S = 2.0


def git_state(root: Path, files: Iterable[ReleaseFile]) -> GitState | None:
    """The revision of the work tree that `root` lies in, and which of the files differ from it.

    A file that git does not track counts as different, so does one that lies outside of the work tree (a symlink's
    target). None if git tracks none of them, if there is no git or no commit, or no answer within LIMIT_S seconds.
    """
    deadline = time.monotonic() + LIMIT_S
    try:
        top = Path(os.fsdecode(_git(root, deadline, "rev-parse", "--show-toplevel")).rstrip("\n")).resolve()
        revision = _git(root, deadline, "rev-parse", "--verify", "HEAD").decode("ascii").strip()
        tracked = _paths(_git(top, deadline, "ls-files", "-z"))
        changed = _paths(_git(top, deadline, "diff", "--name-only", "--no-ext-diff", "-z", "HEAD"))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    different = []
    tracked_any = False
    for file in files:
        real = file.source.resolve()
        name = os.fsencode(real.relative_to(top)) if real.is_relative_to(top) else b""
        tracked_any = tracked_any or name in tracked
        if name not in tracked or name in changed:
            different.append(file.path)
    # Files of an installed package, in a virtual environment inside of some work tree, do not come from its revision.
    return GitState(revision, tuple(different)) if tracked_any else None


def _paths(output: bytes) -> set[bytes]:
    return set(output.split(b"\0")) - {b""}


def _git(folder: Path, deadline: float, *args: str) -> bytes:
    # GIT_OPTIONAL_LOCKS: never write the index. core.fsmonitor: may name a program to run.
    argv = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *args]
    env = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    left = max(0.05, deadline - time.monotonic())
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=left,
        check=True,
        env=env,
    )
    return done.stdout
