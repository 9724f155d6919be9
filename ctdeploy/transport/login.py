"""Who is there, and may we in: host keys against known_hosts, then keys of the agent and of files."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

import paramiko

from ctdeploy.errors import NetworkError
from ctdeploy.transport import known_hosts
from ctdeploy.transport.ssh_config import Login


def prefer_stored_types(transport: paramiko.Transport, keys: list[known_hosts.KnownKey]) -> None:
    """Ask for a host key of a type that known_hosts has."""
    # Ask first for a key of a type that known_hosts has, as OpenSSH does: else a good host looks unknown.
    stored = {key.key_type for key in keys if not key.marker}
    if "ssh-rsa" in stored:
        stored |= {"rsa-sha2-512", "rsa-sha2-256"}
    options = transport.get_security_options()
    options.key_types = sorted(options.key_types, key=lambda name: name not in stored)


def check_host_key(key: paramiko.PKey, keys: list[known_hosts.KnownKey], name: str, host: str, hop: Login) -> None:
    """Strict: a host key that known_hosts does not hold for this very host is refused. Raises NetworkError."""
    offered, shown = key.asbytes(), known_hosts.fingerprint(key.asbytes())
    about = [known for known in keys if known.speaks_of(name)]
    for known in about:
        if known.marker == "@revoked" and known.key == offered:
            raise NetworkError(
                f"{host} shows a host key that {known.file}:{known.line} revokes ({shown}): not connected"
            )
    plain = [known for known in about if not known.marker]
    if any(known.key == offered for known in plain):
        return
    files = ", ".join(str(file) for file in hop.known_hosts[:1])
    if plain:
        where = ", ".join(f"{known.file}:{known.line} ({known.key_type})" for known in plain)
        raise NetworkError(
            f"the host key of {host} ({name}) has changed: it shows {key.get_name()} {shown},"
            f" but {where} says otherwise",
            next=f"if the host was really reinstalled: ssh-keygen -R '{name}' and check the fingerprint on its console",
        )
    raise NetworkError(
        f"the host key of {host} ({name}) is not known: it shows {key.get_name()} {shown}",
        next=f"compare it on the host's console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then add it to "
        f"{files}: ssh-keyscan -p {hop.port} {hop.address}",
    )


def authenticate(transport: paramiko.Transport, hop: Login, host: str) -> None:
    """Log in with a key of the agent or a file. Raises NetworkError that names what was tried."""
    tried: list[str] = []
    locked: list[str] = []
    for label, key in _keys(hop, locked):
        try:
            transport.auth_publickey(hop.user, key)
        except paramiko.AuthenticationException:
            tried.append(label)
            continue
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise NetworkError(
                f"{host} closed the connection during login, after {len(tried) + 1} key(s): {error}",
                next=f'name one key in [hosts.{host}]: identity = "~/.ssh/id_ed25519"',
            ) from error
        if transport.is_authenticated():
            return
        tried.append(label)
    what = f"tried {', '.join(tried)}" if tried else "there was no key to try"
    if locked:
        what += f"; {', '.join(locked)} needs a passphrase"
    raise NetworkError(
        f"{host} does not let {hop.user} in ({what})",
        next=f"ssh-add {locked[0]}" if locked else f"ssh-copy-id -p {hop.port} {hop.user}@{hop.address}",
    )


def _keys(hop: Login, locked: list[str]) -> list[tuple[str, paramiko.PKey]]:
    """Keys to offer, the asked-for ones first. Files that need a passphrase are named in `locked`."""
    found: list[tuple[str, paramiko.PKey]] = []
    agent_keys = paramiko.Agent().get_keys()
    wanted = {public for public in (_public_half(path) for path in hop.identities) if public}
    found += [(f"agent key {key.comment or key.get_name()}", key) for key in agent_keys if key.asbytes() in wanted]
    in_agent = {key.asbytes() for _, key in found}
    for path in hop.identities:
        if not path.is_file() or _public_half(path) in in_agent:
            continue
        try:
            found.append((str(path), paramiko.PKey.from_path(path)))
        except (paramiko.PasswordRequiredException, TypeError):
            # from_path on an encrypted key without a passphrase is a TypeError of `cryptography` in paramiko 5.
            locked.append(str(path))
        except (paramiko.SSHException, ValueError, OSError) as error:
            raise NetworkError(f"{path} cannot be read as a private key: {error}") from error
    if not hop.identities_only:
        found += [
            (f"agent key {key.comment or key.get_name()}", key) for key in agent_keys if key.asbytes() not in in_agent
        ]
    return found


def _public_half(path: Path) -> bytes | None:
    try:
        return base64.b64decode(Path(f"{path}.pub").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, binascii.Error, UnicodeDecodeError):
        return None
