"""A TCP proxy that cuts and swallows, to stand between ctdeploy and an SSH server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


class Proxy:
    """Listens on loopback and passes everything to `target`, until told otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._hole = threading.Event()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection that there is. New ones are taken."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    # Linger 0: RST instead of FIN, and the thread that reads wakes up.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def swallow(self) -> None:
        """From now on nothing passes, in either direction, and nobody is told."""
        self._hole.set()

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            upstream = socket.create_connection(("127.0.0.1", self._target))
            self._pairs.append((client, upstream))
            for source, sink in ((client, upstream), (upstream, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._hole.is_set():
                    continue
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
                end.close()
