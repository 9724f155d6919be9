"""`pct list`, `pct status` and `pct config`: what is known, without a lock and without a task."""

from __future__ import annotations

import os

from ctdeploy.lab import conf as confs
from ctdeploy.lab.conf import Conf, Section
from ctdeploy.lab.containers.base import Kind
from ctdeploy.lab.layout import NODE
from ctdeploy.lab.pct.caller import narrow, say, show
from ctdeploy.lab.pct.errors import NO_ENTRY, PctError, UsageError, no_config
from ctdeploy.lab.pct.getopt import Call, Command

MIB = 1024 * 1024
PRESSURES = [f"pressure{what}{how}" for what in ("cpu", "io", "memory") for how in ("full", "some")]


def warn(conf: Conf) -> None:
    for line in conf.warnings:
        say(line.encode("utf-8", "surrogateescape") + b"\n")


def _load(vmid: int) -> Conf:
    conf = confs.load(vmid)
    if conf is None:
        raise PctError(no_config(NODE, vmid), NO_ENTRY)
    warn(conf)
    return conf


def _line(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\n"


def list_all(kind: Kind) -> int:
    """pct list: one row per container of this node; nothing at all when there is none."""
    rows = []
    for vmid in confs.ids():
        conf = confs.load(vmid)
        if conf is None:
            continue
        warn(conf)
        status = "running" if kind.init(vmid) else "stopped"
        rows.append((str(vmid), status, conf.value("lock"), conf.value("hostname", f"CT{vmid}")))
    if rows:
        rows.insert(0, ("VMID", "Status", "Lock", "Name"))
    show(b"".join(_line("{:<10} {:<10} {:<12} {:<20}".format(*row)) for row in rows))
    return 0


def status(call: Call, kind: Kind) -> int:
    """pct status, and its numbers with --verbose."""
    conf = _load(call.vmid)
    process = kind.init(call.vmid)
    state = "running" if process else "stopped"
    if not call.flag("verbose"):
        show(_line(f"status: {state}"))
        return 0
    values = _numbers(conf)
    values |= {"status": state, "name": conf.value("hostname", f"CT{call.vmid}"), "type": "lxc", "vmid": call.vmid}
    for key in ("lock", "tags", "template"):
        if conf.value(key):
            values[key] = conf.value(key)
    if process:
        values |= {"pid": process.pid, "uptime": _uptime(process.started)}
        values |= dict.fromkeys(PRESSURES, 0)
    show(b"".join(_line(f"{key}: {values[key]}") for key in sorted(values)))
    return 0


def _numbers(conf: Conf) -> dict[str, object]:
    zero = ("disk", "diskread", "diskwrite", "mem", "netin", "netout", "swap", "uptime")
    return {
        **dict.fromkeys(zero, 0),
        "cpus": conf.value("cores") or conf.value("cpulimit") or os.cpu_count() or 1,
        "maxdisk": 8 * 1024 * MIB,
        "maxmem": int(conf.value("memory", "512")) * MIB,
        "maxswap": int(conf.value("swap", "512")) * MIB,
    }


def _uptime(started: int) -> int:
    with open("/proc/uptime") as file:
        now = float(file.read().split()[0])
    return int(now - started / os.sysconf("SC_CLK_TCK"))


def config(call: Call, command: Command) -> int:
    """pct config: pending changes applied unless --current, a snapshot's section with --snapshot."""
    conf = _load(call.vmid)
    section = conf.main
    snapshot = call.options.get("snapshot")
    if snapshot is not None:
        found = conf.sections.get(snapshot)
        if found is None or snapshot == confs.PENDING:
            raise PctError(f"snapshot '{snapshot}' does not exist\n")
        section = found
    if conf.invalid and snapshot is None:
        problems = "\n".join(f"{key}: {why}" for key, why in sorted(conf.invalid.items()))
        raise UsageError(f"Result verification failed\n{problems}", command.usage)
    values = dict(section.values)
    if snapshot is None and not call.flag("current"):
        values = _with_pending(values, conf.sections.get(confs.PENDING))
    lines = []
    for key in sorted(values):
        if key == "digest":
            continue
        value = confs.escape(values[key]) if key == "description" else values[key]
        lines.append(f"{key}: {value}")
    lines += [f"{key}: {value}" for key, value in section.raw]
    show(b"".join(narrow(line) + b"\n" if line.isascii() else _line(line) for line in lines))
    return 0


def _with_pending(values: dict[str, str], pending: Section | None) -> dict[str, str]:
    if pending is None:
        return values
    changed = {**values, **{key: value for key, value in pending.values.items() if key != "delete"}}
    for name in pending.values.get("delete", "").replace(",", " ").split():
        changed.pop(name.lstrip("!"), None)
    return changed
