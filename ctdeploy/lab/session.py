"""One SSH session channel, served as OpenSSH does it.

A command runs through root's login shell with pipes (or a pseudo-terminal when asked). When the client goes away, only
the pipes are closed: the process lives on until it sees the end of its input or writes, as under sshd without a pty.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping
from typing import Any

from asyncssh import SFTPServer, SSHServerChannel
from asyncssh.channel import SSHChannel
from asyncssh.constants import EXTENDED_DATA_STDERR
from asyncssh.packet import Boolean, String, UInt32
from asyncssh.stream import SSHServerStreamSession

READ_SIZE = 32 * 1024
# More than this unwritten and the client is made to wait (its window is not given back).
STDIN_LIMIT = 64 * 1024


class HostSession(SSHServerStreamSession[bytes]):
    """A session of the lab's host: exec, shell, SFTP, and SCP by asyncssh's own server."""

    def __init__(self, environment: Mapping[str, str], shell: str, closed: Callable[[HostSession], None]) -> None:
        super().__init__(None, _sftp, 3, True)
        self._environment = dict(environment)
        self._shell = shell
        self._closed = closed
        self._command: str | None = None
        self._process: _Process | None = None
        self._terminal: tuple[str, tuple[int, int, int, int]] | None = None
        self._own = False

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        self._terminal = (term_type, term_size)
        return True

    def shell_requested(self) -> bool:
        self._own = True
        return True

    def exec_requested(self, command: str) -> bool:
        # `scp -t` and `scp -f` are served by asyncssh, so that the host needs no scp of its own.
        self._own = not command.startswith(("scp -", "scp.orig -"))
        self._command = command
        return True

    def session_started(self) -> None:
        if not self._own:
            super().session_started()
            return
        chan = self._chan
        assert isinstance(chan, SSHServerChannel)
        environment = {**self._environment, **_accepted(chan.get_environment())}
        name = os.path.basename(self._shell)
        argv = [f"-{name}"] if self._command is None else [name, "-c", self._command]
        try:
            if self._terminal is None:
                self._process = _PipedProcess(chan, self._shell, argv, environment)
            else:
                environment["TERM"] = self._terminal[0]
                self._process = _TerminalProcess(chan, self._shell, argv, environment, self._terminal[1])
        except OSError as error:
            chan.write_stderr(f"{self._shell}: {error.strerror}\n".encode())
            chan.exit(1)

    def data_received(self, data: bytes, datatype: Any) -> None:
        if self._own:
            if self._process:
                self._process.feed(data)
        else:
            super().data_received(data, datatype)

    def eof_received(self) -> bool:
        if self._own:
            if self._process:
                self._process.feed_eof()
            return True
        return super().eof_received()

    def pause_writing(self) -> None:
        if self._process:
            self._process.pause_output()
        elif not self._own:
            super().pause_writing()

    def resume_writing(self) -> None:
        if self._process:
            self._process.resume_output()
        elif not self._own:
            super().resume_writing()

    def signal_received(self, signal: str) -> None:
        if self._process:
            self._process.signal(signal)
        elif not self._own:
            super().signal_received(signal)

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if isinstance(self._process, _TerminalProcess):
            self._process.resize((width, height, pixwidth, pixheight))

    def connection_lost(self, exc: Exception | None) -> None:
        self.hang_up()
        if not self._own:
            super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close the process's pipes; the process itself is left alone. May be called again."""
        if self._process:
            self._process.hang_up()
            self._process = None
        self._closed(self)


def _sftp(chan: SSHChannel[bytes]) -> SFTPServer:
    assert isinstance(chan, SSHServerChannel)
    return SFTPServer(chan)


def _accepted(asked: Mapping[str, str]) -> dict[str, str]:
    """What Debian's sshd_config accepts of the client's environment: AcceptEnv LANG LC_*."""
    return {key: value for key, value in asked.items() if key == "LANG" or key.startswith("LC_")}


class _Process:
    """A process behind a channel. Output is read only while the channel takes it, input only while the process does."""

    def __init__(self, chan: SSHServerChannel[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._chan: SSHServerChannel[bytes] | None = chan
        self._stdin = -1
        self._outputs: dict[int, int | None] = {}
        self._pending = bytearray()
        self._ending = False
        self._paused = False
        self._ended = False
        self._child: subprocess.Popen[bytes]

    def _watch(self) -> None:
        handle = os.pidfd_open(self._child.pid)
        self._loop.add_reader(handle, self._exited, handle)
        self.resume_output()

    def _exited(self, handle: int) -> None:
        self._loop.remove_reader(handle)
        os.close(handle)
        status = self._child.wait()
        self._ended = True
        self._close_stdin()
        if self._chan and self._open():
            # At once, though the channel stays open until the last holder of its pipes is gone: as sshd does.
            if status >= 0:
                self._chan._send_request(b"exit-status", UInt32(status))
            else:
                name = signal.Signals(-status).name.removeprefix("SIG").encode()
                self._chan._send_request(b"exit-signal", String(name), Boolean(False), String(b""), String(b""))
        self._close_when_done()

    def feed(self, data: bytes) -> None:
        """Input for the process. After its end, or when it closed its end, input is thrown away."""
        if self._stdin < 0:
            return
        self._pending += data
        self._write()

    def feed_eof(self) -> None:
        self._ending = True
        if not self._pending:
            self._close_stdin()

    def _write(self) -> None:
        try:
            while self._pending:
                del self._pending[: os.write(self._stdin, self._pending[:READ_SIZE])]
        except BlockingIOError:
            self._loop.add_writer(self._stdin, self._write)
            if len(self._pending) > STDIN_LIMIT and self._chan:
                self._chan.pause_reading()
            return
        except OSError:
            self._close_stdin()
            return
        self._loop.remove_writer(self._stdin)
        if self._ending:
            self._close_stdin()
        elif self._chan:
            self._chan.resume_reading()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            self._release_stdin()
            self._stdin = -1
        self._pending.clear()
        if self._chan:
            self._chan.resume_reading()

    def _release_stdin(self) -> None:
        os.close(self._stdin)

    def _read(self, handle: int) -> None:
        try:
            data = os.read(handle, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            # EIO: nobody holds the other end of the pseudo-terminal any more.
            data = b""
        if data and self._open():
            assert self._chan is not None
            self._chan.write(data, self._outputs[handle])
            return
        self._close_output(handle)
        self._close_when_done()

    def _open(self) -> bool:
        """False once the client has closed the channel. While input is held back asyncssh tells of that late, so that
        it must be asked: the process shall get its broken pipe now."""
        return self._chan is not None and not self._chan.is_closing()

    def _close_output(self, handle: int) -> None:
        del self._outputs[handle]
        self._loop.remove_reader(handle)
        os.close(handle)

    def _close_when_done(self) -> None:
        if self._ended and not self._outputs and self._chan:
            chan, self._chan = self._chan, None
            chan.write_eof()
            chan.close()

    def pause_output(self) -> None:
        self._paused = True
        for handle in self._outputs:
            self._loop.remove_reader(handle)

    def resume_output(self) -> None:
        self._paused = False
        for handle in self._outputs:
            self._loop.add_reader(handle, self._read, handle)

    def signal(self, name: str) -> None:
        """Signal the session's process group, as sshd does for a client's `signal` request."""
        number = getattr(signal, f"SIG{name}", None)
        if number is not None and not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def hang_up(self) -> None:
        self._chan = None
        self._close_stdin()
        for handle in list(self._outputs):
            self._close_output(handle)


class _PipedProcess(_Process):
    """stdin, stdout and stderr are three pipes: `/dev/stdin` can be opened by path, unlike a socket."""

    def __init__(
        self, chan: SSHServerChannel[bytes], shell: str, argv: list[str], environment: Mapping[str, str]
    ) -> None:
        super().__init__(chan)
        their_in, self._stdin = os.pipe()
        our_out, their_out = os.pipe()
        our_err, their_err = os.pipe()
        self._outputs = {our_out: None, our_err: EXTENDED_DATA_STDERR}
        for handle in (self._stdin, our_out, our_err):
            os.set_blocking(handle, False)
        try:
            self._child = subprocess.Popen(
                argv,
                executable=shell,
                env=environment,
                cwd="/root",
                stdin=their_in,
                stdout=their_out,
                stderr=their_err,
                start_new_session=True,
            )
        except OSError:
            self.hang_up()
            raise
        finally:
            for handle in (their_in, their_out, their_err):
                os.close(handle)
        self._watch()


class _TerminalProcess(_Process):
    """A pseudo-terminal; letting go of it hangs up the session's foreground, as the kernel does."""

    def __init__(
        self,
        chan: SSHServerChannel[bytes],
        shell: str,
        argv: list[str],
        environment: Mapping[str, str],
        size: tuple[int, int, int, int],
    ) -> None:
        super().__init__(chan)
        ours, theirs = pty.openpty()
        self._stdin = ours
        self._outputs = {ours: None}
        self.resize(size)
        try:
            self._child = subprocess.Popen(
                argv,
                executable=shell,
                env={**environment, "SSH_TTY": os.ttyname(theirs)},
                cwd="/root",
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                # The server has no threads of its own at this point that could hold a lock over the fork.
                preexec_fn=_take_terminal,
            )
        except OSError:
            self.hang_up()
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._watch()

    def resize(self, size: tuple[int, int, int, int]) -> None:
        width, height, pixwidth, pixheight = size
        if self._stdin >= 0:
            fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixwidth, pixheight))

    def _release_stdin(self) -> None:
        # One descriptor serves both directions; it is closed as output.
        pass

    def feed_eof(self) -> None:
        # sshd closes its end for writing only; a terminal has no such half, and the line stays up.
        pass


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
