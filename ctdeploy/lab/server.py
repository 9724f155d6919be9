"""The lab's SSH server: asyncssh, so that the client is not tested against its own SSH library."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import asyncssh
from asyncssh import ChannelOpenError, SSHKey, SSHServerConnection

from ctdeploy.lab.login import base_environment, root_shell
from ctdeploy.lab.session import HostSession

# OpenSSH's MaxSessions; the eleventh gets "Connect failed" (code 2).
MAX_SESSIONS = 10
AUTHORIZED_KEYS = "/root/.ssh/authorized_keys"


def new_key() -> SSHKey:
    """A throw-away ed25519 key."""
    return asyncssh.generate_private_key("ssh-ed25519", comment="ctdeploy lab")


class HostServer(asyncssh.SSHServer):
    """One connection: only root, only by key, at most ten sessions at a time."""

    def __init__(self) -> None:
        self._sessions: set[HostSession] = set()
        self._connection: SSHServerConnection

    def connection_made(self, conn: SSHServerConnection) -> None:
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        # The channels' own call comes late where input is held back, so every process is told here.
        for session in list(self._sessions):
            session.hang_up()

    def begin_auth(self, username: str) -> bool:
        self._connection.set_authorized_keys(AUTHORIZED_KEYS if username == "root" else None)
        return True

    def password_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return False

    def session_requested(self) -> HostSession:
        if len(self._sessions) >= MAX_SESSIONS:
            raise ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        session = HostSession(self._environment(), root_shell(), self._sessions.discard)
        self._sessions.add(session)
        return session

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True

    def _environment(self) -> dict[str, str]:
        client = self._connection.get_extra_info("peername")
        server = self._connection.get_extra_info("sockname")
        return {
            **base_environment(),
            "SSH_CLIENT": f"{client[0]} {client[1]} {server[1]}",
            "SSH_CONNECTION": f"{client[0]} {client[1]} {server[0]} {server[1]}",
        }


def serve(listener: socket.socket, host_key: SSHKey, ready: Callable[[], None]) -> None:
    """Serve until killed, on a socket that already listens. Call inside the host's root; calls `ready` once."""
    # Relative SFTP paths start in the home folder.
    os.chdir("/root")
    os.umask(0o022)
    asyncio.run(_serve(listener, host_key, ready))


async def _serve(listener: socket.socket, host_key: SSHKey, ready: Callable[[], None]) -> None:
    server = await asyncssh.listen(
        sock=listener,
        server_factory=HostServer,
        server_host_keys=[host_key],
        server_version="ctdeploy_lab",
        encoding=None,
        line_editor=False,
        agent_forwarding=False,
        x11_forwarding=False,
        gss_host=None,
        tcp_keepalive=True,
    )
    ready()
    await server.wait_closed()
