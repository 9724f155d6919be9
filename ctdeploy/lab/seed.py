"""What the lab's host has when it is new, and what happens at each of its boots."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ctdeploy.lab import conf, layout
from ctdeploy.lab.containers import ids, store
from ctdeploy.lab.containers.ids import can_shift
from ctdeploy.lab.containers.namespaces import NamespaceContainers
from ctdeploy.lab.layout import VENV_IN_CONTAINER

SEEDED = "/var/lib/ctdeploy-lab/seeded"
FIRST = 200
# Opens the first file of every installed package: what an installer made unreadable for others shows here.
PROBE = """
import glob, sysconfig
for path in glob.glob(sysconfig.get_paths()["purelib"] + "/*/__init__.py"):
    open(path, "rb").close()
"""

__all__ = ["can_shift", "first_boot", "give_to_container", "interpreter_works", "start_containers"]


def give_to_container(cache: Path) -> None:
    """The cache folder belongs to the containers' root. It outlives labs, so it may be from one without shifted ids."""
    shift = ids.shift_for(True)
    if cache.stat().st_uid != shift:
        ids.own(str(cache), shift)


def first_boot() -> None:
    """Container 200 on a new host; on an old one its way to this machine's Python is put right."""
    if os.path.exists(SEEDED):
        for vmid in conf.ids():
            store.refresh_interpreter(vmid)
        return
    store.make(FIRST, default_settings("train"), [])
    os.makedirs(os.path.dirname(SEEDED), exist_ok=True)
    Path(SEEDED).touch()


def default_settings(hostname: str) -> dict[str, str]:
    """The settings of container 200, and of those that are added without saying more."""
    settings = {
        "cores": str(os.cpu_count() or 1),
        "hostname": hostname,
        "memory": str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)),
        "mp0": f"{layout.CACHE},mp={layout.CACHE_IN_CONTAINER}",
        "onboot": "1",
    }
    if can_shift():
        settings["unprivileged"] = "1"
    return settings


def interpreter_works() -> bool:
    """Whether container 200, if it runs, can run the venv's python and open what is installed there."""
    if NamespaceContainers().init(FIRST) is None:
        return True
    words = ["/usr/sbin/pct", "exec", str(FIRST), "--", f"{VENV_IN_CONTAINER}/bin/python", "-I", "-c", PROBE]
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode == 0


def start_containers() -> None:
    """Start those with `onboot: 1`; one that does not come up is said in the log and holds up nothing."""
    for vmid in conf.ids():
        found = conf.load(vmid)
        if found and found.flag("onboot"):
            subprocess.run(["/usr/sbin/pct", "start", str(vmid)], stdin=subprocess.DEVNULL, check=False)
