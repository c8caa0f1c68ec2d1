"""A model's sizes without its weights: parameters, what a layer keeps per token, cache per token.

The model is built of PyTorch's fake tensors, which have a shape and a device but no content, and
run once so. What autograd would keep for the backward pass is counted tensor by tensor, so hybrid
models need no formula of their own. Attention is replaced by a stand-in that keeps what a fused
kernel keeps (queries, keys, values, output, one log-sum-exp a head and token); so are, if wanted,
linear-attention layers.

Shape suffixes: A query heads, K key-value heads, T tokens, D head size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface, AttentionMaskInterface

from arise.errors import one_line

_PROBE = "arise_plan"
_PROBE_TOKENS = 128
_CHUNK_TOKENS = 64
_LINEAR_RULE = "torch_chunk_gated_delta_rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What memory depends on, in numbers of values unless it says bytes.

    Attributes:
        num_parameters: All of them; tied ones once.
        num_adapters: Those of low-rank adapters, if only they are trained; 0 without.
        num_cut: Those that tensor parallelism cuts: what the model's plan names, the vocabulary.
        layer_parameters: Of each unit that is gathered on its own (decoder layers).
        hidden_size: H.
        vocab_size: V.
        layer_bytes: Per layer, bytes that autograd keeps for a token.
        cut_bytes: What of it tensor parallelism cuts: the inside of attention and feed-forward.
        rest_bytes: The same outside the layers.
        widest_bytes: Bytes of the widest tensor kept for a token, which backward passes allocate
            as a gradient.
        cache_values: Keys and values of one token, over the layers that keep them.
        state_values: State of one episode in linear-attention layers, whatever its length.
        untraced: Why the bytes are not known; `None` if they are. A mixture of experts chooses by
            its data, and fake tensors have none.
    """

    num_parameters: int
    num_adapters: int
    num_cut: int
    layer_parameters: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    layer_bytes: tuple[float, ...]
    cut_bytes: tuple[float, ...]
    rest_bytes: float
    widest_bytes: float
    cache_values: int
    state_values: int
    untraced: str | None = None

    @property
    def root_parameters(self) -> int:
        """Parameters outside the layers: embedding, head, last norm."""
        return self.num_parameters - sum(self.layer_parameters)


def model_sizes(
    build: Any,
    *,
    dtype: torch.dtype,
    fuses_linear_attention: bool,
    lora_rank: int = 0,
    lora_targets: Any = "all-linear",
) -> ModelSizes:
    """Sizes of the model that `build` makes.

    Args:
        build: Makes a causal language model of transformers in a dtype, as
            `ModelLoader.empty_model` does; called where every tensor is a fake one.
        dtype: In which it computes.
        fuses_linear_attention: Count for linear-attention layers what a fused kernel keeps, instead
            of what transformers' own implementation does.
        lora_rank: Of adapters; 0 trains every weight.
        lora_targets: `all-linear`, or names of layers, as `model.lora.target_modules`.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build(dtype)
        layers = _layers(model)
        kept: tuple[Any, ...] = ((), (), 0.0, 0.0)
        untraced = None
        try:
            kept = _kept(model, layers, fuses_linear_attention)
        except RuntimeError as error:  # what fake tensors raise where data decide
            untraced = one_line(error, limit=120)
    layer_bytes, cut_bytes, rest, widest = kept
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    return ModelSizes(
        num_parameters=_count(model),
        num_adapters=sum(
            lora_rank * (module.in_features + module.out_features)
            for name, module in model.named_modules()
            if lora_rank and module is not head and _has_adapter(name, module, lora_targets)
        ),
        num_cut=_num_cut(model),
        layer_parameters=tuple(map(_count, layers)),
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layer_bytes=layer_bytes,
        cut_bytes=cut_bytes,
        rest_bytes=rest,
        widest_bytes=widest,
        cache_values=_cache_values(config),
        state_values=_state_values(config),
        untraced=untraced,
    )


def _layers(model: nn.Module) -> list[nn.Module]:
    """The units that FSDP2 gathers one at a time, as `PolicyLM.shard` finds them."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _pattern(name: str) -> str:
    """A module's name as plans have it: a star for each number."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _modules_cut_inside(model: Any) -> list[nn.Module]:
    """Modules with a matrix whose outputs stay on the rank that computes them."""
    plan: dict[str, str] = dict(model.tp_plan or {})
    parents = {name.rpartition(".")[0] for name, style in plan.items() if style == "colwise"}
    return [module for name, module in model.named_modules() if _pattern(name) in parents]


def _num_cut(model: Any) -> int:
    """Parameters that `arise.modules.tensor_parallel` cuts; none without a plan."""
    plan: dict[str, str] = dict(model.tp_plan or {})
    named = {name for name, style in plan.items() if style.startswith(("colwise", "rowwise"))}
    whole = (model.get_input_embeddings(), model.get_output_embeddings())
    cut = {
        id(parameter): parameter.numel()
        for name, module in model.named_modules()
        if named and (_pattern(name) in named or module in whole)
        for parameter in module.parameters(recurse=False)
    }
    return sum(cut.values())


def _has_adapter(name: str, module: nn.Module, targets: Any) -> bool:
    if not isinstance(module, nn.Linear):
        return False
    return targets == "all-linear" or name.rpartition(".")[2] in list(targets)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _kept(
    model: Any, layers: list[nn.Module], is_fused: bool
) -> tuple[tuple[float, ...], tuple[float, ...], float, float]:
    """Bytes a token that autograd keeps: of each layer and what can be cut, outside, the widest."""
    AttentionInterface.register(_PROBE, _probe_attention)
    AttentionMaskInterface.register(_PROBE, _no_mask)
    model.set_attn_implementation(_PROBE)
    model.eval()
    counter = _Counter(model, layers)
    with _stand_ins(model, is_fused), counter.watching():
        ids = torch.zeros((1, _PROBE_TOKENS), dtype=torch.int64)
        model.base_model(input_ids=ids, use_cache=False)
    tokens = float(_PROBE_TOKENS)
    return (
        tuple(size / tokens for size in counter.by_layer),
        tuple(size / tokens for size in counter.cut),
        counter.rest / tokens,
        counter.widest / tokens,
    )


class _Counter:
    """Counts every storage once, where it is kept first; parameters and buffers are not kept."""

    def __init__(self, model: Any, layers: list[nn.Module]) -> None:
        self._layers = layers
        self._current: int | None = None
        self._cut_modules = _modules_cut_inside(model)
        self._num_cut_inside = 0
        self._input_values = _PROBE_TOKENS * model.config.get_text_config().hidden_size
        self._seen = {
            tensor.untyped_storage()._cdata: tensor
            for tensor in (*model.parameters(), *model.buffers())
        }
        self.by_layer = [0] * len(layers)
        self.cut = [0] * len(layers)
        self.rest = 0
        self.widest = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is kept in here."""
        hooks = []
        for index, layer in enumerate(self._layers):
            hooks.append(layer.register_forward_pre_hook(self._enter(index)))
            hooks.append(layer.register_forward_hook(self._leave))
        for module in self._cut_modules:
            hooks.append(module.register_forward_pre_hook(self._step(1)))
            hooks.append(module.register_forward_hook(self._step(-1)))
        try:
            with saved_tensors_hooks(self._keep, lambda tensor: tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, index: int) -> Any:
        def enter(*_: Any) -> None:
            self._current = index

        return enter

    def _leave(self, *_: Any) -> None:
        self._current = None

    def _step(self, change: int) -> Any:
        def step(*_: Any) -> None:
            self._num_cut_inside += change

        return step

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata in self._seen:
            return tensor
        # Held, so that no other storage gets the same address.
        self._seen[storage._cdata] = tensor
        size = storage.nbytes()
        self.widest = max(self.widest, size)
        if self._current is None:
            self.rest += size
        else:
            self.by_layer[self._current] += size
            # Every rank has a module's input in full; what is computed from it is cut.
            if self._num_cut_inside and size != self._input_values * tensor.element_size():
                self.cut[self._current] += size
        return tensor


@contextmanager
def _stand_ins(model: nn.Module, is_fused: bool) -> Iterator[None]:
    """Put the stand-in for linear attention where the model's modules look it up."""
    homes = {sys.modules[type(module).__module__] for module in model.modules()}
    found = [home for home in homes if is_fused and hasattr(home, _LINEAR_RULE)]
    kept = [(home, getattr(home, _LINEAR_RULE)) for home in found]
    try:
        for home in found:
            setattr(home, _LINEAR_RULE, _probe_linear_rule)
        yield
    finally:
        for home, rule in kept:
            setattr(home, _LINEAR_RULE, rule)


class _Attend(torch.autograd.Function):
    """Keeps what FlashAttention and PyTorch's fused kernels keep."""

    @staticmethod
    def forward(ctx: Any, query_1ATD: Tensor, key_1KTD: Tensor, value_1KTD: Tensor) -> Tensor:
        output = query_1ATD.new_empty((*query_1ATD.shape[:-1], value_1KTD.shape[-1]))
        log_sum_exp = query_1ATD.new_empty(query_1ATD.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query_1ATD, key_1KTD, value_1KTD, output, log_sum_exp)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError("a plan has no backward pass")


class _LinearRule(torch.autograd.Function):
    """Keeps what flash-linear-attention's gated delta rule keeps."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *gates: Tensor) -> Tensor:
        inverse = key.new_empty((*key.shape[:-1], _CHUNK_TOKENS))
        output = torch.empty_like(value)
        ctx.save_for_backward(query, key, value, *gates, inverse)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError("a plan has no backward pass")


def _probe_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    output: Tensor = _Attend.apply(query, key, value)
    return output.transpose(1, 2), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Causal masks are the kernel's own."""


def _probe_linear_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any
) -> tuple[Tensor, None]:
    return _LinearRule.apply(query, key, value, g, beta), None


def _is_linear(config: Any) -> list[bool]:
    """Of each layer, whether it is linear attention; models that do not say have none."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return ["linear" in kind for kind in kinds]


def _cache_values(config: Any) -> int:
    """2 · K · D over the layers with a key-value cache; a sliding window's limit is not used."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    num_layers = sum(not linear for linear in _is_linear(config))
    return 2 * num_heads * head * num_layers


def _state_values(config: Any) -> int:
    """Of an episode: the recurrent state and the convolution's window, over linear layers."""
    num_layers = sum(_is_linear(config))
    if not num_layers or not hasattr(config, "linear_num_value_heads"):
        return 0
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    state = values * config.linear_key_head_dim
    window = (2 * keys + values) * config.linear_conv_kernel_dim
    return num_layers * (state + window)
