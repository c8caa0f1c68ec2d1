"""In a sandbox: passes connections to a port of it on to the socket file of the model.

A sandbox has no network, and agent programs know no socket files. Runs by itself, with nothing but
the standard library: `python3 forward.py PORT SOCKET`.
"""

import contextlib
import socket
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(port: int, path: str) -> None:
    """Accept connections for ever."""
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    while True:
        client, _ = listener.accept()
        model = socket.socket(socket.AF_UNIX)
        try:
            model.connect(path)
        except OSError:
            client.close()
            continue
        for pair in ((client, model), (model, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
