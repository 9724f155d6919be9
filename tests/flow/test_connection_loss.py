"""Connections that break or fall silent: nothing is lost, nothing is repeated, nothing hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctdeploy.errors import NetworkError
from ctdeploy.lab.host import LabEndpoint
from ctdeploy.transport import keepalive
from ctdeploy.transport.base import Endpoint
from ctdeploy.transport.ssh import SSHTransport
from tests.support.container import Container, until
from tests.support.program import Program, environment
from tests.support.proxy import Proxy

SCRIPT = """\
import sys, time
for number in range(60):
    sys.stdout.write(f"line {number} " + "x" * (number * 37 % 4000) + "\\n")
    sys.stdout.flush()
    time.sleep(0.1)
"""


@pytest.fixture
def proxy(lab: LabEndpoint) -> Iterator[Proxy]:
    between = Proxy(lab.port)
    yield between
    between.close()


@pytest.fixture
def project(program: Program, lab: LabEndpoint, proxy: Proxy) -> Program:
    """The lab as an ordinary SSH host behind the proxy, its key in the user's known_hosts."""
    key = lab.known_hosts.read_text().split(maxsplit=1)[1]
    known = program.write("ssh/known_hosts", f"[127.0.0.1]:{proxy.port} {key}")
    # OpenSSH looks for a user's files in the home folder of /etc/passwd, whatever HOME says; so a configuration of our
    # own comes in by the `ssh` that ctdeploy asks.
    config = program.write("ssh/config", f"Host *\n  UserKnownHostsFile {known}\n")
    program.write("bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n').chmod(0o755)
    program.write(
        "hosts.toml",
        f"""
[defaults]
ct = "box"
[hosts.pve1]
address = "127.0.0.1"
port = {proxy.port}
user = "root"
identity = "{lab.identity}"
[containers.box]
host = "pve1"
ct = 200
python = "/opt/venv/bin/python"
[apps.lossy]
entry = "lossy.py"
""",
    )
    program.write("lossy.py", SCRIPT)
    return program


def start(project: Program, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ctdeploy", *arguments],
        cwd=project.folder,
        env=our_ssh(project),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def our_ssh(project: Program) -> dict[str, str]:
    return environment({"PATH": f"{project.folder / 'bin'}:{os.environ['PATH']}"})


def test_logs_follow_over_broken_connections_byte_for_byte(project: Program, proxy: Proxy, container: Container):
    container.run("/bin/rm", "-rf", "/opt/ctdeploy/lossy")
    project.ok("push", env=our_ssh(project))
    project.ok("run", "--detach", env=our_ssh(project))
    before = proxy.connections
    following = start(project, "logs", "-f")
    stop = threading.Event()

    def cut_now_and_then() -> None:
        for _ in range(4):
            if stop.wait(1.2):
                return
            proxy.cut()

    cutter = threading.Thread(target=cut_now_and_then)
    cutter.start()
    out, err = following.communicate(timeout=90)
    stop.set()
    cutter.join()
    assert following.returncode == 0, err.decode()
    assert proxy.connections - before >= 4
    expected = "".join(f"line {number} " + "x" * (number * 37 % 4000) + "\n" for number in range(60))
    assert out.decode() == expected
    assert b"following again from byte" in err
    until(lambda: not container.processes_of_ours())


def test_a_black_hole_is_noticed_although_the_kernel_on_the_other_side_still_acknowledges(
    lab: LabEndpoint, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keepalive, "INTERVAL_S", 0.2)
    monkeypatch.setattr(keepalive.Keepalive.__init__, "__kwdefaults__", {"dead_after_s": 1.0})
    key = lab.known_hosts.read_text().split(maxsplit=1)[1]
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{proxy.port} {key}")
    transport = SSHTransport(Endpoint("pve1", "127.0.0.1", proxy.port, lab.user, str(lab.identity), str(known)))
    transport.connect()
    process = transport.run(["sleep", "60"])
    # A server that answers keeps a silent command alive for longer than the limit.
    assert not process.read(2.0).ended
    proxy.swallow()
    began = time.monotonic()
    with pytest.raises(NetworkError, match="broke"):
        process.read(20.0)
    assert time.monotonic() - began < 10
    transport.close()
