"""The lab's SSH server does what OpenSSH does."""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest
from scp import SCPClient

from ctdeploy.lab.host import LabEndpoint
from tests.lab.conftest import Host


def test_only_the_throw_away_key_lets_in(lab: LabEndpoint, tmp_path: Path) -> None:
    stranger = paramiko.RSAKey.generate(2048)
    client = paramiko.SSHClient()
    client.load_host_keys(str(lab.known_hosts))
    for login in ({"pkey": stranger}, {"password": "root"}):
        with pytest.raises((paramiko.AuthenticationException, paramiko.BadAuthenticationType)):
            client.connect(lab.address, lab.port, "root", allow_agent=False, look_for_keys=False, **login)
    with pytest.raises(paramiko.AuthenticationException):
        client.connect(
            lab.address, lab.port, "other", key_filename=str(lab.identity), allow_agent=False, look_for_keys=False
        )


def test_key_and_folder_are_the_users_alone(lab: LabEndpoint) -> None:
    assert stat.S_IMODE(lab.identity.stat().st_mode) == 0o600
    assert stat.S_IMODE(lab.identity.parent.stat().st_mode) == 0o700


def test_the_host_key_in_known_hosts_is_the_servers(host: Host, lab: LabEndpoint) -> None:
    transport = host.client.get_transport()
    assert transport is not None
    assert transport.get_remote_server_key().get_base64() in lab.known_hosts.read_text()


def test_a_login_gives_root_openssh_s_environment(host: Host) -> None:
    found = dict(line.split("=", 1) for line in host.line("env").text.splitlines())
    assert {key: found[key] for key in ("USER", "LOGNAME", "HOME", "PATH")} == {
        "USER": "root",
        "LOGNAME": "root",
        "HOME": "/root",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    assert not any(key.startswith(("LC_", "LANG", "PYTHON", "CTDEPLOY")) for key in found)
    assert host.line("pwd; hostname; umask").text == "/root\nlab\n0022\n"


def test_a_client_may_send_its_locale_and_nothing_else(host: Host) -> None:
    _, out, _ = host.client.exec_command("echo $LC_ALL-$FOO", environment={"LC_ALL": "C.UTF-8", "FOO": "1"})
    assert out.read() == b"C.UTF-8-\n"


def test_the_eleventh_session_of_a_connection_is_refused(host: Host) -> None:
    transport = host.client.get_transport()
    assert transport is not None
    open_ones = [host.open("cat") for _ in range(10)]
    with pytest.raises(paramiko.ChannelException) as refused:
        transport.open_session(timeout=10)
    assert refused.value.code == 2
    for channel in open_ones:
        channel.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            transport.open_session(timeout=10).close()
            break
        except paramiko.ChannelException:
            time.sleep(0.05)
    else:
        pytest.fail("closed sessions did not make room")


def test_a_line_killed_by_a_signal_ends_with_that_signal(host: Host) -> None:
    # paramiko's word for an exit-signal message is the status -1.
    assert host.line("kill -KILL $$").code == -1


def test_background_children_that_hold_the_pipes_keep_the_channel_open(host: Host) -> None:
    before = time.monotonic()
    channel = host.open("sleep 1 & echo started")
    assert channel.recv_exit_status() == 0
    assert time.monotonic() - before < 0.9, "the status does not wait for them"
    assert channel.makefile("rb").read() == b"started\n"
    assert time.monotonic() - before >= 1


def test_a_closed_channel_breaks_the_pipe_of_who_still_writes(host: Host) -> None:
    channel = host.open("sh -c 'echo $$; while echo line; do :; done'")
    pid = channel.recv(20).split()[0].decode()
    channel.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and host.line(f"kill -0 {pid}").code == 0:
        time.sleep(0.05)
    assert host.line(f"kill -0 {pid}").code != 0


def test_a_closed_channel_is_noticed_even_while_input_is_held_back(host: Host, state_folder: Path) -> None:
    channel = host.open("sh -c 'echo $$; sleep 1; while echo line; do :; done'")
    pid = channel.recv(20).split()[0].decode()
    channel.settimeout(0.5)
    with pytest.raises(TimeoutError):
        # Nobody reads it: the window runs full.
        channel.sendall(bytes(8 * 1024 * 1024))
    channel.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and host.line(f"kill -0 {pid}").code == 0:
        time.sleep(0.05)
    assert host.line(f"kill -0 {pid}").code != 0
    assert (state_folder / "log").read_text() == ""


def test_keepalives_are_answered(host: Host) -> None:
    transport = host.client.get_transport()
    assert transport is not None
    assert transport.global_request("keepalive@openssh.com", wait=True) is not None


def test_sftp_works_in_the_hosts_root_and_makes_0644(host: Host, folder: str, tmp_path: Path) -> None:
    local = tmp_path / "f"
    local.write_bytes(os.urandom(300_000))
    local.chmod(0o700)
    with host.client.open_sftp() as sftp:
        sftp.put(str(local), f"{folder}/f")
        assert stat.S_IMODE(sftp.stat(f"{folder}/f").st_mode or 0) == 0o644
        back = io.BytesIO()
        sftp.getfo(f"{folder}/f", back)
        assert back.getvalue() == local.read_bytes()
        assert sftp.normalize(".") == "/root"
        with pytest.raises(FileNotFoundError):
            sftp.put(str(local), f"{folder}/no/such/folder")
        assert "pct" in sftp.listdir("/usr/sbin")
    assert not Path(folder).exists(), "the host's files are the lab's own"


def test_scp_works_both_ways(host: Host, folder: str, tmp_path: Path) -> None:
    local, back = tmp_path / "f", tmp_path / "back"
    local.write_bytes(os.urandom(100_000))
    transport = host.client.get_transport()
    assert transport is not None
    with SCPClient(transport) as scp:
        scp.put(str(local), f"{folder}/f")
        scp.get(f"{folder}/f", str(back))
    assert back.read_bytes() == local.read_bytes()
    assert host.line(f"stat -c %a {folder}/f").text == "644\n"


def test_a_terminal_is_one(host: Host) -> None:
    transport = host.client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.settimeout(20)
    channel.get_pty("xterm", 99, 33)
    channel.exec_command("tty; stty size; echo $TERM; read line; echo got $line")
    channel.sendall(b"word\n")
    said = channel.makefile("rb").read().decode()
    assert "/dev/pts/" in said
    assert "33 99\r\nxterm\r\n" in said
    assert said.endswith("got word\r\n")
    assert channel.recv_exit_status() == 0


def test_losing_the_terminal_hangs_up_what_ran_in_it(connect: Callable[[], Host]) -> None:
    victim, other = connect(), connect()
    transport = victim.client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.get_pty()
    channel.exec_command("sleep 7600")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and other.line("pgrep -f '^sleep 7600'").code:
        time.sleep(0.05)
    transport.sock.close()
    while time.monotonic() < deadline and not other.line("pgrep -f '^sleep 7600'").code:
        time.sleep(0.05)
    assert other.line("pgrep -f '^sleep 7600'").code == 1


def test_a_port_of_the_lab_can_be_forwarded(host: Host, lab: LabEndpoint) -> None:
    transport = host.client.get_transport()
    assert transport is not None
    channel = transport.open_channel("direct-tcpip", ("127.0.0.1", lab.port), ("127.0.0.1", 0), timeout=10)
    channel.settimeout(10)
    assert channel.recv(4) == b"SSH-"
