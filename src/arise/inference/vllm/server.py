"""A vLLM server of our own: a child process that cannot outlive the trainer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from arise.errors import ConfigError, InferenceError
from arise.inference.vllm.worker import EXTENSION

logger = logging.getLogger(__name__)

_TAIL_LINES = 25
_PROGRESS_S = 15.0
_STOP_PATIENCE_S = 30.0
_PREFILL_TOKENS = 4096
_SOURCE = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to start a server.

    Attributes:
        dtype: Of weights and cache.
        max_context_tokens: Longest sequence.
        kv_cache_gib: Memory of the key-value cache; `None` leaves it to vLLM.
        enforce_eager: Skip compiling: starts faster, plays slower on GPUs.
        devices: CUDA devices it may use; `None` is all.
        transfer: vLLM's weight transfer engine, `"nccl"` or `"ipc"`; `None` is none.
        args: Further arguments of vLLM's own command line.
        start_timeout_s: Limit on starting, in seconds.
    """

    dtype: str
    max_context_tokens: int
    kv_cache_gib: float | None
    enforce_eager: bool
    devices: tuple[int, ...] | None
    transfer: str | None
    args: tuple[str, ...]
    start_timeout_s: float

    def command(self, model: Path, port: int) -> list[str]:
        """vLLM's server, with tokens only: it has no tokenizer, and weights are the trainer's."""
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--model", str(model), "--served-model-name", "policy"),
            *("--load-format", "dummy", "--tokens-only", "--generation-config", "vllm"),
            *("--dtype", self.dtype, "--max-model-len", str(self.max_context_tokens)),
            *("--logprobs-mode", "processed_logprobs"),
            *("--worker-extension-cls", EXTENSION),
            "--disable-uvicorn-access-log",
        ]
        if self.kv_cache_gib is not None:
            command += ["--kv-cache-memory-bytes", str(int(self.kv_cache_gib * (1 << 30)))]
            if torch.cuda.is_available():
                # Else it refuses a device on which most of the memory is not free, such as the
                # trainer's. With the size of its cache given, this says nothing but that.
                command += ["--gpu-memory-utilization", "0.01"]
        if self.enforce_eager:
            command.append("--enforce-eager")
        if not torch.cuda.is_available():
            # A prompt in pieces would rewind the request's random generator, which on the CPU
            # ends the engine ("CPU Generator does not use offset").
            tokens = max(self.max_context_tokens, _PREFILL_TOKENS)
            command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(tokens)]
        if self.transfer is not None:
            command += ["--weight-transfer-config", json.dumps({"backend": self.transfer})]
        if self.transfer == "ipc":
            command.append("--enable-sleep-mode")
        return [*command, *self.args]

    def environment(self) -> dict[str, str]:
        """The child's variables: vLLM's weight endpoints on, nothing sent anywhere."""
        inherited = {k: v for k, v in os.environ.items() if k not in _LAUNCH_VARIABLES}
        paths = [str(_SOURCE), *filter(None, [inherited.get("PYTHONPATH")])]
        variables = {
            **inherited,
            "PYTHONPATH": os.pathsep.join(paths),
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
        if self.enforce_eager:  # samplers too
            variables["TORCH_COMPILE_DISABLE"] = "1"
        if self.devices is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.devices))
        if self.transfer == "ipc":  # handles of device memory travel pickled, over loopback only
            variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        return variables


# Of the trainer's process group, which the server is not part of.
_LAUNCH_VARIABLES = {
    *("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "GROUP_RANK", "RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
}


class VLLMServer:
    """Starts a server for a model's configuration on a free loopback port, and ends it.

    Args:
        options: How to start it.
        log_path: Where its output goes, after what is there.
    """

    def __init__(self, options: ServerOptions, *, log_path: Path) -> None:
        self._options = options
        self._log_path = log_path
        self._guard: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._port = 0
        self.url = ""

    async def start(self, config: Any, is_healthy: Callable[[str], Awaitable[bool]]) -> str:
        """Start and wait until it answers.

        Args:
            config: The model's transformers configuration.
            is_healthy: Whether the server at this address answers.

        Returns:
            Its address.

        Raises:
            ConfigError: vLLM refused to start; the message has the end of its log.
            InferenceError: It was not up in time.
        """
        # A server that is started again is found where it was.
        self._port = self._port or free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._folder = Path(tempfile.mkdtemp(prefix="arise-vllm-"))
        config.save_pretrained(self._folder)
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._guard = self._launch(self._options.command(self._folder, self._port), log)
        started = told = time.monotonic()
        while not await is_healthy(self.url):
            elapsed = time.monotonic() - started
            if self._guard.poll() is not None:
                raise ConfigError(f"the vLLM server did not start. {self.explain()}")
            if elapsed > self._options.start_timeout_s:
                await self.stop()
                raise InferenceError(
                    f"the vLLM server was not up after {elapsed:.0f} s "
                    f"(engine.start_timeout_s = {self._options.start_timeout_s:g}). "
                    f"{self.explain()}"
                )
            if time.monotonic() - told > _PROGRESS_S:
                told = time.monotonic()
                last = (_tail(self._log_path, 1) or [""])[-1]
                logger.info("vLLM is starting (%.0f s): %s", elapsed, last[:120])
            await asyncio.sleep(0.25)
        logger.info("vLLM is up after %.0f s at %s", time.monotonic() - started, self.url)
        return self.url

    def _launch(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        guard = [sys.executable, "-m", "arise.inference.vllm.guard"]
        return subprocess.Popen(
            [*guard, str(os.getpid()), str(self._folder), *command],
            env=self._options.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the trainer, which still needs the server to end its iteration.
            start_new_session=True,
        )

    def explain(self) -> str:
        """The end of the server's log, for an error."""
        tail = "\n  ".join(_tail(self._log_path, _TAIL_LINES))
        return f"Its log, {self._log_path}, ends:\n  {tail or '(nothing)'}"

    async def stop(self) -> None:
        """End it and everything it started; safe to repeat."""
        guard, self._guard = self._guard, None
        if guard is not None and guard.poll() is None:
            guard.terminate()
            try:
                await asyncio.to_thread(guard.wait, _STOP_PATIENCE_S)
            except subprocess.TimeoutExpired:
                guard.kill()
                await asyncio.to_thread(guard.wait)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(path: Path, count: int) -> list[str]:
    """The last lines that say something."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64 * 1024))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-count:]
