"""The transport against the lab's SSH server, which is another implementation than the client."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctdeploy.errors import NetworkError
from ctdeploy.lab.host import LabEndpoint
from ctdeploy.transport.base import Endpoint, Process
from ctdeploy.transport.ssh import SSHTransport


@pytest.fixture
def endpoint(lab: LabEndpoint) -> Endpoint:
    return Endpoint("lab", lab.address, lab.port, lab.user, str(lab.identity), str(lab.known_hosts))


@pytest.fixture
def transport(endpoint: Endpoint) -> Iterator[SSHTransport]:
    connected = SSHTransport(endpoint)
    connected.connect()
    yield connected
    connected.close()


def drain(process: Process) -> tuple[bytes, bytes]:
    stdout = stderr = b""
    while not (output := process.read(20)).ended:
        assert output.stdout or output.stderr, "no output and no end"
        stdout, stderr = stdout + output.stdout, stderr + output.stderr
    return stdout, stderr


@pytest.mark.parametrize(
    "argument", ["", "a b", "'\"`$HOME`\\", "*", "--", "ä€😀", "line\nline", "\t", "$(id)", "a;b&c|d>e", "\x7f\x01"]
)
def test_an_argument_arrives_exactly(transport: SSHTransport, argument: str):
    process = transport.run(["/usr/bin/printf", "%s", argument])
    assert drain(process) == (argument.encode(), b"")
    assert process.exit_code == 0


def test_both_streams_may_be_larger_than_any_window(transport: SSHTransport):
    size = 5 * 1024 * 1024
    process = transport.run(["sh", "-c", f"head -c {size} /dev/zero >&2; head -c {size} /dev/zero; exit 7"])
    stdout, stderr = drain(process)
    assert (len(stdout), len(stderr), process.exit_code) == (size, size, 7)


def test_standard_input_is_binary_and_its_end_arrives(transport: SSHTransport):
    data = bytes(range(256)) * 20_000
    process = transport.run(["sha256sum"])
    process.write(data)
    process.close_stdin()
    import hashlib

    assert drain(process)[0].split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_a_read_ends_at_its_limit(transport: SSHTransport):
    process = transport.run(["sleep", "30"])
    began = time.monotonic()
    assert process.read(0.3) == type(process.read(0.0))(b"", b"", ended=False)
    assert time.monotonic() - began < 5
    process.close()


def test_put_writes_a_private_file_and_says_how(transport: SSHTransport):
    data = b"x" * 300_000
    assert transport.put(data, "/var/tmp/put-test") == "sftp"
    assert transport.get("/var/tmp/put-test") == data
    assert drain(transport.run(["stat", "-c", "%a", "/var/tmp/put-test"]))[0] == b"600\n"
    assert transport.put(b"shorter", "/var/tmp/put-test") == "sftp"
    assert transport.get("/var/tmp/put-test") == b"shorter"


def test_put_goes_by_scp_where_sftp_does_not_work(transport: SSHTransport, monkeypatch: pytest.MonkeyPatch):
    import paramiko

    def refuse(*_: object) -> None:
        raise paramiko.SSHException("subsystem request failed")

    monkeypatch.setattr(transport, "_put_by_sftp", refuse)
    assert transport.put(b"by scp", "/var/tmp/scp-test") == "scp"
    assert transport.get("/var/tmp/scp-test") == b"by scp"


def test_put_says_so_where_neither_works(transport: SSHTransport):
    assert transport.put(b"data", "/no/such/folder/file") is None


def test_a_changed_host_key_is_refused_with_both_sides_named(endpoint: Endpoint, tmp_path: Path):
    known = tmp_path / "known_hosts"
    name = f"[{endpoint.address}]:{endpoint.port}"
    wrong = "AAAAC3NzaC1lZDI1NTE5AAAAIKqJ0yB8kqM3wMSgT4f1Ge2yqkhkzuVgoUfCoRnLxPyB"
    known.write_text(f"{name} ssh-ed25519 {wrong}\n")
    with pytest.raises(NetworkError, match="has changed") as caught:
        SSHTransport(dataclasses.replace(endpoint, known_hosts=str(known))).connect()
    assert f"{known}:1" in caught.value.message
    assert "ssh-keygen -R" in (caught.value.next or "")


def test_a_revoked_host_key_is_refused_even_if_it_is_also_known(endpoint: Endpoint, tmp_path: Path):
    text = Path(endpoint.known_hosts or "").read_text()
    known = tmp_path / "known_hosts"
    known.write_text("".join(f"{line}\n@revoked {line}\n" for line in text.splitlines() if line.strip()))
    with pytest.raises(NetworkError, match="revokes"):
        SSHTransport(dataclasses.replace(endpoint, known_hosts=str(known))).connect()


def test_a_key_that_is_not_let_in_is_named(endpoint: Endpoint, tmp_path: Path):
    import subprocess

    key = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with pytest.raises(NetworkError, match="does not let root in") as caught:
        SSHTransport(dataclasses.replace(endpoint, identity=str(key))).connect()
    assert str(key) in caught.value.message


def test_a_key_with_a_passphrase_is_not_called_invalid(endpoint: Endpoint, tmp_path: Path):
    import subprocess

    key = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    with pytest.raises(NetworkError, match="needs a passphrase") as caught:
        SSHTransport(dataclasses.replace(endpoint, identity=str(key))).connect()
    assert caught.value.next == f"ssh-add {key}"


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_a_server_that_does_not_speak_ssh_is_given_up_in_time(endpoint: Endpoint, greeting: bytes | None):
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            peer, _ = server.accept()
            held.append(peer)
            if greeting is not None:
                peer.sendall(greeting)
                peer.close()

        threading.Thread(target=serve, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(NetworkError, match="does not speak SSH"):
            SSHTransport(dataclasses.replace(endpoint, port=server.getsockname()[1], connect_s=1.0)).connect()
        assert time.monotonic() - began < 15


def test_a_connection_that_breaks_is_an_error_not_an_end(endpoint: Endpoint, transport: SSHTransport):
    process = transport.run(["sleep", "60"])
    assert not process.read(0.1).ended
    transport._chain[-1].sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(NetworkError, match="broke"):
        drain(process)
