"""A real client on the lab of the test session: paramiko, which is not the SSH library of the lab itself."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

from ctdeploy.lab.host import LabEndpoint

CT = 200


@dataclass(frozen=True)
class Answer:
    """What a command on the host gave back."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def error(self) -> str:
        return self.err.decode()


class Host:
    """A login on the lab's host by paramiko, with strict host keys."""

    def __init__(self, endpoint: LabEndpoint) -> None:
        self.endpoint = endpoint
        self.client = paramiko.SSHClient()
        self.client.load_host_keys(str(endpoint.known_hosts))
        self.client.connect(
            endpoint.address,
            endpoint.port,
            endpoint.user,
            key_filename=str(endpoint.identity),
            allow_agent=False,
            look_for_keys=False,
            timeout=10,
        )

    def line(self, line: str, stdin: bytes = b"") -> Answer:
        """Run a line through the login shell, as a client does."""
        channel = self.open(line)
        channel.sendall(stdin)
        channel.shutdown_write()
        out, err = channel.makefile("rb").read(), channel.makefile_stderr("rb").read()
        return Answer(channel.recv_exit_status(), out, err)

    def run(self, *argv: str, stdin: bytes = b"") -> Answer:
        return self.line(shlex.join(argv), stdin)

    def inside(self, *argv: str, stdin: bytes = b"") -> Answer:
        """Run words in the container by pct exec."""
        return self.run("pct", "exec", str(CT), "--", *argv, stdin=stdin)

    def open(self, line: str) -> paramiko.Channel:
        """A session whose ends the test holds in its own hand."""
        transport = self.client.get_transport()
        assert transport is not None
        channel = transport.open_session(timeout=10)
        channel.settimeout(30)
        channel.exec_command(line)
        return channel

    def write(self, path: str, data: bytes) -> None:
        with self.client.open_sftp() as sftp, sftp.open(path, "wb") as file:
            file.write(data)

    def close(self) -> None:
        self.client.close()


@pytest.fixture
def connect(lab: LabEndpoint) -> Iterator[Callable[[], Host]]:
    """Logs in anew each time it is called."""
    made: list[Host] = []

    def login() -> Host:
        made.append(Host(lab))
        return made[-1]

    yield login
    for host in made:
        host.close()


@pytest.fixture
def host(connect: Callable[[], Host]) -> Host:
    return connect()


@pytest.fixture
def folder(host: Host) -> Iterator[str]:
    """An empty folder of the same name on the host and in the container."""
    path = host.line("mktemp -d /var/tmp/test.XXXXXXXX").text.strip()
    assert host.inside("mkdir", path).code == 0
    yield path
    host.run("rm", "-rf", path)
    host.inside("rm", "-rf", path)


@pytest.fixture
def state_folder(lab: LabEndpoint) -> Path:
    return lab.identity.parent
