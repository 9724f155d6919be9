"""Runs in the container: launch, state, log, stop. status.json tells the end of a run, never an exit code of pct."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Optional, Tuple

from ctdeploy.remote.payloads import procs
from ctdeploy.remote.payloads.account import account, environment
from ctdeploy.remote.payloads.files import Failure, fsync_folder, read_json, read_lines, read_object, replace_json

RUN_NAME = re.compile(r"^r(\d+)$")
ENDED = ("done", "failed", "stopped", "lost")
LAUNCH_S = 20.0
KILL_S = 10.0
CHUNK = 1 << 20
BLOCK = 1 << 16


class Runs:
    """The runs of one app below `<dest>/<app>/runs/`."""

    def __init__(self, home: str, app: str) -> None:
        self.app = app
        self.folder = os.path.join(home, "runs")

    def names(self) -> list[str]:
        """Run ids, oldest first, ordered as numbers."""
        if not os.path.isdir(self.folder):
            return []
        found = [name for name in os.listdir(self.folder) if RUN_NAME.match(name)]
        return sorted(found, key=lambda name: int(name[1:]))

    def pick(self, name: Optional[str]) -> str:
        """The run asked for, or the newest. Raises Failure("missing")."""
        names = self.names()
        if not names:
            raise Failure("missing", f"{self.app} has no run here yet", "ctdeploy run")
        if name is None:
            return names[-1]
        if name not in names:
            raise Failure("missing", f"{self.app} has no run {name} here; the newest is {names[-1]}", "ctdeploy status")
        return name

    def path(self, name: str, *parts: str) -> str:
        """A path in a run's folder."""
        return os.path.join(self.folder, name, *parts)

    def launch(self, orders: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Make the run's folder, start its supervisor and wait until that says that the process is there.

        `orders`: release (name, number, path), entry, args, env, user, who, grace_s. Raises Failure("run").
        """
        entry_of_user = account(orders["user"])
        name, folder = self._new_folder()
        release = orders["release"]
        entry = os.path.join(release["path"], orders["entry"])
        argv = [sys.executable, entry, *orders["args"]]
        env = environment(orders["user"], orders["env"])
        env.update(
            CTDEPLOY_RUN_DIR=folder,
            CTDEPLOY_RUN_ID=name,
            CTDEPLOY_RELEASE=str(release["number"]),
            PYTHONPYCACHEPREFIX=os.path.join(folder, "pycache"),
        )
        env.setdefault("PYTHONUNBUFFERED", "1")
        run = {
            "schema": 1,
            "run": name,
            "app": self.app,
            "release": release["name"],
            "argv": argv,
            "cwd": release["path"],
            "who": orders["who"],
            "user": entry_of_user.pw_name,
            "at": time.time(),
        }
        replace_json(os.path.join(folder, "env"), env, mode=0o600)
        replace_json(os.path.join(folder, "run.json"), run)
        os.mkdir(os.path.join(folder, "checkpoints"), 0o755)
        for path in (folder, os.path.join(folder, "checkpoints")):
            os.chown(path, entry_of_user.pw_uid, entry_of_user.pw_gid)
        self._start_supervisor(
            payload,
            dict(
                run,
                run_dir=folder,
                env=env,
                attempt=1,
                grace_s=orders["grace_s"],
            ),
        )
        deadline = time.monotonic() + LAUNCH_S
        while time.monotonic() < deadline:
            if read_json(os.path.join(folder, "status.json")) is not None:
                return self.describe(name)
            time.sleep(0.02)
        raise Failure("run", f"the supervisor of {name} did not start", None, remote=self._supervisor_words(name))

    def describe(self, name: str) -> dict[str, Any]:
        """One run: what was launched, its state as it is now, and where it got to."""
        run = read_object(self.path(name, "run.json")) or {"run": name}
        status = self._status(name)
        result = dict(run, path=self.path(name))
        result["log_size"] = _size(self.path(name, "log"))
        result["metrics"] = _last_step(self.path(name, "metrics.jsonl"))
        if status is None:
            # Between mkdir and the supervisor's first word; for ever, if the machine went down right there.
            result["state"] = "starting" if time.time() - float(run.get("at", 0)) < LAUNCH_S else "lost"
            return result
        for key in ("attempt", "started", "ended", "exit_code", "signal", "oom_kill", "left", "reason", "note"):
            if key in status:
                result[key] = status[key]
        result["state"] = _state_now(status)
        result["pid"] = (status["identity"].get("child") or {}).get("pid")
        result["supervised"] = procs.is_alive(status["identity"].get("supervisor"))
        return result

    def read_log(self, name: str, offset: int, wait_s: float, interrupted: Callable[[float], bool]) -> dict[str, Any]:
        """Log bytes from `offset` on, at most a mebibyte; waits up to `wait_s` for the first of them.

        The state is read before the bytes, so an ended run with no more bytes is really at its end.
        """
        path = self.path(name, "log")
        deadline = time.monotonic() + wait_s
        while True:
            described = self.describe(name)
            size = _size(path)
            if size < offset:
                return {"run": described, "offset": 0, "size": size, "truncated": offset - size, "data": b""}
            if size > offset:
                with open(path, "rb") as file:
                    file.seek(offset)
                    return {"run": described, "offset": offset, "size": size, "data": file.read(CHUNK)}
            if described["state"] in ENDED or time.monotonic() >= deadline or interrupted(0.1):
                return {"run": described, "offset": offset, "size": size, "data": b""}

    def last_lines(self, name: str, lines: int) -> Tuple[int, int]:
        """Where the last `lines` lines of the log begin, and where they end."""
        path = self.path(name, "log")
        at = size = _size(path)
        if lines == 0 or size == 0:
            return size, size
        wanted = lines
        with open(path, "rb") as file:
            while at > 0:
                start = max(0, at - BLOCK)
                file.seek(start)
                block = file.read(at - start)
                if at == size and block.endswith(b"\n"):
                    wanted += 1  # the newline that ends the last line begins none
                found = block.count(b"\n")
                if found >= wanted:
                    cut = len(block)
                    for _ in range(wanted):
                        cut = block.rindex(b"\n", 0, cut)
                    return start + cut + 1, size
                wanted -= found
                at = start
        return 0, size

    def to_stop(self, name: Optional[str]) -> str:
        """The run that a stop means: the one named, else the one that lives. Raises Failure("missing"), ("usage")."""
        if name is not None:
            return self.pick(name)
        living = [each for each in self.names() if self.describe(each)["state"] not in ENDED]
        if len(living) > 1:
            raise Failure(
                "usage", f"several runs of {self.app} live: {', '.join(living)}", f"ctdeploy stop {living[-1]}"
            )
        return living[0] if living else self.pick(None)

    def ask_to_stop(self, name: str, grace_s: float, who: str) -> None:
        """Tell the supervisor to end the run: TERM, grace, KILL. Where the supervisor is gone, do it from here."""
        lives = self.describe(name)["state"] not in ENDED
        if lives:
            with contextlib.suppress(OSError):  # a full disk must not keep a run alive
                replace_json(self.path(name, "stop.json"), {"grace_s": grace_s, "who": who, "at": time.time()})
        deadline = time.monotonic() + LAUNCH_S
        while self.describe(name)["state"] == "starting" and time.monotonic() < deadline:
            time.sleep(0.02)  # its supervisor is coming up, and will see stop.json or our signal
        status = self._status(name)
        if status is not None and procs.is_alive(status["identity"].get("supervisor")):
            procs.send_signal(status["identity"]["supervisor"]["pid"], signal.SIGTERM)
            return
        for step, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
            procs.end_all(lambda: self._members(name), step, patience_s, lambda: None)
        if status is not None and lives and not self._members(name):
            status.update(state="stopped", ended=time.time(), note="its supervisor was gone")
            replace_json(self.path(name, "status.json"), status)

    def _status(self, name: str) -> Optional[dict[str, Any]]:
        """status.json, where it is one."""
        status = read_object(self.path(name, "status.json"))
        return status if status and "state" in status and isinstance(status.get("identity"), dict) else None

    def left_over(self, name: str) -> list[dict[str, Any]]:
        """Processes that still belong to the run, by its folder in their environment."""
        return [{"pid": pid, "command": procs.command_of(pid)} for pid in self._members(name)]

    def _members(self, name: str) -> list[int]:
        return procs.in_environment_of(f"CTDEPLOY_RUN_DIR={self.path(name)}")

    def _new_folder(self) -> tuple[str, str]:
        os.makedirs(self.folder, exist_ok=True)
        # Also those whose folders were removed: an id that was once said means one run for ever.
        told = [
            str(line.get("run")) for line in read_lines(os.path.join(os.path.dirname(self.folder), "history.jsonl"))
        ]
        ids = [name for name in [*self.names(), *told] if RUN_NAME.match(name)]
        number = 1 + max([int(name[1:]) for name in ids] + [0])
        while True:
            folder = os.path.join(self.folder, f"r{number}")
            try:
                os.mkdir(folder, 0o755)
            except FileExistsError:
                number += 1
                continue
            fsync_folder(self.folder)
            return f"r{number}", folder

    def _start_supervisor(self, payload: bytes, orders: dict[str, Any]) -> None:
        # The orders travel on standard input: an environment in argv would be readable by every user.
        from ctdeploy.remote.payloads import BOOT

        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )
        assert child.stdin is not None
        with child.stdin as pipe:
            pipe.write(b"%d\n" % len(payload) + payload + json.dumps(orders).encode("ascii") + b"\n")

    def _supervisor_words(self, name: str) -> str:
        try:
            with open(self.path(name, "supervisor.log"), encoding="utf-8", errors="replace") as file:
                return file.read()[-2000:]
        except FileNotFoundError:
            return ""


def _state_now(status: dict[str, Any]) -> str:
    """The state that was written down, unless the processes that it speaks of are gone."""
    state: str = status["state"]
    if state in ENDED:
        return state
    identity = status["identity"]
    now = procs.boot_identity()
    if any(identity.get(key) != now[key] for key in now):
        return "lost"
    if procs.is_alive(identity.get("supervisor")) or procs.is_alive(identity.get("child")):
        return state
    return "lost"


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _last_step(path: str) -> Optional[dict[str, Any]]:
    """The newest complete line of a metrics.jsonl that tells of a step."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, _size(path) - 65536))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "step" in value:
            return value
    return None
