"""What ~/.ssh/config says about a host, asked of OpenSSH itself where it is installed (it knows Include and Match)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ctdeploy.errors import NetworkError
from ctdeploy.transport.base import Endpoint

DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True)
class Login:
    """Everything that a login needs, after ~/.ssh/config."""

    address: str
    port: int
    user: str
    identities: tuple[Path, ...]
    identities_only: bool
    known_hosts: tuple[Path, ...]
    known_as: str | None  # HostKeyAlias
    jumps: tuple[str, ...]  # [user@]host[:port], outermost first


def resolve(endpoint: Endpoint) -> Login:
    """Endpoint values win over ~/.ssh/config, which wins over the defaults. Raises NetworkError."""
    if endpoint.known_hosts is not None:
        # Complete in itself (the lab): the user's own configuration has no say.
        options: dict[str, list[str]] = {}
    elif shutil.which("ssh"):
        options = _ask_openssh(endpoint)
    else:
        options = _ask_paramiko(endpoint)
    first = {key: values[0] for key, values in options.items() if values}
    identities = [endpoint.identity] if endpoint.identity else options.get("identityfile", list(DEFAULT_IDENTITIES))
    if endpoint.known_hosts is not None:
        known_hosts = [endpoint.known_hosts]
    else:
        known_hosts = [
            name
            for key in ("userknownhostsfile", "globalknownhostsfile")
            for value in options.get(key, [])
            for name in value.split()
        ] or list(DEFAULT_KNOWN_HOSTS)
    jump = endpoint.jump or first.get("proxyjump", "none")
    return Login(
        address=first.get("hostname", endpoint.address),
        port=endpoint.port or int(first.get("port", 22)),
        user=endpoint.user or first.get("user") or "root",
        identities=tuple(Path(name).expanduser() for name in identities if name),
        identities_only=bool(endpoint.identity) or first.get("identitiesonly", "no") == "yes",
        known_hosts=tuple(Path(name).expanduser() for name in known_hosts),
        known_as=first.get("hostkeyalias"),
        jumps=() if jump in ("none", "") else tuple(jump.split(",")),
    )


def _ask_openssh(endpoint: Endpoint) -> dict[str, list[str]]:
    # A user of our own keeps `ssh -G` from answering with the local login name as if the file had said so.
    command = ["ssh", "-G", *(["-l", endpoint.user] if endpoint.user else []), "--", endpoint.address]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        words = getattr(error, "stderr", "") or str(error)
        raise NetworkError(
            f"~/.ssh/config cannot be read for {endpoint.address}", next=f"ssh -G {endpoint.address}", remote=words
        ) from error
    options: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    return options


def _ask_paramiko(endpoint: Endpoint) -> dict[str, list[str]]:
    from paramiko import SSHConfig

    path = Path("~/.ssh/config").expanduser()
    if not path.exists():
        return {}
    found = SSHConfig.from_path(str(path)).lookup(endpoint.address)
    return {key: value if isinstance(value, list) else [value] for key, value in found.items()}
