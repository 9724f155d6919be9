"""`pct start`, `stop`, `shutdown`: tasks that take the container's lock."""

from __future__ import annotations

import os

from ctdeploy.lab import conf as confs
from ctdeploy.lab.conf import Conf, properties
from ctdeploy.lab.containers import store
from ctdeploy.lab.containers.base import Kind, StartFailed
from ctdeploy.lab.layout import NODE
from ctdeploy.lab.pct import tasks
from ctdeploy.lab.pct.caller import show
from ctdeploy.lab.pct.errors import FAILED, PctError, TaskError, no_config
from ctdeploy.lab.pct.getopt import Call
from ctdeploy.lab.pct.locks import config_lock
from ctdeploy.lab.pct.query import warn

SHUTDOWN_S = 60


def start(call: Call, kind: Kind) -> int:
    """pct start. "Already running" makes no task."""
    vmid = call.vmid
    if kind.init(vmid):
        raise PctError(f"CT {vmid} already running\n")

    def work() -> None:
        with config_lock(vmid):
            conf = _conf(vmid)
            if not call.flag("skiplock"):
                _refuse_locked(conf, allowed="mounted")
            _start(vmid, conf, kind)

    return 0 if tasks.run("vzstart", vmid, work) else FAILED


def _start(vmid: int, conf: Conf, kind: Kind) -> None:
    try:
        spec = store.spec(vmid, conf)
    except store.NoSuchStorage as error:
        raise TaskError(f"storage '{error}' does not exist") from error
    for key, value in sorted(conf.main.values.items()):
        if key.startswith("net") and key[3:].isdigit():
            bridge = properties(value, "bridge").get("bridge", "")
            # The lab's network is the machine's loopback; vmbr0 is taken to be there, as on every node.
            if bridge and bridge != "vmbr0" and not os.path.exists(f"/sys/class/net/{bridge}"):
                raise TaskError(f"bridge '{bridge}' does not exist")
        if key.startswith("dev") and key[3:].isdigit() and not os.path.exists(store.device_path(value)):
            raise TaskError(f"Device {store.device_path(value)} does not exist")
        if key.startswith("mp") and key[2:].isdigit():
            source = properties(value, "volume").get("volume", "")
            if source.startswith("/") and not os.path.exists(source):
                _startup_failed(
                    vmid,
                    [
                        "run_buffer: 571 Script exited with status 2",
                        f'lxc_init: 845 Failed to run lxc.hook.pre-start for container "{vmid}"',
                        f'__lxc_start: 2034 Failed to initialize container "{vmid}"',
                    ],
                )
    try:
        kind.start(spec)
    except StartFailed as error:
        _startup_failed(vmid, error.lines)
    if kind.init(vmid) is None:
        raise TaskError(f"unable to get PID for CT {vmid} (not running?)")


def _startup_failed(vmid: int, lines: list[str]) -> None:
    show("".join(f"{line}\n" for line in lines).encode())
    raise TaskError(f"startup for container '{vmid}' failed")


def stop(call: Call, kind: Kind) -> int:
    """pct stop: the end, at once."""
    vmid = call.vmid
    if kind.init(vmid) is None:
        raise PctError(f"CT {vmid} not running\n")

    def work() -> None:
        with config_lock(vmid):
            conf = _conf(vmid)
            if not call.flag("skiplock"):
                _refuse_locked(conf, allowed="mounted")
            kind.kill(vmid)

    return 0 if tasks.run("vzstop", vmid, work) else FAILED


def shutdown(call: Call, kind: Kind) -> int:
    """pct shutdown: SIGPWR to the first process; after the time-out an error, or with --forceStop the end."""
    vmid = call.vmid
    timeout = int(call.options.get("timeout", SHUTDOWN_S))
    if kind.init(vmid) is None:
        raise PctError(f"CT {vmid} not running\n")

    def work() -> None:
        with config_lock(vmid):
            _refuse_locked(_conf(vmid))
            if kind.shut_down(vmid, timeout):
                return
            if call.flag("forceStop"):
                kind.kill(vmid)
                return
            show(f"command 'lxc-stop -n {vmid} --nokill --timeout {timeout}' failed: exit code 1\n".encode())
            raise TaskError("container did not stop")

    return 0 if tasks.run("vzshutdown", vmid, work) else FAILED


def _conf(vmid: int) -> Conf:
    conf = confs.load(vmid)
    if conf is None:
        raise TaskError(no_config(NODE, vmid).rstrip("\n"))
    warn(conf)
    return conf


def _refuse_locked(conf: Conf, allowed: str = "") -> None:
    lock = conf.value("lock")
    if lock and lock != allowed:
        raise TaskError(f"CT is locked ({lock})")
