"""The file of a running container of namespaces: it holds its first process's pid and start time."""

from __future__ import annotations

import os

from ctdeploy.lab.processes import Process

RUN = "/run/lxc"


def read(vmid: int) -> Process | None:
    """The first process of a running container; None where there is no file or the process is another."""
    try:
        with open(f"{RUN}/{vmid}") as file:
            pid, started = file.read().split()
    except FileNotFoundError:
        return None
    process = Process(int(pid), int(started))
    return process if process.alive() else None


def forget(vmid: int, process: Process) -> None:
    """Take away the file of a container that ended; another start may have put its own there by now."""
    try:
        with open(f"{RUN}/{vmid}") as file:
            mine = file.read() == written(process)
        if mine:
            os.unlink(f"{RUN}/{vmid}")
    except FileNotFoundError:
        pass


def written(process: Process) -> str:
    """What stands in the file of a running container."""
    return f"{process.pid} {process.started}\n"
