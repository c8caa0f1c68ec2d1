"""Memory of a trainer rank and of an engine, from a model's sizes: the formulas of docs/memory.md.

With N parameters (N_t trained), R replicas, s sequence-parallel and t tensor-parallel ranks, b_c
bytes of a computed value (2 in bfloat16), T tokens of a micro-batch, L layers of N_l parameters,
N_0 parameters outside the layers, a_l bytes kept of a token by layer l (`arise.planning.tracing`);
f is the share that a rank has of all parameters before sharding, (1 - cut) + cut / t:

    parameters  = 4 · f N / (R·s)                       float32 master weights, sharded (FSDP2)
    gradients   = 4 · f N_t / (R·s)
    optimizer   = 8 · f N_t / (R·s)                     AdamW's two moments
    gathered    = b_c · f (N_0 + 2 · max N_l)           the root, a layer in use, the next one
                + (b_c + 4) · f max(N_0, N_l)           gradients of a unit before they are reduced
    activations = T/s · (Σ a_l + a_0)                   all kept
                = T/s · (L · b_c · H + max a_l + a_0)   layers computed again (checkpointing)
    backward    = 2 · w · T/s                           gradients of the widest tensor, in and out
    head        = T/s · 4 · H + 8 · C · V'              C scored tokens, V' columns of a tile

Of a_l, tensor parallelism divides the inside of attention and feed-forward by t, not the inputs and
not linear attention, whose plan gathers. One process that computes in float32 gathers nothing but a
layer's gradients. `cpu_offload` moves layer inputs ("activations"), or parameters, gradients and
moments ("weights"), to the host. Weights on their way to the engine are gathered one tensor at a
time and wait in the host's memory. What adapters (N_t) add to N and to activations is left out.

An engine keeps b_e · N / t of weights, and of an episode of n tokens b_e · (n · c / t + state),
c = 2 · K · D over the layers with a key-value cache.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from arise.planning.tracing import ModelSizes

_TILE_COLUMNS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup:
    """How the trainer is spread and what it keeps.

    Attributes:
        num_replicas: R.
        sequence_parallel: s.
        tensor_parallel: t.
        micro_batch_tokens: T.
        compute_bytes: b_c.
        checkpoints_activations: Whether layers are computed again in the backward pass.
        cpu_offload: `none`, `activations`, `weights` or `both`.
        chunk_tokens: C.
        is_gpu: Whether the head's tiles span the vocabulary, as they do on CUDA.
    """

    num_replicas: int
    micro_batch_tokens: int
    compute_bytes: int
    checkpoints_activations: bool
    chunk_tokens: int
    is_gpu: bool
    sequence_parallel: int = 1
    tensor_parallel: int = 1
    cpu_offload: str = "none"

    @property
    def num_ranks(self) -> int:
        """Trainer processes."""
        return self.num_replicas * self.sequence_parallel * self.tensor_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one trainer rank's device, at the peak of a step; see the module's formulas."""

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    backward: float
    head: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def resident(self) -> float:
        """What is there all the time: less than this can never do."""
        return self.parameters + self.gradients + self.optimizer


def rank_memory(sizes: ModelSizes, setup: TrainerSetup) -> RankMemory:
    """Memory of one trainer rank.

    Args:
        sizes: Of the model, traced in the computing dtype.
        setup: How it is trained.
    """
    t = setup.tensor_parallel
    tokens = setup.micro_batch_tokens / setup.sequence_parallel
    share = _share(sizes, t)
    num_shards = setup.num_replicas * setup.sequence_parallel
    trained = sizes.num_adapters or sizes.num_parameters
    keeps_weights = setup.cpu_offload not in ("weights", "both")
    own = share * sizes.num_parameters / num_shards * keeps_weights
    own_trained = share * trained / num_shards * keeps_weights
    columns = sizes.vocab_size / t if setup.is_gpu else _TILE_COLUMNS
    return RankMemory(
        parameters=4 * own,
        gradients=4 * own_trained,
        optimizer=8 * own_trained,
        gathered=share * _gathered(sizes, setup),
        activations=tokens * _kept_bytes(sizes, setup),
        backward=2 * tokens * sizes.widest_bytes / t,
        head=tokens * 4 * sizes.hidden_size + 8 * setup.chunk_tokens * columns,
    )


def _share(sizes: ModelSizes, tensor_parallel: int) -> float:
    """f: parameters of a tensor-parallel rank over all parameters."""
    cut = sizes.num_cut / sizes.num_parameters
    return 1 - cut + cut / tensor_parallel


def _gathered(sizes: ModelSizes, setup: TrainerSetup) -> float:
    root, layer = sizes.root_parameters, max(sizes.layer_parameters, default=0)
    largest = max(root, layer)
    if setup.num_ranks == 1 and setup.compute_bytes == 4:
        return 4.0 * largest
    return setup.compute_bytes * (root + 2 * layer) + (setup.compute_bytes + 4) * largest


def _kept_bytes(sizes: ModelSizes, setup: TrainerSetup) -> float:
    """Bytes of a token that wait for the backward pass."""
    lost = 1 - 1 / setup.tensor_parallel
    layers = [
        whole - lost * cut for whole, cut in zip(sizes.layer_bytes, sizes.cut_bytes, strict=True)
    ]
    if not setup.checkpoints_activations:
        return sum(layers) + sizes.rest_bytes
    keeps_inputs = setup.cpu_offload not in ("activations", "both")
    inputs = len(layers) * setup.compute_bytes * sizes.hidden_size * keeps_inputs
    return inputs + max(layers, default=0.0) + sizes.rest_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes that the engine needs on one device.

    Attributes:
        weights: Of the policy.
        per_token: Of the key-value cache, for a token.
        per_episode: Of linear-attention layers, for an episode.
    """

    weights: float
    per_token: float
    per_episode: float

    def episode(self, num_tokens: int) -> float:
        """Of one episode of so many tokens."""
        return self.per_token * num_tokens + self.per_episode


def engine_memory(sizes: ModelSizes, *, value_bytes: int, tensor_parallel: int = 1) -> EngineMemory:
    """Memory of an engine, on each of its devices.

    Args:
        sizes: Of the model.
        value_bytes: b_e, of weights and cache.
        tensor_parallel: Devices of one server.
    """
    return EngineMemory(
        weights=value_bytes * sizes.num_parameters / tensor_parallel,
        per_token=value_bytes * sizes.cache_values / tensor_parallel,
        per_episode=value_bytes * sizes.state_values / tensor_parallel,
    )
