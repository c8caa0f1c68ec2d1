"""Tensor parallelism: every rank has a piece of each large matrix, cut as transformers plans it.

The plan of the model's class says which projections are cut by rows or by columns and where
activations are exchanged; transformers cuts them into DTensors and puts the exchanges around their
modules. Three things are ours. The vocabulary is cut too, embedding and output head alike, so that
the largest matrices are not on every rank (tied ones stay one). Gradients of parameters that see
some of the heads only (Qwen3's `q_norm` and `k_norm`) are summed once a step: transformers' hook
would sum an earlier micro-batch's part again, and does not know of sharded gradients. And what the
plan cannot cut is refused before anything is.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import PreTrainedModel
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, apply_tensor_parallelism

from arise.errors import ConfigError

_PARTIAL = "replicated_with_grad_allreduce"
_BY_ROWS = ("colwise", "colwise_gather_output", "colwise_rep")
_BY_COLUMNS = ("rowwise", "rowwise_rep", "rowwise_split_input")
_KEY = "model.tensor_parallel"


def cut_model(model: PreTrainedModel, mesh: DeviceMesh) -> list[str]:
    """Cut a whole model into this rank's pieces, in place; the function it computes is the same.

    Args:
        model: With all its weights, the same on every rank.
        mesh: The ranks of one replica, one dimension.

    Returns:
        Names of parameters that every rank has in full, but whose gradients on a rank are those of
        its heads: to be summed over `mesh`.

    Raises:
        ConfigError: The model has no plan, or sizes are not multiples of the number of ranks.
    """
    plan = _plan(model)
    _require_divisible(model, plan, mesh.size())
    # Norms and whole tensors take two collective calls, which is said at every first time.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    partial_modules = [name for name, style in plan.items() if style == _PARTIAL]
    for name in partial_modules:
        del plan[name]
    planned = model._tp_plan
    # Unlike its property, the attribute may name modules that this size of the model does not have.
    model._tp_plan = plan
    try:
        apply_tensor_parallelism(model, mesh)
    finally:
        model._tp_plan = planned
    _cut_vocabulary(model, mesh)
    return [
        name for name, _ in model.named_parameters() if _pattern(_parent(name)) in partial_modules
    ]


def vocabulary_group(head: Any) -> ProcessGroup | None:
    """Ranks among which the output head's vocabulary is cut; `None` if it is not."""
    weight = head.weight
    is_cut = isinstance(weight, DTensor) and weight.placements == (Shard(0),)
    return weight.device_mesh.get_group() if is_cut else None


def local_part(tensor: Tensor | None) -> Tensor | None:
    """What this rank has of a tensor; differentiable."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_gradients(model: nn.Module, names: list[str], group: ProcessGroup) -> None:
    """Add up over ranks what each of them has of these parameters' gradients; collective."""
    for name in names:
        gradient = local_part(model.get_parameter(name).grad)
        if gradient is not None:
            distributed.all_reduce(gradient, group=group)


def _plan(model: PreTrainedModel) -> dict[str, str]:
    """The plan of the model's class for the layers; of ours for the vocabulary."""
    plan = dict(model.tp_plan or {})
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        plan.pop(_name_of(model, module), None)
    if not plan:
        raise ConfigError(
            f"{_KEY}: transformers has no tensor-parallel plan for {type(model).__name__}; use "
            f"{_KEY}=1, and model.sequence_parallel for long rows"
        )
    if any(hasattr(module, "base_layer") for module in model.modules()):
        raise ConfigError(f"{_KEY} cuts no adapters; use {_KEY}=1, or model.lora.rank=0")
    unknown = sorted(set(plan.values()) - set(ALL_PARALLEL_STYLES))
    if unknown:
        raise ConfigError(
            f"{_KEY}: the plan of {type(model).__name__} asks for {unknown[0]!r}, which "
            f"transformers does not have; use {_KEY}=1"
        )
    return plan


def _require_divisible(model: PreTrainedModel, plan: dict[str, str], num_ranks: int) -> None:
    config = model.config.get_text_config()
    require_heads(config, tensor=num_ranks, sequence=1)
    for name, parameter in model.named_parameters():
        style = plan.get(_pattern(name), plan.get(_pattern(_parent(name))))
        if style in _BY_ROWS:
            size = parameter.shape[0]
        elif style in _BY_COLUMNS and parameter.ndim > 1:
            size = parameter.shape[-1]
        else:
            continue
        if size % num_ranks:
            raise ConfigError(
                f"{_KEY} = {num_ranks} does not divide the {size} features of {name}; choose a "
                "divisor of them"
            )


def require_heads(config: Any, *, tensor: int, sequence: int) -> None:
    """Refuse numbers of ranks that attention heads cannot be shared out to.

    Query and key-value heads are shared out to the tensor-parallel ranks. Those of each are then
    shared out to the sequence-parallel ranks, where a key-value head may go to several.

    Args:
        config: The text model's configuration in transformers.
        tensor: `model.tensor_parallel`.
        sequence: `model.sequence_parallel`.

    Raises:
        ConfigError: A number does not divide the heads.

    Example: 32 query and 8 key-value heads go with tensor 8, or 2 and sequence 16, not with 3.
    """
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    for name, number in (("attention", heads), ("key-value", kv_heads)):
        if number % tensor:
            raise ConfigError(
                f"{_KEY} = {tensor} does not divide the model's {number} {name} heads; choose a "
                "divisor"
            )
    own_heads, own_kv_heads = heads // tensor, kv_heads // tensor
    if own_heads % sequence or (own_kv_heads % sequence and sequence % own_kv_heads):
        raise ConfigError(
            f"model.sequence_parallel = {sequence} cannot share out the {own_heads} attention and "
            f"{own_kv_heads} key-value heads of a rank ({_KEY} = {tensor}); choose a divisor of "
            "both, or a multiple of the latter that divides the former"
        )


def _cut_vocabulary(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Embedding and head by rows; they stay whole if the vocabulary is not a multiple."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    is_tied = head.weight is embedding.weight
    if any(len(module.weight) % mesh.size() for module in (embedding, head)):
        return
    style = ALL_PARALLEL_STYLES["embedding_rowwise"]
    style.shard_param(embedding, "weight", mesh)
    style.install_forward(embedding, mesh)
    head.weight = embedding.weight if is_tied else _by_rows(head.weight, mesh)
    if getattr(head, "bias", None) is not None:
        head.bias = _by_rows(head.bias, mesh)


def _by_rows(parameter: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
    piece = distribute_tensor(parameter.data, mesh, [Shard(0)], src_data_rank=None)
    return nn.Parameter(piece, requires_grad=parameter.requires_grad)


def _pattern(name: str) -> str:
    """A name as plans write it, with `*` for the number of a layer."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _name_of(model: nn.Module, module: Any) -> str:
    return next(name for name, candidate in model.named_modules() if candidate is module)
