"""Containers made of plain namespaces: user, mount, pid, uts, ipc, on a folder with the machine's /usr in it.

Each has a monitor, a process of the host that made it and waits for its end, as lxc's monitor does. A running
container is known by its file (records.py).
"""

from __future__ import annotations

from ctdeploy.lab.containers import records
from ctdeploy.lab.containers.base import Kind
from ctdeploy.lab.processes import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctdeploy.lab.containers.spec import Spec

KILL_LIMIT_S = 30.0
# Numbers of signal(7); the module `signal` costs more time than `pct status` has.
SIGKILL = 9
SIGPWR = 30


class NamespaceContainers(Kind):
    """The kind `namespaces` (see base.Kind)."""

    def init(self, vmid: int) -> Process | None:
        return records.read(vmid)

    def start(self, spec: Spec) -> None:
        from ctdeploy.lab.containers import spawn

        spawn.start(spec)

    def kill(self, vmid: int) -> None:
        process = self.init(vmid)
        if process:
            process.kill(SIGKILL, wait=KILL_LIMIT_S)
            records.forget(vmid, process)

    def shut_down(self, vmid: int, timeout: float) -> bool:
        process = self.init(vmid)
        if process:
            if not process.kill(SIGPWR, wait=timeout):
                return False
            records.forget(vmid, process)
        return True
