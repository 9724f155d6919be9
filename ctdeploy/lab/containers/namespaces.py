"""Containers made of plain namespaces: user, mount, pid, uts, ipc, on a folder with the machine's /usr in it.

Each has a monitor, a process of the host that made it and waits for its end, as lxc's monitor does. A running
container is known by `RUN/<id>`, which holds its first process's pid and start time.
"""

from __future__ import annotations

import os

from ctdeploy.lab.containers.base import Kind
from ctdeploy.lab.processes import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctdeploy.lab.containers.spec import Spec

RUN = "/run/lxc"
KILL_LIMIT_S = 30.0
# Numbers of signal(7); the module `signal` costs more time than `pct status` has.
SIGKILL = 9
SIGPWR = 30


class NamespaceContainers(Kind):
    """The kind `namespaces` (see base.Kind)."""

    def init(self, vmid: int) -> Process | None:
        try:
            with open(f"{RUN}/{vmid}") as file:
                pid, started = file.read().split()
        except FileNotFoundError:
            return None
        process = Process(int(pid), int(started))
        return process if process.alive() else None

    def start(self, spec: Spec) -> None:
        from ctdeploy.lab.containers import spawn

        spawn.start(spec)

    def kill(self, vmid: int) -> None:
        process = self.init(vmid)
        if process:
            process.kill(SIGKILL, wait=KILL_LIMIT_S)
            forget(vmid, process)

    def shut_down(self, vmid: int, timeout: float) -> bool:
        process = self.init(vmid)
        if process:
            if not process.kill(SIGPWR, wait=timeout):
                return False
            forget(vmid, process)
        return True


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
