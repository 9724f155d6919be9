"""Host keys, checked strictly. Our own reading of known_hosts: paramiko's stops at the first line with a marker
(`@cert-authority`, `@revoked`) and loses every key after it."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    file: Path
    line: int
    marker: str  # "", "@revoked" or "@cert-authority"
    patterns: tuple[str, ...]
    key_type: str
    key: bytes

    def speaks_of(self, name: str) -> bool:
        """Whether the line is about this host name (`host`, or `[host]:port` where the port is not 22)."""
        matched = False
        for pattern in self.patterns:
            negated = pattern.startswith("!")
            if _matches(pattern.removeprefix("!"), name):
                if negated:
                    return False
                matched = True
        return matched


def read(files: Iterable[Path]) -> list[KnownKey]:
    """Every key line of these files. A file that is not there has none; an odd line is passed over, not the rest."""
    keys = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            key = _parse(file, number, line)
            if key is not None:
                keys.append(key)
    return keys


def lookup_name(address: str, port: int) -> str:
    """The name under which OpenSSH files a host."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


def fingerprint(key: bytes) -> str:
    """A key's fingerprint as ssh-keygen prints it: SHA256:..."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _parse(file: Path, number: int, line: str) -> KnownKey | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3:
        return None
    try:
        key = base64.b64decode(fields[2], validate=True)
    except binascii.Error:
        return None
    return KnownKey(file, number, marker, tuple(fields[0].split(",")), fields[1], key)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        try:
            salt, wanted = (base64.b64decode(part) for part in pattern.split("|")[2:4])
        except (ValueError, binascii.Error):
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)
    if "*" in pattern or "?" in pattern:
        # Only `*` and `?` are wildcards in OpenSSH; brackets belong to `[host]:port`.
        return fnmatch.fnmatchcase(name, pattern.lower().replace("[", "[[]"))
    return pattern.lower() == name
