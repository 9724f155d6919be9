"""known_hosts as OpenSSH has it."""

from __future__ import annotations

import base64
from pathlib import Path

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctdeploy.transport import known_hosts

KEY = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519" + b"k" * 36).decode()
OTHER = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519" + b"o" * 36).decode()


def keys(tmp_path: Path, text: str) -> list[known_hosts.KnownKey]:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return known_hosts.read([file, tmp_path / "is-not-there"])


@pytest.mark.parametrize(
    ("pattern", "name", "speaks"),
    [
        ("pve1", "pve1", True),
        ("PVE1.example.net", "pve1.example.net", True),
        ("pve1", "pve2", False),
        ("pve1,10.0.0.1", "10.0.0.1", True),
        ("*.example.net", "pve1.example.net", True),
        ("*.example.net,!pve9.example.net", "pve9.example.net", False),
        ("pve?", "pve1", True),
        ("[pve1]:2222", "[pve1]:2222", True),
        ("[pve1]:2222", "pve1", False),
        ("[*.net]:2222", "[a.net]:2222", True),
        ("pve1", "[pve1]:2222", False),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, name: str, speaks: bool):
    (key,) = keys(tmp_path, f"{pattern} ssh-ed25519 {KEY} a comment\n")
    assert key.speaks_of(name) is speaks


@given(st.from_regex(r"[a-z0-9.-]{1,40}", fullmatch=True))
def test_a_hashed_name_is_the_one_that_paramiko_hashes(name: str):
    hashed = paramiko.HostKeys.hash_host(name)
    key = known_hosts.KnownKey(Path("f"), 1, "", (hashed,), "ssh-ed25519", b"")
    assert key.speaks_of(name)
    assert not key.speaks_of(name + "x")


def test_lines_with_markers_odd_lines_and_comments_lose_no_key(tmp_path: Path):
    found = keys(
        tmp_path,
        f"""# comment

@cert-authority *.example.net ssh-ed25519 {OTHER}
pve1 ssh-ed25519
pve1 ssh-ed25519 not-base64!
@revoked pve1 ssh-ed25519 {OTHER}
pve1 ssh-ed25519 {KEY}
""",
    )
    assert [(key.line, key.marker) for key in found] == [(3, "@cert-authority"), (6, "@revoked"), (7, "")]


def test_the_name_of_another_port_is_bracketed():
    assert known_hosts.lookup_name("PVE1", 22) == "pve1"
    assert known_hosts.lookup_name("pve1", 2222) == "[pve1]:2222"
