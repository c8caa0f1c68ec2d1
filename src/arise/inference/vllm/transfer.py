"""Weights over vLLM's own transfer engines: NCCL between devices, CUDA IPC on a shared one.

Nothing is transferred by code of this project; it names the tensors and the partners.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor

from arise.errors import WeightSyncError
from arise.inference.vllm.client import ServerClient
from arise.inference.vllm.sync import WeightSync
from arise.inference.weights import as_held


class TransferSync(WeightSync):
    """One trainer process sends to the workers of all servers.

    Args:
        backend: `"nccl"`: trainer and servers on different devices, all at once by broadcast.
            `"ipc"`: both on one device, which they use in turns.
    """

    folder = None
    can_repeat = False

    def __init__(self, backend: str) -> None:
        self.releases_memory = backend == "ipc"
        self.backend = backend
        self._engine: Any = None
        self._source: Any = None
        self._urls: list[str] = []
        self._count = 0

    async def send(
        self,
        servers: Sequence[ServerClient],
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
    ) -> None:
        """Send everything; the first time, find each other first."""
        urls = [server.url for server in servers]
        if self._engine is not None and urls != self._urls:
            lost = sorted(set(self._urls) - set(urls))
            raise WeightSyncError(
                f"{', '.join(lost)} left, and {self.backend} cannot go on without a partner; "
                "restart the run with ckpt_path=last, or use engine.sync=disk"
            )
        sizes = [server.world_size for server in servers]
        try:
            await asyncio.to_thread(self._send, urls, sizes, tensors, dtype)
        except Exception as error:  # vLLM's clients and engines raise what they like
            raise WeightSyncError(f"{self.backend} weight transfer failed: {error!r}") from error
        self._count = len(tensors)

    async def receive(self, server: ServerClient) -> int:
        """It has: vLLM's engines check names, types and shapes of what they send."""
        return self._count

    def _send(
        self,
        urls: list[str],
        sizes: list[int],
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
    ) -> None:
        # A thread begins on the first device, whichever the trainer's is.
        with torch.cuda.device(_used_device()):
            if self._engine is None:
                self._source = make_source(tensors, dtype=dtype, device="cuda")
                self._engine = self._open(urls, sizes)
                self._urls = urls
            self._source.tensors = tensors
            self._engine.send_weights()
            torch.cuda.synchronize()
            self._source.tensors = {}

    def _open(self, urls: list[str], sizes: list[int]) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        info: Any
        if self.backend == "ipc":
            info = IPCTrainerInitInfo(
                rank=0, packed=True, packed_buffer_size_bytes=buffer_bytes(self._source.metadata())
            )
        else:
            address, port = _meeting_point(urls)
            info = NCCLTrainerInitInfo(
                rank=0, master_address=address, master_port=port, world_size=1 + sum(sizes)
            )
        client = FanOutClient(urls, sizes)
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=self._source)

    def close(self) -> None:
        """Leave the group."""
        engine, self._engine = self._engine, None
        shutdown = getattr(engine, "shutdown", None)
        if shutdown is not None:
            shutdown()


class FanOutClient:
    """vLLM's control calls, made on several servers at the same time.

    Args:
        urls: The servers.
        world_sizes: Workers of each; in a group their ranks follow one another.
    """

    def __init__(self, urls: Sequence[str], world_sizes: Sequence[int]) -> None:
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

        self._clients = [HTTPVLLMWeightSyncClient(url) for url in urls]
        self._world_sizes = list(world_sizes)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let every server join; each gets the ranks after those of the one before."""
        infos, offset = [], init_info.get("rank_offset", 0)
        for size in self._world_sizes:
            own = {"rank_offset": offset} if "rank_offset" in init_info else {}
            infos.append({**init_info, **own})
            offset += size
        self._each(lambda index: self._clients[index].init_weight_transfer_engine(infos[index]))

    def start_weight_update(self) -> None:
        """All servers get ready."""
        self._each(lambda index: self._clients[index].start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        """All servers receive."""
        self._each(lambda index: self._clients[index].update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """All servers take over what came."""
        self._each(lambda index: self._clients[index].finish_weight_update(weight_version))

    def _each(self, call: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(len(self._clients)) as threads:
            list(threads.map(call, range(len(self._clients))))


def buffer_bytes(metadata: Sequence[Any]) -> int:
    """Size of the buffer that tensors go through: vLLM's own, or that of the largest tensor.

    vLLM refuses a tensor that does not fit, such as the embedding of a large model.
    """
    from vllm.distributed.weight_transfer.packed_tensor import DEFAULT_PACKED_BUFFER_SIZE_BYTES

    sizes = (math.prod(one.shape) * one.dtype.itemsize for one in metadata)
    return max(DEFAULT_PACKED_BUFFER_SIZE_BYTES, *sizes)


def _used_device() -> int:
    """The CUDA device on which this process has its tensors."""
    return max(range(torch.cuda.device_count()), key=torch.cuda.memory_allocated)


def make_source(tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: str) -> Any:
    """vLLM's view of a set of full tensors, which are exchanged before each push.

    Each is cast and brought to the device when its turn comes, so that a large model's, which wait
    in the host's memory, never are there all at once.
    """
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class TensorSource(WeightSource):
        """Names, types and shapes of the tensors, then the tensors, in one order."""

        def __init__(self) -> None:
            self.tensors: Mapping[str, Tensor] = tensors

        def metadata(self) -> list[Any]:
            return [
                ParamMeta(name, dtype if t.is_floating_point() else t.dtype, tuple(t.shape))
                for name, t in self.tensors.items()
            ]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            for name, tensor in self.tensors.items():
                yield name, as_held(tensor.to(device), dtype).contiguous()

    return TensorSource()


def _meeting_point(urls: Sequence[str]) -> tuple[str, int]:
    """This machine's address as the first server sees it, and a free port."""
    target = urlparse(urls[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target.hostname or "127.0.0.1", target.port or 80))
        address = probe.getsockname()[0]
    with socket.socket() as listener:
        listener.bind((address, 0))
        return address, int(listener.getsockname()[1])
