"""What `pct` needs of a kind of container. Namespaces are the first kind; LXC has the same shape."""

from __future__ import annotations

from ctdeploy.lab.processes import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctdeploy.lab.containers.spec import Spec


class StartFailed(Exception):
    """A container that did not come up; `lines` is what LXC would have said on the way."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class Kind:
    """A kind of container. All pids are those of the host."""

    def init(self, vmid: int) -> Process | None:
        """The container's first process, or None when it does not run."""
        raise NotImplementedError

    def start(self, spec: Spec) -> None:
        """Start it and return once its first process runs. Raises StartFailed."""
        raise NotImplementedError

    def kill(self, vmid: int) -> None:
        """End it and everything in it, and return when it is gone."""
        raise NotImplementedError

    def shut_down(self, vmid: int, timeout: float) -> bool:
        """Ask its first process to end (SIGPWR) and wait; False when it still runs then."""
        raise NotImplementedError
