"""Tasks: what Proxmox VE runs in a forked worker, with a log of its own and a line in the index."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

from ctdeploy.lab.layout import NODE
from ctdeploy.lab.pct.caller import cut, say, show
from ctdeploy.lab.pct.errors import PctError, TaskError
from ctdeploy.lab.processes import start_time

FOLDER = "/var/log/pve/tasks"
USER = "root@pam"


class _Interrupted(Exception):
    pass


def run(kind: str, vmid: int, work: Callable[[], None]) -> bool:
    """Run `work` as a task and wait for it; True when it succeeded.

    Its stdout and stderr go to our stdout and to the log; the words of its error, without the log's prefix, to stderr.
    """
    out_read, out_write = os.pipe()
    end_read, end_write = os.pipe()
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        for handle in (out_read, end_read, go_write):
            os.close(handle)
        _work(work, out_write, end_write, go_read)
    for handle in (out_write, end_write, go_read):
        os.close(handle)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        os.kill(child, signal.SIGTERM)

    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
    upid, log = _open_log(kind, vmid, child)
    os.write(go_write, b"g")
    os.close(go_write)
    while part := os.read(out_read, 65536):
        show(part)
        os.write(log, part)
    status = b""
    while part := os.read(end_read, 65536):
        status += part
    os.waitpid(child, 0)
    for number, handler in before:
        signal.signal(number, handler)
    error = None if status == b"+" else status.removeprefix(b"-").decode("utf-8", "surrogateescape")
    if error is not None:
        error = cut(error or "unexpected status")
        say(_raw(error) + b"\n")
    os.write(log, b"TASK OK\n" if error is None else b"\nTASK ERROR: " + _raw(error) + b"\n")
    os.close(log)
    _index(upid, "OK" if error is None else error)
    for handle in (out_read, end_read):
        os.close(handle)
    return error is None


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _work(work: Callable[[], None], out: int, end: int, go: int) -> None:
    """The worker; never returns. It starts when its log is there."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _Interrupted

    code = 0
    try:
        os.read(go, 1)
        os.close(go)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)
        os.set_inheritable(end, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, interrupt)
        work()
        os.write(end, b"+")
    except (TaskError, PctError) as error:
        os.write(end, b"-" + _raw(str(error).rstrip("\n")))
    except _Interrupted:
        os.write(end, b"-received interrupt")
    except BaseException as error:
        os.write(end, b"-" + _raw(f"{type(error).__name__}: {error}"))
        code = 1
    finally:
        os._exit(code)


def _open_log(kind: str, vmid: int, pid: int) -> tuple[str, int]:
    now = int(time.time())
    upid = f"UPID:{NODE}:{pid:08X}:{start_time(pid) or 0:08X}:{now:08X}:{kind}:{vmid}:{USER}:"
    folder = f"{FOLDER}/{upid.split(':')[4][-1]}"
    os.makedirs(folder, exist_ok=True)
    return upid, os.open(f"{folder}/{upid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def _index(upid: str, status: str) -> None:
    line = f"{upid} {int(time.time()):08X} {status}\n"
    with open(f"{FOLDER}/index", "ab") as file:
        file.write(_raw(line))
