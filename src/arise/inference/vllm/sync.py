"""How the trainer's tensors get to the servers: one small interface.

A transport only brings tensors. Pausing, versions, caches and the proof are the same for all
(`updates.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil
import torch
from torch import Tensor

from arise.errors import ConfigError, WeightSyncError
from arise.inference.vllm.client import ServerClient
from arise.inference.weights import as_held

_PREFIX = "arise-weights-"
_MEMORY = Path("/dev/shm")
_SHARD_BYTES = 4 << 30
_HEADROOM = 1.1


class WeightSync(Protocol):
    """Brings tensors to servers that are paused.

    Attributes:
        backend: vLLM's weight transfer engine that servers must be started for, if any.
        folder: What the servers' machines must share with this one, if anything.
        can_repeat: Whether `receive` works later too, so that a server that was away can come back.
        releases_memory: Whether trainer and server share a device and take turns on it.
    """

    backend: str | None
    folder: Path | None
    can_repeat: bool
    releases_memory: bool

    async def send(
        self,
        servers: Sequence[ServerClient],
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
    ) -> None:
        """Make the tensors available to all servers, or bring them there at once.

        Args:
            servers: All that are to have them.
            tensors: By name, as the trainer holds them.
            dtype: Type that floating ones are sent in.

        Raises:
            WeightSyncError: There is no room, or the transfer failed.
        """

    async def receive(self, server: ServerClient) -> int:
        """Have one server take over what was sent last.

        Returns:
            How many tensors it took.
        """

    def close(self) -> None:
        """Remove what is left of the last push; safe to repeat."""


class DiskSync(WeightSync):
    """Tensors in safetensors files, in a folder that lies in memory where there is one.

    The files stay until the next push, for servers that come back. A folder of a run that was
    killed is removed by the next one on the machine.

    Args:
        parent: `engine.sync_dir`; `None` takes `/dev/shm` or else the temporary folder.
    """

    backend = None
    can_repeat = True
    releases_memory = False

    def __init__(self, parent: Path | None) -> None:
        place = parent or (_MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
        if not place.is_dir():
            raise ConfigError(f"engine.sync_dir: folder {str(place)!r} does not exist")
        remove_remains(place)
        self.folder: Path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
        # Servers may run as another user.
        self.folder.chmod(0o755)

    async def send(
        self,
        servers: Sequence[ServerClient],
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
    ) -> None:
        """Write the files."""
        await asyncio.to_thread(self._write, tensors, dtype)

    async def receive(self, server: ServerClient) -> int:
        """Have one server read the files."""
        results = await server.rpc("arise_load", str(self.folder))
        return min(int(result["num_tensors"]) for result in results)

    def _write(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        from safetensors.torch import save_file

        self._require_room(sum(_num_bytes(t, dtype) for t in tensors.values()))
        for old in self.folder.glob("*.safetensors"):
            old.unlink()
        for number, shard in enumerate(_shards(tensors, dtype)):
            file = self.folder / f"model-{number:05d}.safetensors"
            save_file({n: as_held(t, dtype).cpu().contiguous() for n, t in shard.items()}, file)
            file.chmod(0o644)

    def _require_room(self, needed: int) -> None:
        held = sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))
        free = shutil.disk_usage(self.folder).free + held
        if free < needed * _HEADROOM:
            raise WeightSyncError(
                f"{self.folder.parent} has {free / 1e9:.2f} GB free, the weights need "
                f"{needed * _HEADROOM / 1e9:.2f} GB; set engine.sync_dir to a folder with room, or "
                "give the container more shared memory"
            )

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _num_bytes(tensor: Tensor, dtype: torch.dtype) -> int:
    """Of a tensor as it is sent."""
    held = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.numel() * held.itemsize


def _shards(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Groups of a few gigabytes, so that a copy to the CPU stays small."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        num_bytes = _num_bytes(tensor, dtype)
        if shard and size + num_bytes > _SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += num_bytes
    if shard:
        yield shard


def remove_remains(place: Path) -> None:
    """Folders of processes that no longer live."""
    for folder in place.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)


def make_sync(kind: str, *, sync_dir: str | None, has_own_devices: bool) -> WeightSync:
    """The transport that `engine.sync` names.

    Args:
        kind: `"disk"`, `"nccl"`, `"ipc"`, or `"auto"`: NCCL where a server of our own has CUDA
            devices apart from the trainer's, else disk.
        sync_dir: `engine.sync_dir`.
        has_own_devices: Whether the server was given devices of its own.
    """
    if kind == "auto":
        kind = "nccl" if has_own_devices and torch.cuda.is_available() else "disk"
    if kind == "disk":
        return DiskSync(Path(sync_dir).expanduser() if sync_dir else None)
    if not torch.cuda.is_available():
        raise ConfigError(f"engine.sync = {kind} needs CUDA devices; here only disk works")
    from arise.inference.vllm.transfer import TransferSync

    return TransferSync(kind)
