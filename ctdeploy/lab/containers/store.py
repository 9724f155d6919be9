"""The containers of the lab's host: made, removed, and read from their .conf files into what a kind can start."""

from __future__ import annotations

import json
import os
import shutil

from ctdeploy.lab import conf as confs
from ctdeploy.lab import layout, tree
from ctdeploy.lab.conf import Conf, properties
from ctdeploy.lab.containers import ids
from ctdeploy.lab.containers.spec import Mount, Spec
from ctdeploy.lab.layout import VENV_IN_CONTAINER

IMAGES = "/var/lib/vz/images"
INIT = "/init"
# Reaps what is orphaned (a shell's `wait` waits for any child) and ends when asked to, as lxc-stop asks: SIGPWR.
INIT_SCRIPT = """\
#!/bin/sh
trap 'exit 0' PWR TERM
trap '' HUP
while :; do
    sleep 2147483647 &
    wait $!
done
"""


class NoSuchStorage(Exception):
    """The rootfs names a storage that this host has not."""


def rootfs_path(conf: Conf, vmid: int) -> str:
    """Where the volume of `rootfs` lies. The one storage is `local`, a folder. Raises NoSuchStorage."""
    volume = properties(conf.value("rootfs"), "volume").get("volume", f"local:{vmid}/subvol-{vmid}-disk-0.subvol")
    if volume.startswith("/"):
        return volume
    storage, _, name = volume.partition(":")
    if storage not in ("local", "btr"):
        raise NoSuchStorage(storage)
    return f"{IMAGES}/{name}"


def spec(vmid: int, conf: Conf) -> Spec:
    """What a kind needs to start this container. Raises NoSuchStorage."""
    mounts = [mount for mount in (_mount_point(value) for _, value in _numbered(conf, "mp")) if mount]
    mounts += [_mount_entry(value) for key, value in conf.main.raw if key == "lxc.mount.entry"]
    mounts += [_device(value) for _, value in _numbered(conf, "dev")]
    return Spec(
        vmid=vmid,
        hostname=conf.value("hostname", f"CT{vmid}"),
        unprivileged=conf.flag("unprivileged"),
        rootfs=rootfs_path(conf, vmid),
        mounts=tuple(mounts),
        init=(INIT,),
    )


def _numbered(conf: Conf, stem: str) -> list[tuple[str, str]]:
    keys = [key for key in conf.main.values if key.startswith(stem) and key[len(stem) :].isdigit()]
    return [(key, conf.main.values[key]) for key in sorted(keys, key=lambda key: int(key[len(stem) :]))]


def _mount_point(value: str) -> Mount | None:
    parts = properties(value, "volume")
    source = parts.get("volume", "")
    if not source.startswith("/") or "mp" not in parts:
        return None
    return Mount(source, parts["mp"], readonly=parts.get("ro") == "1", create="dir")


def _mount_entry(value: str) -> Mount:
    """A line of lxc.mount.entry (fstab(5) with lxc's own options)."""
    fields = value.split()
    options = fields[3].split(",") if len(fields) > 3 else []
    create = next((option.removeprefix("create=") for option in options if option.startswith("create=")), "")
    source = fields[0].replace("\\040", " ")
    target = (fields[1] if len(fields) > 1 else "").replace("\\040", " ")
    return Mount(source, target, readonly="ro" in options, optional="optional" in options, create=create)


def device_path(value: str) -> str:
    """The host's path of a devN entry."""
    return properties(value, "path").get("path", "")


def _device(value: str) -> Mount:
    path = device_path(value)
    return Mount(path, path, create="file")


def make(vmid: int, settings: dict[str, str], raw: list[str], *, interpreter: bool = True) -> None:
    """Create a container: its root folder and its .conf. With `interpreter`, /opt/venv and its base are mounted in.

    Raises FileExistsError when the id is taken.
    """
    if os.path.exists(confs.path(vmid)):
        raise FileExistsError(vmid)
    settings = {
        "arch": "amd64",
        "hostname": f"CT{vmid}",
        "memory": "512",
        "ostype": "debian",
        "rootfs": f"local:{vmid}/subvol-{vmid}-disk-0.subvol,size=8G",
        "swap": "512",
        **settings,
    }
    raw = list(raw) + (interpreter_lines() if interpreter else [])
    conf = confs.parse(vmid, "".join(f"{key}: {value}\n" for key, value in settings.items()))
    root = rootfs_path(conf, vmid)
    skeleton(root, settings["hostname"])
    ids.own(root, ids.shift_for(conf.flag("unprivileged")))
    lines = [f"{key}: {value}" for key, value in sorted(settings.items())] + raw
    confs.write(vmid, "\n".join(lines) + "\n")


def skeleton(root: str, hostname: str) -> None:
    """A small Debian-like root folder; /usr is mounted into it at every start."""
    os.makedirs(root)
    os.chmod(root, 0o755)
    tree.folders(root)
    tree.accounts(root)
    tree.write(f"{root}{INIT}", INIT_SCRIPT, 0o755)
    tree.write(f"{root}/etc/hostname", f"{hostname}\n")
    tree.write(f"{root}/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {hostname}\n")


def remove(vmid: int) -> None:
    """Remove a stopped container's root folder and .conf."""
    conf = confs.load(vmid)
    if conf:
        shutil.rmtree(rootfs_path(conf, vmid), ignore_errors=True)
        os.unlink(confs.path(vmid))


def interpreter_lines() -> list[str]:
    """The lxc.mount.entry lines that put the machine's venv and its base interpreter into a container."""
    with open(layout.INTERPRETER) as file:
        targets: dict[str, str] = json.load(file)
    entries = {layout.VENV: VENV_IN_CONTAINER, **targets}
    lines = []
    for source, target in entries.items():
        inside = target.lstrip("/").replace(" ", "\\040")
        lines.append(f"lxc.mount.entry: {source} {inside} none rbind,ro,create=dir 0 0")
    return lines


def refresh_interpreter(vmid: int) -> None:
    """After a boot with another Python: the lines of a container that has them point at the present one."""
    with open(confs.path(vmid), encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()
    ours = [line for line in lines if line.startswith(f"lxc.mount.entry: {layout.RUN}/")]
    if ours and ours != interpreter_lines():
        first = lines.index(ours[0])
        kept = [line for line in lines if line not in ours]
        confs.write(vmid, "\n".join([*kept[:first], *interpreter_lines(), *kept[first:]]) + "\n")
