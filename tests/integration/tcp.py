"""A second way to a local daemon: a TCP port on the loopback that forwards to its socket."""

from __future__ import annotations

import contextlib
import socket
import threading


class TcpProxy:
    """Forwards connections to 127.0.0.1 to a Unix socket, until the block ends."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> TcpProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def cut(self) -> None:
        """Go away in the middle of everything, as a machine without power does."""
        self.__exit__()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                daemon = socket.socket(socket.AF_UNIX)
                daemon.connect(self._target)
                self._open += [client, daemon]
                for source, sink in ((client, daemon), (daemon, client)):
                    threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end, how in ((source, socket.SHUT_RD), (sink, socket.SHUT_WR)):
        with contextlib.suppress(OSError):
            end.shutdown(how)
