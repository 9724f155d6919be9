"""Who a pid is: a number alone may be another process's by now, so it travels with its start time."""

from __future__ import annotations

import os


class Process:
    """A process, told apart from a later one of the same number by its start time in clock ticks since boot.

    A plain class: `pct` starts with it, and the module `dataclasses` alone costs more than all that `pct list` does.
    """

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self.started = started

    def alive(self) -> bool:
        """True while exactly this process runs; a zombie does not."""
        return start_time(self.pid) == self.started

    def kill(self, number: int, wait: float = 0.0) -> bool:
        """Send a signal to exactly this process and wait up to so many seconds for its end; True when it is gone."""
        import select
        import signal

        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # Looked at after the handle was made: from here on the number cannot become another's.
            if not self.alive():
                return True
            signal.pidfd_send_signal(handle, number)
            if wait <= 0:
                return False
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(wait * 1000))
        except ProcessLookupError:
            return True
        finally:
            os.close(handle)


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat (proc(5)); None when there is no such process or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself hold blanks and parentheses.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def this_process(pid: int) -> Process:
    """The identity of a process that is known to run. Raises ProcessLookupError."""
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(pid)
    return Process(pid, started)


def boot_id() -> str:
    """The kernel's random id of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
