"""From a container of the inventory to a connected transport; the lab is started when first needed."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ctdeploy.errors import HostError, TimedOut
from ctdeploy.inventory.values import Container, Host
from ctdeploy.ops.reporter import Reporter
from ctdeploy.remote import pct
from ctdeploy.remote.session import Place
from ctdeploy.transport.base import Endpoint, Transport

START_S = 120.0


@dataclass(frozen=True)
class Link:
    """A connection to a container's host, and the container as the remote layer needs it."""

    transport: Transport
    place: Place


def place_of(container: Container) -> Place:
    """The container as the remote layer needs it."""
    return Place(
        host=container.host.name,
        ct=container.ct,
        name=container.label,
        python=container.python,
        dest=container.dest,
        pct=pct.Pct(become=container.host.become),
    )


def who() -> str:
    """Who works here, for locks and history: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def new_transport(endpoint: Endpoint) -> Transport:
    """An unconnected transport. The one place that chooses an implementation; paramiko is slow to load, so late."""
    from ctdeploy.transport.ssh import SSHTransport

    return SSHTransport(endpoint)


@contextmanager
def connect(container: Container, reporter: Reporter) -> Iterator[Link]:
    """Log in to the container's host, and hang up at the end. Raises NetworkError, HostError."""
    endpoint = _endpoint(container.host, reporter)
    reporter.note(f"connecting to {container.host.name} ({endpoint.address})")
    transport = new_transport(endpoint)
    transport.connect()
    try:
        yield Link(transport, place_of(container))
    finally:
        transport.close()


def start_container(link: Link, reporter: Reporter) -> None:
    """`pct start`. Raises HostError with pct's words."""
    place = link.place
    reporter.step(f"starting container {place.name} on {place.host}")
    process = link.transport.run(place.pct.start(place.ct))
    process.close_stdin()
    words = b""
    deadline = time.monotonic() + START_S
    while not (output := process.read(1.0)).ended:
        words += output.stdout + output.stderr
        if time.monotonic() > deadline:
            raise TimedOut(
                f"container {place.name} on {place.host} did not start within {START_S:.0f} s",
                layer="container",
                next=f"on the host: pct start {place.ct} --debug",
            )
    if process.exit_code != 0:
        raise HostError(
            f"container {place.name} on {place.host} did not start",
            layer="container",
            next=f"on the host: pct start {place.ct} --debug",
            remote=words.decode("utf-8", "replace"),
        )


def _endpoint(host: Host, reporter: Reporter) -> Endpoint:
    if host.is_lab:
        from ctdeploy.lab.host import ensure_up

        lab = ensure_up(reporter.step)
        return Endpoint(host.name, lab.address, lab.port, lab.user, str(lab.identity), str(lab.known_hosts))
    return Endpoint(
        host.name, host.address, host.port, host.user, str(host.identity) if host.identity else None, jump=host.jump
    )
