"""A way to the Docker socket of another machine: one ssh process per host, for all containers."""

from __future__ import annotations

import shutil
import subprocess
import time
from urllib.parse import urlsplit

from arise.environments.folders import temporary_folder
from arise.errors import ConfigError

_REMOTE_SOCKET = "/var/run/docker.sock"
_POLL_S = 0.05


class SshTunnel:
    """Forwards a local socket to a Docker socket by the machine's ssh client and its keys.

    It never asks for anything, so a password or an unknown host key is an error. It ends with
    this process, whatever ends it: the remote command reads our end of a pipe.

    Args:
        url: `ssh://[user@]host[:port][/path/of/the/remote/socket]`.
        timeout_s: Limit on connecting, in seconds.

    Raises:
        ConfigError: There is no ssh client, or it does not get through.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url)
        program = shutil.which("ssh")
        if program is None:
            raise ConfigError(f"environment.hosts: {url} needs the program ssh (openssh-client)")
        if not parts.hostname:
            raise ConfigError(f"environment.hosts: {url} names no host; use ssh://user@host:port")
        self._folder = temporary_folder("ssh")
        socket = self._folder / "docker.sock"
        command = [program, "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]
        command += ["-o", f"ConnectTimeout={max(1, round(timeout_s))}"]
        command += [
            "-o",
            "ServerAliveInterval=15",
            "-L",
            f"{socket}:{parts.path or _REMOTE_SOCKET}",
        ]
        command += ["-l", parts.username] if parts.username else []
        command += ["-p", str(parts.port)] if parts.port else []
        self._process = subprocess.Popen(
            [*command, "--", parts.hostname, "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # Ctrl-C must not close the way by which containers are removed.
            start_new_session=True,
        )
        self.url = f"unix://{socket}"
        deadline = time.monotonic() + timeout_s
        while not socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                assert self._process.stderr is not None
                reason = self._process.stderr.read().decode(errors="replace").strip()
                self.close()
                raise ConfigError(
                    f"environment.hosts: ssh does not get through to {url}: "
                    f"{reason[-500:] or 'no answer'}"
                )
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the ssh process; safe to repeat."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)
