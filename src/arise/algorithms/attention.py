"""Attention over packed rows: every sequence of a row sees itself only.

A packed row is [1, T] tokens of several sequences, one after the other. The boundaries travel as
`cu_seq_lens_q` (the keyword that transformers passes down to every layer); SDPA then runs on each
span, or on CUDA one variable-length FlashAttention kernel on all. No [T, T] mask is ever built.
Ranks that share the tokens of a row exchange them for heads around it (`ulysses`).

Shape suffixes: B rows, A query heads, K key-value heads, T tokens, D head size, S sequences.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from arise.algorithms.ulysses import gather_tokens, scatter_tokens
from arise.errors import ConfigError

SPAN_ATTENTION = "arise_spans"
"""Value of a model's `attn_implementation`."""

_CHECK_LENGTHS = (7, 19, 12)
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def register_span_attention() -> None:
    """Make `attn_implementation="arise_spans"` known to transformers. Repeating it is harmless."""
    AttentionInterface.register(SPAN_ATTENTION, span_attention)
    AttentionMaskInterface.register(SPAN_ATTENTION, _span_mask)


def span_arguments(
    cu_seqlens: Tensor, *, sequence_group: ProcessGroup | None = None
) -> dict[str, Any]:
    """Keyword arguments of a transformers model's forward that make a packed row exact.

    `use_cache=False` and `attention_mask=None` are part of it: with a cache or a mask of ones some
    models mix the sequences of a row without a word.

    Args:
        cu_seqlens: int32[S+1], first token of each sequence, then T.
        sequence_group: Ranks that hold equal shares of the T tokens; `None` if the row is here.

    Returns:
        Arguments to pass besides `input_ids` and `position_ids`, both [1, T].
    """
    longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max())
    return {
        "attention_mask": None,
        "use_cache": False,
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
    } | ({} if sequence_group is None else {"sequence_group": sequence_group})


def span_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    sequence_group: ProcessGroup | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each span of a packed row, or inside each row if there are no spans.

    Args:
        module: The attention layer.
        query: float[B, A, T, D]; B = 1 if spans are given.
        key: float[B, K, T, D], A a multiple of K.
        value: float[B, K, T, D].
        attention_mask: Mask for padded rows or a cache; must be `None` with spans.
        dropout: Dropout probability of the attention weights.
        scaling: Factor of the scores; `None` is D^-0.5.
        sliding_window: Tokens a query sees, itself included; `None` is all before it.
        cu_seq_lens_q: int32[S+1], span boundaries.
        max_length_q: Tokens of the longest span.
        sequence_group: Ranks that hold equal shares of a packed row's tokens, T of them here; A and
            K multiples or divisors of their number.
        **kwargs: What else the model passes to its attention functions.

    Returns:
        float[B, T, A, D] and `None` for the weights.

    Raises:
        ConfigError: If the layer needs something that is not implemented here.
        ValueError: If spans come with a mask, a cache or several rows.
    """
    _require_supported(module, kwargs)
    if attention_mask is not None or query.shape[2] != key.shape[2]:
        if cu_seq_lens_q is not None:
            raise ValueError("a packed row takes no attention mask and no key-value cache")
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if cu_seq_lens_q is None:
        output = _attend(query, key, value, dropout=dropout, scaling=scaling, window=sliding_window)
        return output.transpose(1, 2), None
    if len(query) != 1:
        raise ValueError(f"spans describe one packed row, but there are {len(query)} rows")
    if sequence_group is not None:
        output, _ = span_attention(
            module,
            gather_tokens(query, sequence_group),
            gather_tokens(key, sequence_group),
            gather_tokens(value, sequence_group),
            None,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            cu_seq_lens_q=cu_seq_lens_q,
            max_length_q=max_length_q,
            **kwargs,
        )
        return scatter_tokens(output, sequence_group), None
    if _has_varlen_kernel(query, dropout):
        longest = max_length_q or int((cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).max())
        packed = _attend_varlen(
            query, key, value, cu_seq_lens_q, longest, scaling=scaling, window=sliding_window
        )
        return packed, None
    spans = [
        _attend(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            dropout=dropout,
            scaling=scaling,
            window=sliding_window,
        )
        for start, end in itertools.pairwise(cu_seq_lens_q.tolist())
    ]
    return torch.cat(spans, dim=2).transpose(1, 2), None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingCheck:
    """Whether a model keeps packed sequences apart.

    Attributes:
        is_exact: Whether `max_difference` is within the tolerance.
        max_difference: Largest |packed − alone| of the logits over the largest |alone|.
    """

    is_exact: bool
    max_difference: float


@torch.no_grad()
def packing_is_exact(
    model: nn.Module, *, vocab_size: int, tolerance: float, device: torch.device | str = "cpu"
) -> PackingCheck:
    """Compare one packed forward pass with one per sequence. Packing is a property of the model.

    Models with recurrent or linear-attention layers may carry state across a boundary whatever
    the attention function does; a model that fails must train in right-padded rows. The model's
    mode and the global random generators are left as they were.

    Args:
        model: A transformers causal language model.
        vocab_size: Token ids are drawn below it.
        tolerance: Largest relative difference of the logits (1e-4 suits float32).
        device: Where the model is.

    Returns:
        The verdict and the difference it rests on; a NaN is not exact.
    """
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(vocab_size, (n,), generator=generator) for n in _CHECK_LENGTHS]
    cu_seqlens = torch.tensor([0, *itertools.accumulate(_CHECK_LENGTHS)], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in _CHECK_LENGTHS])
    was_training = model.training
    model.eval()
    try:
        alone = [
            model(input_ids=row[None].to(device), attention_mask=None, use_cache=False).logits[0]
            for row in rows
        ]
        packed = model(
            input_ids=torch.cat(rows)[None].to(device),
            position_ids=positions[None].to(device),
            **span_arguments(cu_seqlens.to(device)),
        ).logits[0]
    finally:
        model.train(was_training)
    reference = torch.cat(alone).double()
    difference = float((packed.double() - reference).abs().max() / reference.abs().max())
    return PackingCheck(is_exact=difference <= tolerance, max_difference=difference)


def _require_supported(module: nn.Module, kwargs: dict[str, Any]) -> None:
    unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if not getattr(module, "is_causal", True):
        unsupported.append("attention that is not causal")
    if unsupported:
        raise ConfigError(
            f"packed rows need {SPAN_ATTENTION!r} attention, but {type(module).__name__} uses "
            f"{', '.join(unsupported)}, which it does not compute; choose model.layout=rows"
        )


def _attend(
    query_BALD: Tensor,
    key_BKLD: Tensor,
    value_BKLD: Tensor,
    *,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    length = query_BALD.shape[2]
    mask_LL = None
    if window is not None and length > window:
        positions = torch.arange(length, device=query_BALD.device)
        distance_LL = positions[:, None] - positions[None, :]
        mask_LL = (distance_LL >= 0) & (distance_LL < window)
    return scaled_dot_product_attention(
        query_BALD,
        key_BKLD,
        value_BKLD,
        attn_mask=mask_LL,
        dropout_p=dropout,
        is_causal=mask_LL is None,
        scale=scaling,
        enable_gqa=query_BALD.shape[1] != key_BKLD.shape[1],
    )


def _attend_varlen(
    query_1ATD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    *,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    output_TAD = varlen_attn(
        query_1ATD[0].transpose(0, 1).contiguous(),
        key_1KTD[0].transpose(0, 1).contiguous(),
        value_1KTD[0].transpose(0, 1).contiguous(),
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query_1ATD.shape[1] != key_1KTD.shape[1],
    )
    return cast(Tensor, output_TAD)[None]


def _has_varlen_kernel(query: Tensor, dropout: float) -> bool:
    """FlashAttention takes half precision, head sizes that are multiples of 8, no dropout here."""
    size = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and size % 8 == 0
        and size <= 256
        and dropout == 0.0
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _span_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """No mask where spans or causality say it all; SDPA's own for padding and with a cache."""
    if attention_mask is None and q_length == kv_length:
        return None
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        **kwargs,
    )
