"""The module that FSDP2 shards: a causal language model that answers with log-probabilities."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
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
from arise.errors import ConfigError
from arise.modules.lora import merged_weights

log = logging.getLogger(__name__)

_PACKING_TOLERANCE = 1e-4


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
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens
        self.layout = self._choose_layout(layout)
        if activation_checkpointing:
            self._checkpoint_activations()
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
        hidden = self._hidden_states(batch)[index]
        head: Any = self.model.get_output_embeddings()
        logprobs, entropy = token_logprobs(
            hidden,
            head.weight,
            batch.input_ids[index + 1],
            temperature=self.temperature,
            head_bias=getattr(head, "bias", None),
            chunk_tokens=self.chunk_tokens,
        )
        return (
            align_to_tokens(logprobs, index, num_tokens=batch.num_tokens),
            align_to_tokens(entropy, index, num_tokens=batch.num_tokens),
        )

    def _hidden_states(self, batch: PackedBatch) -> Tensor:
        """float[T, H], last hidden states in packed order."""
        decoder = self.model.base_model
        if self.layout == "packed":
            output = decoder(
                input_ids=batch.input_ids[None],
                position_ids=batch.position_ids[None],
                **span_arguments(batch.cu_seqlens),
            )
            return output.last_hidden_state[0]
        input_ids, attention_mask, index = to_padded(batch)
        output = decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return output.last_hidden_state.flatten(0, 1)[index]

    def shard(self, mesh: DeviceMesh, *, compute_dtype: torch.dtype) -> None:
        """Shard parameters over the data-parallel mesh: every decoder layer, then the rest.

        Weights stay float32; the forward pass runs in `compute_dtype`, gradients are reduced in
        float32. (With bfloat16 weights, updates at a learning rate of 2e-6 are lost to rounding.)
        """
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        layer_types = set(getattr(self.model, "_no_split_modules", None) or ())
        for module in self.model.modules():
            if type(module).__name__ in layer_types:
                fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(self, mesh=mesh, mp_policy=policy)

    def reshard_weights(self) -> None:
        """Parameters as the optimizer knows them.

        A forward pass without a backward pass leaves those outside the layers in full.
        """
        if isinstance(self, FSDPModule):
            self.reshard()

    def full_weights(self) -> dict[str, Tensor]:
        """Every tensor of the model in full, by its transformers name; a collective call.

        Adapters are merged into the weights they adapt.
        """
        tensors = {name: _full(t).detach() for name, t in self.model.state_dict().items()}
        return merged_weights(self.model, tensors)


def _full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
