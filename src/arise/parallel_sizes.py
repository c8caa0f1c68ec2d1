"""How the processes of training are divided up, from the configuration.

    processes = replicas x sequence-parallel x tensor-parallel

Used to refuse what cannot be before anything heavy is loaded, and to plan a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSizes:
    """Processes along each dimension.

    Example: 32 processes with sequence 4 and tensor 2 are 4 replicas, and 16 ranks hold the
    parameters of each piece of a matrix.

    Attributes:
        replicas: Micro-batches that run at the same time.
        sequence: Ranks that share the tokens of a micro-batch (`model.sequence_parallel`).
        tensor: Ranks among which matrices are cut (`model.tensor_parallel`).
    """

    replicas: int
    sequence: int
    tensor: int

    @property
    def num_processes(self) -> int:
        """All of them."""
        return self.replicas * self.sequence * self.tensor

    @property
    def num_sharding_ranks(self) -> int:
        """Ranks that share the parameters (FSDP2)."""
        return self.replicas * self.sequence


def parallel_sizes(cfg: Any) -> ParallelSizes:
    """The sizes of a configuration that `parallel_problems` finds nothing wrong with."""
    sequence, tensor = cfg.model.sequence_parallel, cfg.model.tensor_parallel
    replicas = cfg.trainer.strategy.data_parallel_size
    if replicas == "auto":
        replicas = _num_processes(cfg) // (sequence * tensor)
    return ParallelSizes(replicas=replicas, sequence=sequence, tensor=tensor)


def parallel_problems(cfg: Any) -> Iterator[str]:
    """Sizes that contradict each other, one sentence each."""
    model, strategy = cfg.model, cfg.trainer.strategy
    if "tensor_parallel" not in model:  # an endpoint, which is not trained
        return
    for key in ("sequence", "tensor"):
        given, meant = strategy[f"{key}_parallel_size"], model[f"{key}_parallel"]
        if given != meant:
            yield (
                f"trainer.strategy.{key}_parallel_size = {given} is not model.{key}_parallel = "
                f"{meant}; set model.{key}_parallel alone"
            )
    if model.cpu_offload in ("activations", "both") and not model.activation_checkpointing:
        yield (
            f"model.cpu_offload = {model.cpu_offload} keeps checkpointed activations on the host, "
            "but model.activation_checkpointing is false; set it to true, or offload weights only"
        )
    if model.tensor_parallel > 1 and model.lora.rank:
        yield (
            f"model.tensor_parallel = {model.tensor_parallel} cuts no adapters (model.lora.rank = "
            f"{model.lora.rank}); use model.tensor_parallel=1, or model.lora.rank=0"
        )
    if isinstance(cfg.trainer.devices, int):
        yield from _product_problems(cfg)


def _product_problems(cfg: Any) -> Iterator[str]:
    sizes, processes = parallel_sizes(cfg), _num_processes(cfg)
    if sizes.num_processes == processes:
        return
    inside = sizes.sequence * sizes.tensor
    advice = f"set it to auto or {processes // inside}"
    if processes % inside:
        advice = "choose sizes whose product divides the processes"
    yield (
        f"trainer.strategy.data_parallel_size = {cfg.trainer.strategy.data_parallel_size} x "
        f"model.sequence_parallel = {sizes.sequence} x model.tensor_parallel = {sizes.tensor} is "
        f"not trainer.devices x trainer.num_nodes = {cfg.trainer.devices} x "
        f"{cfg.trainer.num_nodes}; {advice}"
    )


def _num_processes(cfg: Any) -> int:
    return int(cfg.trainer.devices * cfg.trainer.num_nodes)
