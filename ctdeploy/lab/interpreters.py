"""Which folders of this machine a container needs to run the Python that runs ctdeploy."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Interpreter:
    """A venv and the folders outside of it that its python needs, each under the path by which it is asked for.

    `bases` maps the path that must exist in the container to the folder of the machine that stands there.
    """

    venv: str
    bases: dict[str, str]


def current(spare_venv: Path) -> Interpreter:
    """The venv that runs this process, or, outside of any, a small one made at `spare_venv` over the same python."""
    venv = sys.prefix
    if sys.prefix == sys.base_prefix:
        venv = str(spare_venv)
        if not (spare_venv / "bin" / "python").exists():
            # --without-pip: nothing is ever installed there, it only gives the container its /opt/venv.
            make = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", venv]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return Interpreter(venv, _bases(Path(venv)))


def base_python() -> str:
    """The real file of the base interpreter, free of any venv."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _bases(venv: Path) -> dict[str, str]:
    """sys.base_prefix and every folder that the links of the venv's python pass through on their way."""
    wanted = [sys.base_prefix, sys.base_exec_prefix, str(Path(base_python()).parent.parent)]
    link = venv / "bin" / "python"
    for _ in range(20):
        if not link.is_symlink():
            break
        # Not resolved: the words of the link are what the kernel in the container will follow.
        link = Path(os.path.normpath(link.parent / link.readlink()))
        wanted.append(str(link.parent.parent))
    found: dict[str, str] = {}
    for folder in wanted:
        inside = folder == str(venv) or folder.startswith(f"{venv}/")
        system = folder in ("/", "/usr") or folder.startswith("/usr/")
        if not inside and not system and Path(folder).is_dir():
            found[folder] = os.path.realpath(folder)
    return dict(sorted(found.items()))


def unreadable_by_others(interpreter: Interpreter, limit: int = 20_000) -> tuple[str, str] | None:
    """The first path that a container's shifted root could not read, and the venv or base folder that it lies in.

    Looks at about `limit` entries of each, the top ones first. What is above these folders does not matter, as each is
    mounted by itself.
    """
    for top in (interpreter.venv, *interpreter.bases.values()):
        left = limit
        for folder, folders, files in os.walk(top):
            folders.sort(key=lambda name: name not in ("bin", "lib"))
            if os.stat(folder).st_mode & 0o005 != 0o005:
                return folder, top
            for name in files:
                path = os.path.join(folder, name)
                if not os.path.islink(path) and not os.stat(path).st_mode & 0o004:
                    return path, top
            left -= len(files) + 1
            if left < 0:
                break
    return None
