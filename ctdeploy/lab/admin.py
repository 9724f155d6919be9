"""The lab's own program inside its host, behind `ctdeploy lab ct` and `ctdeploy lab status`. Answers in JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ctdeploy.lab import conf, seed
from ctdeploy.lab.containers import ids, store
from ctdeploy.lab.containers.namespaces import NamespaceContainers
from ctdeploy.lab.pct.main import COMMANDS

KIND = NamespaceContainers()


class Refused(Exception):
    """A request that cannot be done, in one sentence."""


def main() -> None:
    request = json.loads(sys.argv[1])
    try:
        answer = {"ok": globals()[f"do_{request.pop('do')}"](**request)}
    except Refused as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


def do_describe() -> dict[str, Any]:
    """The containers, what pct can do, and whether ids can be shifted."""
    rows = []
    for vmid in conf.ids():
        found = conf.load(vmid)
        if found:
            state = "running" if KIND.init(vmid) else "stopped"
            rows.append({"id": vmid, "name": found.value("hostname", f"CT{vmid}"), "status": state})
    return {"containers": rows, "commands": sorted(COMMANDS), "shifted_ids": ids.can_shift(), "ids": ids.host_ids()}


def do_add(vmid: int, hostname: str, like: int | None, start: bool) -> None:
    if not 100 <= vmid <= 999_999_999:
        raise Refused(f"a container's id is a number from 100 to 999999999, not {vmid}")
    if os.path.exists(conf.path(vmid)):
        raise Refused(f"container {vmid} exists already")
    problem = conf.check_hostname(hostname)
    if problem:
        raise Refused(problem)
    settings = seed.default_settings(hostname)
    raw: list[str] = []
    if like is not None:
        model = conf.load(like)
        if model is None:
            raise Refused(f"there is no container {like} to be like")
        kept = {key: value for key, value in model.main.values.items() if key not in ("rootfs", "lock", "parent")}
        settings = {**kept, "hostname": hostname}
        raw = [f"{key}: {value}" for key, value in model.main.raw]
    store.make(vmid, settings, raw, interpreter=like is None)
    if start and os.spawnv(os.P_WAIT, "/usr/sbin/pct", ["pct", "start", str(vmid)]) != 0:
        raise Refused(f"container {vmid} was made but did not start")


def do_set(vmid: int, key: str, value: str) -> None:
    if not os.path.exists(conf.path(vmid)):
        raise Refused(f"there is no container {vmid}")
    if "\n" in value or "\r" in value:
        raise Refused("a value is one line")
    problem = conf.check(key, value) if value else None
    if key == "hostname":
        problem = conf.check_hostname(value)
    if problem or not conf.known(key):
        raise Refused(f"{key}: {problem or 'unknown setting'}")
    conf.replace_values(vmid, {key: value or None})


def do_remove(vmid: int) -> None:
    if not os.path.exists(conf.path(vmid)):
        raise Refused(f"there is no container {vmid}")
    if KIND.init(vmid):
        KIND.kill(vmid)
    store.remove(vmid)
