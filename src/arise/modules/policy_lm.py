"""The module that FSDP2 shards: a causal language model that answers with log-probabilities."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from arise.algorithms.attention import (
    SPAN_ATTENTION,
    packing_is_exact,
    register_span_attention,
    span_arguments,
)
from arise.algorithms.logprobs import token_logprobs
from arise.algorithms.packing import PackedBatch, align_to_tokens, prediction_index, to_padded
from arise.algorithms.ulysses import shared_inputs, sum_of_shares, token_share
from arise.errors import ConfigError
from arise.modules.lora import merged_weights
from arise.modules.offloading import offload_checkpoints
from arise.modules.tensor_parallel import (
    cut_model,
    local_part,
    require_heads,
    sum_gradients,
    vocabulary_group,
)

log = logging.getLogger(__name__)

_PACKING_TOLERANCE = 1e-4
_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


class PolicyLM(nn.Module):
    """log π_θ of every generated token of a micro-batch.

    It is the FSDP root: the head's weights are read inside `forward` only, where a sharded head is
    gathered. Dropout is off, in training too: it would score another distribution than the one
    that was sampled from.

    Args:
        model: A transformers causal language model, float32.
        temperature: Sampling temperature of the rollouts; log-probabilities are of the
            distribution that was sampled from.
        chunk_tokens: Tokens whose logits exist at one time.
        layout: `"packed"`, `"rows"`, or `"auto"`: packed if the model keeps packed sequences
            apart, which is tried here.
        activation_checkpointing: Keep each layer's inputs only and compute its inside again in the
            backward pass: less memory, a third more time, the same numbers.
        offload_activations: Keep those inputs in the host's memory.

    Raises:
        ConfigError: `layout="packed"` and the model mixes packed sequences, or the model cannot
            checkpoint activations.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        chunk_tokens: int,
        layout: str,
        activation_checkpointing: bool,
        offload_activations: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self._sequence_group: ProcessGroup | None = None
        self._tensor_group: ProcessGroup | None = None
        self._partial_parameters: list[str] = []
        self._num_sharding_ranks = 1
        self._device: torch.device | None = None
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens
        self.layout = self._choose_layout(layout)
        if activation_checkpointing:
            self._checkpoint_activations()
        if offload_activations:
            offload_checkpoints(model)
        self.train()

    def train(self, mode: bool = True) -> PolicyLM:
        """Set the mode; of the model, only layers that checkpoint their activations follow."""
        self.training = mode
        self.model.eval()
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = mode and module.gradient_checkpointing
        return self

    def _checkpoint_activations(self) -> None:
        try:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        except ValueError as error:
            raise ConfigError(
                f"model.activation_checkpointing = true, but {type(self.model).__name__} does not "
                f"support it: {error}"
            ) from error

    def _choose_layout(self, layout: str) -> str:
        if layout == "rows":
            return layout
        original = self.model.config._attn_implementation
        register_span_attention()
        try:
            self.model.set_attn_implementation(SPAN_ATTENTION)
            check = packing_is_exact(
                self.model,
                vocab_size=self.model.config.get_text_config().vocab_size,
                tolerance=_PACKING_TOLERANCE,
            )
            reason = f"packed and single forward differ by {check.max_difference:.1e}"
            if check.is_exact:
                return "packed"
        except (ValueError, ConfigError) as error:
            reason = str(error)
        if layout == "packed":
            raise ConfigError(
                f"model.layout = packed, but {type(self.model).__name__} mixes packed sequences "
                f"({reason}); use model.layout=auto or rows"
            )
        self.model.set_attn_implementation(original)
        log.info("%s trains in padded rows: %s", type(self.model).__name__, reason)
        return "rows"

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Score the generated tokens.

        Args:
            batch: A micro-batch on this module's device.

        Returns:
            float32[T] log π_θ (0 where not generated) and float32[T] entropy (no gradient).
        """
        index = prediction_index(batch, generated_only=True)
        own = token_share(batch.num_tokens, self._sequence_group)
        index = index[(index >= own.start) & (index < own.stop)]
        hidden = self._hidden_states(batch)[index - own.start]
        head: Any = self.model.get_output_embeddings()
        weight = local_part(head.weight)
        assert weight is not None
        logprobs, entropy = token_logprobs(
            hidden,
            weight,
            batch.input_ids[index + 1],
            temperature=self.temperature,
            head_bias=local_part(getattr(head, "bias", None)),
            chunk_tokens=self.chunk_tokens,
            vocabulary_group=vocabulary_group(head),
        )
        scores = (
            align_to_tokens(logprobs, index, num_tokens=batch.num_tokens),
            align_to_tokens(entropy, index, num_tokens=batch.num_tokens),
        )
        if self._sequence_group is None:
            return scores
        return (
            sum_of_shares(scores[0], self._sequence_group),
            sum_of_shares(scores[1], self._sequence_group),
        )

    def _hidden_states(self, batch: PackedBatch) -> Tensor:
        """float[T, H], last hidden states in packed order; of this rank's share of the tokens."""
        decoder = self.model.base_model
        if self.layout == "packed":
            input_ids, position_ids, cu_seqlens = _inputs(batch, self._sequence_group)
            output = decoder(
                input_ids=input_ids[None],
                position_ids=position_ids[None],
                **span_arguments(cu_seqlens, sequence_group=self._sequence_group),
            )
            return output.last_hidden_state[0]
        input_ids, attention_mask, index = to_padded(batch)
        output = decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return output.last_hidden_state.flatten(0, 1)[index]

    def shard(
        self,
        mesh: DeviceMesh,
        *,
        compute_dtype: torch.dtype,
        tensor_mesh: DeviceMesh | None = None,
        sequence_group: ProcessGroup | None = None,
        offload_weights: bool = False,
    ) -> None:
        """Spread the model over ranks: every decoder layer, then the rest.

        Weights stay float32; the forward pass runs in `compute_dtype`, gradients are reduced in
        float32. (With bfloat16 weights, updates at a learning rate of 2e-6 are lost to rounding.)

        Args:
            mesh: Ranks that share the parameters (FSDP2).
            compute_dtype: Type of the forward pass.
            tensor_mesh: Ranks among which matrices are cut; `None` or one rank cuts none.
            sequence_group: Ranks that share the tokens of a micro-batch, a part of `mesh`.
            offload_weights: Keep parameters, gradients and optimizer state in the host's memory.

        Raises:
            ConfigError: The model cannot be cut like that.
        """
        self._num_sharding_ranks = mesh.size()
        if offload_weights and mesh.device_type == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
        tensor_size = 1 if tensor_mesh is None else tensor_mesh.size()
        sequence_size = 1 if sequence_group is None else sequence_group.size()
        if sequence_size > 1:
            self._require_exchangeable(tensor_size, sequence_size)
            self._sequence_group = sequence_group
        if tensor_mesh is not None and tensor_size > 1:
            self._tensor_group = tensor_mesh.get_group()
            self._partial_parameters = cut_model(self.model, tensor_mesh)
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        offload = OffloadPolicy()
        if offload_weights:
            offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        layer_types = set(getattr(self.model, "_no_split_modules", None) or ())
        for module in self.model.modules():
            if type(module).__name__ in layer_types:
                fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload)
        fully_shard(self, mesh=mesh, mp_policy=policy, offload_policy=offload)

    def _require_exchangeable(self, tensor_size: int, sequence_size: int) -> None:
        """Tokens may meet in attention only, and only in ours."""
        config = self.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS
        if self.layout != "packed" or kinds:
            raise ConfigError(
                f"model.sequence_parallel = {sequence_size} needs packed rows and layers whose "
                f"tokens meet in softmax attention only, but {type(self.model).__name__} has "
                f"{', '.join(sorted(kinds)) or 'the layout rows'}; use model.sequence_parallel=1, "
                "and model.tensor_parallel to spread the model"
            )
        require_heads(config, tensor=tensor_size, sequence=sequence_size)

    @property
    def device(self) -> torch.device:
        """Where micro-batches are to be; offloaded weights wait elsewhere."""
        return self._device or next(self.parameters()).device

    @property
    def num_sharding_ranks(self) -> int:
        """Ranks that FSDP averages gradients over."""
        return self._num_sharding_ranks

    @property
    def num_replica_ranks(self) -> int:
        """Ranks that run a micro-batch together, each having the same results."""
        groups = (self._sequence_group, self._tensor_group)
        return math.prod(group.size() for group in groups if group is not None)

    def complete_gradients(self) -> None:
        """Once after all backward passes of a step: what tensor parallelism left to be summed."""
        if self._tensor_group is not None:
            sum_gradients(self.model, self._partial_parameters, self._tensor_group)

    def reshard_weights(self) -> None:
        """Parameters as the optimizer knows them.

        A forward pass without a backward pass leaves those outside the layers in full.
        """
        if isinstance(self, FSDPModule):
            self.reshard()

    def full_weights(self, *, is_kept: bool = True) -> dict[str, Tensor]:
        """Every tensor of the model in full, by its transformers name; a collective call.

        Adapters are merged into the weights they adapt. What was gathered from several ranks waits
        in the host's memory: a large model in full does not fit on a device.

        Args:
            is_kept: Whether this rank wants them; one that does not gets nothing, and never holds
                more than one of them.
        """
        tensors = {}
        for name, tensor in self.model.state_dict().items():
            full = _full(tensor).detach()
            if is_kept:
                tensors[name] = full.cpu() if self._is_spread else full
        return merged_weights(self.model, tensors) if is_kept else {}

    @property
    def _is_spread(self) -> bool:
        return self.num_sharding_ranks * self.num_replica_ranks > 1


def _inputs(batch: PackedBatch, group: ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    if group is None:
        return batch.input_ids, batch.position_ids, batch.cu_seqlens
    return shared_inputs(batch, group)


def _full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
