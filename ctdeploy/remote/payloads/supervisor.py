"""Starts one run, waits for its end whatever becomes of SSH, and writes down what happened.

A child subreaper: processes that a run leaves behind become its children, so the end of a run is the end of all of
them. It gets its orders as one JSON line on standard input and talks only through status.json in the run folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import signal
import sys
import time
from typing import Any, Optional

from ctdeploy.remote.payloads import procs
from ctdeploy.remote.payloads.files import read_json, replace_json

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.2
WRITE_TRIES = 3600
KILL_S = 10.0  # a process in uninterruptible sleep outlives SIGKILL for a while; do not wait for ever


class Supervisor:
    """One attempt of one run. `orders`: run_dir, argv, cwd, env, user, grace_s, run, app."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.folder: str = orders["run_dir"]
        self._stopping = False
        self._folder_is = _identity_of(self.folder)
        self.status: dict[str, Any] = {
            "schema": 1,
            "run": orders["run"],
            "attempt": orders["attempt"],
            "state": "starting",
            "started": time.time(),
            "identity": dict(procs.boot_identity(), supervisor=procs.process_identity(os.getpid())),
        }

    def run(self) -> None:
        """From the launch to the last process's end."""
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Blocked, then taken one by one by sigtimedwait: no handler can interrupt the bookkeeping half-way.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
        if self._stop_asked():
            self._end(None, [])
            return
        kills_before = procs.oom_kills()
        child = self._launch()
        if "reason" not in self.status:
            self.status["identity"]["child"] = procs.process_identity(child)
            self.status["state"] = "running"
            self._write()
        code = self._wait_for(child)
        left = self._end_the_rest()
        kills_after = procs.oom_kills()
        if code == -signal.SIGKILL and kills_before is not None and kills_after is not None:
            self.status["oom_kill"] = kills_after > kills_before
        self._end(code, left)

    def _end(self, code: Optional[int], left: list[str]) -> None:
        if code is not None and code < 0:
            self.status["signal"] = procs.signal_name(-code)
        elif code is not None:
            self.status["exit_code"] = code
        self.status["left"] = left
        self.status["ended"] = time.time()
        self.status["state"] = "stopped" if self._stop_asked() else ("done" if code == 0 else "failed")
        # The verdict must not be lost to a full disk; while we wait, the run counts as running and `stop` finds us.
        for _ in range(WRITE_TRIES):
            if self._write():
                return
            time.sleep(1.0)

    def _launch(self) -> int:
        orders = self.orders
        log = os.open(os.path.join(self.folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        failure_in, failure_out = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self._become_child(log)
                os.execve(orders["argv"][0], orders["argv"], orders["env"])  # noqa: S606
            except BaseException as error:
                os.write(failure_out, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(127)
        os.close(failure_out)
        os.close(log)
        with os.fdopen(failure_in, "rb") as pipe:
            reason = pipe.read().decode("utf-8", "replace")
        if reason:
            self.status["reason"] = f"could not start {orders['argv'][0]}: {reason}"
        return child

    def _become_child(self, log: int) -> None:
        os.setsid()
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # lxc-attach starts its command with SIGINT, SIGQUIT and SIGPIPE ignored, and that would be inherited.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.umask(0o022)
        user = self.orders.get("user")
        if user and user != "root":
            entry = pwd.getpwnam(user)
            os.initgroups(entry.pw_name, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        os.chdir(self.orders["cwd"])

    def _wait_for(self, child: int) -> int:
        """Until the run's own process ends: its exit code, or minus the signal that killed it."""
        deadline: Optional[float] = None
        killed = False
        code: Optional[int] = None
        while code is None:
            got = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}, POLL_S)
            if got is not None and got.si_signo in (signal.SIGTERM, signal.SIGINT):
                # Signal first: writing may fail. A second stop may shorten the grace of the first.
                self._signal_group(child, signal.SIGTERM)
                asked = time.monotonic() + self._grace()
                deadline = asked if deadline is None else min(deadline, asked)
                self._stopping = True
                self.status["state"] = "stopping"
                self._write()
            if deadline is not None and time.monotonic() >= deadline and not killed:
                killed = True
                self._signal_group(child, signal.SIGKILL)
            code = self._reap(child)
        return code

    def _reap(self, child: int) -> Optional[int]:
        code = None
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return code
            if pid == 0:
                return code
            if pid == child:
                code = os.waitstatus_to_exitcode(raw)

    def _end_the_rest(self) -> list[str]:
        """TERM, grace, KILL for what the run's own process left behind. Returns the commands that had to be killed."""
        procs.end_all(self._rest, signal.SIGTERM, self._grace(), self._reap_all)
        stubborn = [procs.command_of(pid) for pid in self._rest()]
        procs.end_all(self._rest, signal.SIGKILL, KILL_S, self._reap_all)
        self._reap_all()
        return stubborn

    def _reap_all(self) -> None:
        self._reap(0)

    def _rest(self) -> list[int]:
        ours = set(procs.descendants(os.getpid())) | set(procs.in_environment_of(f"CTDEPLOY_RUN_DIR={self.folder}"))
        return sorted(ours - {os.getpid()})

    def _signal_group(self, child: int, number: int) -> None:
        try:
            os.killpg(child, number)
        except ProcessLookupError:
            procs.send_signal(child, number)

    def _stop_asked(self) -> bool:
        return self._stopping or os.path.exists(os.path.join(self.folder, "stop.json"))

    def _grace(self) -> float:
        asked = read_json(os.path.join(self.folder, "stop.json")) or {}
        return float(asked.get("grace_s", self.orders["grace_s"]))

    def _write(self) -> bool:
        # The folder may have been removed, and another run of that name may have been made since: not ours to write in.
        if _identity_of(self.folder) != self._folder_is:
            return True
        try:
            replace_json(os.path.join(self.folder, "status.json"), self.status)
        except OSError:
            return False
        return True


def _identity_of(folder: str) -> Optional[tuple[int, int]]:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def main() -> None:
    """Read the orders, let go of whoever started us, supervise."""
    orders = json.loads(sys.stdin.readline())
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    errors = os.open(
        os.path.join(orders["run_dir"], "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
    )
    os.dup2(errors, 2)
    Supervisor(orders).run()
