"""SSH by paramiko: strict host keys, both output streams pumped together, a deadline on everything."""

from __future__ import annotations

import contextlib
import io
import logging
import select
import shlex
import socket
import time
from collections.abc import Sequence

import paramiko

from ctdeploy.errors import NetworkError
from ctdeploy.transport import known_hosts, login
from ctdeploy.transport.base import Endpoint, Output
from ctdeploy.transport.keepalive import DEAD_AFTER_S, Keepalive
from ctdeploy.transport.ssh_config import Login, resolve

# Its own log prints tracebacks of errors that we report as one sentence.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class SSHTransport:
    """One SSH connection to a host, possibly over jump hosts."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._chain: list[paramiko.Transport] = []
        self._keepalives: list[Keepalive] = []

    def connect(self) -> None:
        """Dial, check the host key, log in; once for every jump host before. Raises NetworkError."""
        target = resolve(self._endpoint)
        hops = [_jump_login(hop) for hop in target.jumps] + [target]
        try:
            for hop in hops:
                sock = self._dial(hop)
                transport = paramiko.Transport(sock)
                self._chain.append(transport)
                self._log_in(transport, hop)
        except BaseException:
            self.close()
            raise

    def run(self, argv: Sequence[str]) -> SSHProcess:
        """Start a command on the host. Raises NetworkError."""
        try:
            channel = self._last.open_session(timeout=self._endpoint.connect_s)
            channel.exec_command(shlex.join(argv))
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost(error) from error
        return SSHProcess(channel, self._endpoint.host)

    def put(self, data: bytes, path: str) -> str | None:
        """SFTP where it works, else SCP. None where neither does. Raises NetworkError when the connection died."""
        for way, store in (("sftp", self._put_by_sftp), ("scp", self._put_by_scp)):
            try:
                store(data, path)
            except (paramiko.SSHException, OSError, EOFError) as error:
                if not self._last.is_active():
                    raise self._lost(error) from error
            else:
                return way
        return None

    def get(self, path: str) -> bytes:
        """Read a file of the host by SFTP. Raises NetworkError, FileNotFoundError."""
        try:
            with self._sftp() as sftp, sftp.open(path, "rb") as file:
                file.prefetch()
                data: bytes = file.read()
                return data
        except FileNotFoundError:
            raise
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Hang up, outermost connection last."""
        for keepalive in self._keepalives:
            keepalive.stop()
        self._keepalives.clear()
        for transport in reversed(self._chain):
            with contextlib.suppress(Exception):
                transport.close()
        self._chain.clear()

    @property
    def _last(self) -> paramiko.Transport:
        if not self._chain:
            raise NetworkError(f"not connected to {self._endpoint.host}")
        return self._chain[-1]

    def _dial(self, hop: Login) -> socket.socket | paramiko.Channel:
        where = f"{hop.address}:{hop.port}"
        if self._chain:
            try:
                return self._last.open_channel("direct-tcpip", (hop.address, hop.port), ("127.0.0.1", 0))
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise NetworkError(f"the jump host cannot reach {where}: {error}") from error
        try:
            sock = socket.create_connection((hop.address, hop.port), timeout=self._endpoint.connect_s)
        except OSError as error:
            raise NetworkError(
                f"cannot reach host {self._endpoint.host} at {where}: {error.strerror or error}",
                next="ctdeploy lab up"
                if self._endpoint.known_hosts
                else f"is it up? ping {hop.address}; check [hosts.{self._endpoint.host}]: ctdeploy config show",
            ) from error
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _log_in(self, transport: paramiko.Transport, hop: Login) -> None:
        host, limit = self._endpoint.host, self._endpoint.connect_s
        transport.banner_timeout = transport.auth_timeout = limit
        keys = known_hosts.read(hop.known_hosts)
        name = known_hosts.lookup_name(hop.known_as or hop.address, 22 if hop.known_as else hop.port)
        login.prefer_stored_types(transport, [key for key in keys if key.speaks_of(name)])
        try:
            # start_client returns without an error when its time is over; the key is there only after the exchange.
            transport.start_client(timeout=limit)
            key = transport.get_remote_server_key()
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise NetworkError(
                f"{host} at {hop.address}:{hop.port} does not speak SSH with us: {error or 'connection closed'}",
                next=f"ssh -v -p {hop.port} {hop.user}@{hop.address}",
            ) from error
        login.check_host_key(key, keys, name, host, hop)
        login.authenticate(transport, hop, host)
        # Not before: OpenSSH answers such questions only after the login.
        self._keepalives.append(Keepalive(transport))

    def _sftp(self) -> paramiko.SFTPClient:
        channel = self._last.open_session(timeout=self._endpoint.connect_s)
        # Without a limit a login shell that prints instead of speaking SFTP would hang us.
        channel.settimeout(self._endpoint.connect_s)
        channel.invoke_subsystem("sftp")
        sftp = paramiko.SFTPClient(channel)
        channel.settimeout(DEAD_AFTER_S)
        return sftp

    def _put_by_sftp(self, data: bytes, path: str) -> None:
        with self._sftp() as sftp:
            with sftp.open(path, "wb") as file:
                file.chmod(0o600)
                file.set_pipelined(True)
                file.write(data)
            if sftp.stat(path).st_size != len(data):
                raise OSError("short SFTP write")

    def _put_by_scp(self, data: bytes, path: str) -> None:
        from scp import SCPClient, SCPException

        try:
            with SCPClient(self._last, socket_timeout=DEAD_AFTER_S) as scp:
                scp.putfo(io.BytesIO(data), path, mode="0600", size=len(data))
        except SCPException as error:
            raise OSError(str(error)) from error

    def _lost(self, error: BaseException) -> NetworkError:
        return NetworkError(
            f"the connection to {self._endpoint.host} broke: {error or type(error).__name__}",
            next="nothing was activated that was not verified; try the same command again",
        )


class SSHProcess:
    """A command on one channel."""

    def __init__(self, channel: paramiko.Channel, host: str) -> None:
        self._channel = channel
        self._host = host
        self._ended_ok = False

    def write(self, data: bytes) -> None:
        """Send to its standard input. Raises NetworkError when it is gone."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._channel.send(view[: 1 << 20]) :]
        except OSError as error:
            raise NetworkError(f"the connection to {self._host} broke while sending: {error}") from error

    def close_stdin(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def read(self, timeout_s: float) -> Output:
        """What both streams have, waiting for the first of it. Raises NetworkError when the connection died."""
        deadline = time.monotonic() + timeout_s
        while True:
            stdout, stderr = self._drain()
            if stdout or stderr:
                return Output(stdout, stderr, ended=False)
            if self._channel.exit_status_ready() and (self._channel.eof_received or self._channel.closed):
                stdout, stderr = self._drain()
                if stdout or stderr:
                    return Output(stdout, stderr, ended=False)
                if self._channel.exit_status == -1 and not self._channel.get_transport().is_active():
                    raise NetworkError(
                        f"the connection to {self._host} broke",
                        next="the run, if any, goes on; try the same command again",
                    )
                return Output(b"", b"", ended=True)
            left = deadline - time.monotonic()
            if left <= 0:
                return Output(b"", b"", ended=False)
            # fileno() wakes for either stream; the cap covers an exit status, which does not wake it.
            select.select([self._channel.fileno()], [], [], min(left, 0.2))
            if not self._channel.recv_ready() and not self._channel.recv_stderr_ready() and self._channel.closed:
                time.sleep(0.01)

    @property
    def exit_code(self) -> int | None:
        """Exit status, None while unknown."""
        return self._channel.exit_status if self._channel.exit_status_ready() else None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()

    def _drain(self) -> tuple[bytes, bytes]:
        stdout = stderr = b""
        while self._channel.recv_ready():
            stdout += self._channel.recv(1 << 20)
        while self._channel.recv_stderr_ready():
            stderr += self._channel.recv_stderr(1 << 20)
        return stdout, stderr


def _jump_login(hop: str) -> Login:
    """`[user@]host[:port]`, as ProxyJump has it."""
    user, _, rest = hop.rpartition("@")
    address, _, port = rest.partition(":")
    return resolve(
        Endpoint(host=address, address=address, port=int(port) if port else None, user=user or None, jump="none")
    )
