"""Processes of a run, told apart from everything else that ever had the same pid."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable, Optional


def start_time(pid: int) -> Optional[int]:
    """Start of a process in clock ticks since boot (field 22 of /proc/PID/stat); None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold blanks and parentheses itself, so count from its last one.
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def boot_identity() -> dict[str, Any]:
    """What changes when the host reboots or the container restarts: then no pid written down before means anything."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read().strip()
    except OSError:
        boot_id = ""
    return {"boot_id": boot_id, "init_start": start_time(1), "pid_ns": os.readlink("/proc/self/ns/pid")}


def process_identity(pid: int) -> dict[str, Any]:
    """A process and its start time: both must still fit for it to be the same process."""
    return {"pid": pid, "start": start_time(pid)}


def is_alive(identity: Optional[dict[str, Any]]) -> bool:
    """Whether the process that was written down is still there."""
    if not identity or identity.get("start") is None:
        return False
    return bool(start_time(int(identity["pid"])) == identity["start"])


def in_environment_of(variable: str) -> list[int]:
    """Pids whose initial environment holds `NAME=value`: children that left the session and group are found too."""
    wanted = os.fsencode(variable)
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environ = file.read().split(b"\0")
        except OSError:
            continue
        if wanted in environ and start_time(int(name)) is not None:
            found.append(int(name))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """All living descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        fields = text[text.rindex(b")") + 2 :].split()
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return sorted(found)


def end_all(members: Callable[[], list[int]], number: int, patience_s: float, poll: Callable[[], None]) -> None:
    """Signal every member once, also those that appear meanwhile, until none is left or the patience is over."""
    deadline = time.monotonic() + patience_s
    signalled: set[int] = set()
    while True:
        poll()
        rest = members()
        if not rest:
            return
        for pid in rest:
            if pid not in signalled:
                signalled.add(pid)
                send_signal(pid, number)
        if time.monotonic() >= deadline:
            return
        time.sleep(0.05)


def send_signal(pid: int, number: int) -> None:
    """kill(2), where a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_name(number: int) -> str:
    """SIGTERM for 15; SIG40 for one without a name (real-time signals)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def command_of(pid: int) -> str:
    """A process's command line, for people."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def oom_kills() -> Optional[int]:
    """How often the kernel killed for memory in this cgroup so far; None where no counter can be read.

    cgroup v2: `oom_kill` in memory.events; v1: `oom_kill` in memory.oom_control.
    """
    paths = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            for line in file:
                number, controllers, path = line.rstrip("\n").split(":", 2)
                if number == "0":
                    paths += [f"/sys/fs/cgroup{path}/memory.events", f"/sys/fs/cgroup/unified{path}/memory.events"]
                elif "memory" in controllers.split(","):
                    paths.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    except OSError:
        return None
    for path in [*paths, "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]:
        try:
            with open(path, encoding="utf-8") as file:
                for line in file:
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        except OSError:
            continue
    return None
