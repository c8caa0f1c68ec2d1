"""Which ranks do what: the strategy of a run, and the groups of ranks inside a replica.

Ranks are numbered with tensor-parallel ones next to each other, then sequence-parallel ones, then
replicas, so that those which talk most are on one node:

    rank = (replica · sequence + its share of tokens) · tensor + its piece of the matrices

Parameters are sharded (FSDP2) over replicas and sequence-parallel ranks together.
"""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed import ProcessGroup, init_device_mesh
from torch.distributed.device_mesh import DeviceMesh

from arise.errors import ConfigError


def sequence_group(mesh: DeviceMesh, size: int) -> ProcessGroup | None:
    """The ranks that share this rank's micro-batches; `None` if it has them alone; collective.

    Args:
        mesh: Lightning's, of the dimensions `data_parallel` and `tensor_parallel`.
        size: `model.sequence_parallel`.

    Raises:
        ConfigError: It does not divide the ranks.
    """
    if size == 1:
        return None
    num_sharding, num_tensor = mesh["data_parallel"].size(), mesh["tensor_parallel"].size()
    if num_sharding % size:
        raise ConfigError(
            f"model.sequence_parallel = {size} does not divide the {num_sharding} processes that "
            f"model.tensor_parallel = {num_tensor} leaves; choose a divisor"
        )
    shape = (num_sharding // size, size, num_tensor)
    names = ("replica", "sequence", "tensor")
    return init_device_mesh(mesh.device_type, shape, mesh_dim_names=names)["sequence"].get_group()


class ParallelStrategy(ModelParallelStrategy):
    """FSDP2 and tensor parallelism; replicas are what the other sizes leave of the processes.

    Args:
        data_parallel_size: Replicas, or `"auto"`.
        sequence_parallel_size: Ranks that share the tokens of a micro-batch.
        tensor_parallel_size: Ranks among which matrices are cut.
        cpu_offload: See `PolicyModule`; with `"weights"` or `"both"` they stay on the host, whose
            ranks then need a way to talk as well.
        **options: Those of Lightning's strategy.
    """

    def __init__(
        self,
        data_parallel_size: Literal["auto"] | int = "auto",
        sequence_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        cpu_offload: str = "none",
        **options: Any,
    ) -> None:
        super().__init__(tensor_parallel_size=tensor_parallel_size, **options)
        self._num_replicas: Literal["auto"] | int = data_parallel_size
        self._num_replica_ranks = sequence_parallel_size * tensor_parallel_size
        self._sequence_size = sequence_parallel_size
        self._offloads_weights = cpu_offload in ("weights", "both")

    def setup_environment(self) -> None:
        """Connect the processes, once their number is known to be right.

        Raises:
            ConfigError: The sizes multiplied are not the number of processes.
        """
        num_ranks = self.num_nodes * self.num_processes
        num_replicas: int = (
            max(1, num_ranks // self._num_replica_ranks)
            if self._num_replicas == "auto"
            else self._num_replicas
        )
        if num_replicas * self._num_replica_ranks != num_ranks:
            raise ConfigError(
                f"{num_replicas} replicas x model.sequence_parallel = {self._sequence_size} x "
                f"model.tensor_parallel = {self._tensor_parallel_size} are not the {num_ranks} "
                "processes of trainer.devices x trainer.num_nodes; choose divisors of them, and "
                "trainer.strategy.data_parallel_size=auto"
            )
        self._data_parallel_size = num_replicas * self._sequence_size
        super().setup_environment()

    def model_to_device(self) -> None:
        """Offloaded weights stay where they are."""
        if not self._offloads_weights:
            super().model_to_device()

    def _get_process_group_backend(self) -> str:
        backend = super()._get_process_group_backend()
        if self._offloads_weights and backend == "nccl":
            return "cpu:gloo,cuda:nccl"
        return backend
