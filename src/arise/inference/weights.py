"""Weight synchronisation: moving the trainer's tensors over and proving that they arrived.

A log-probability probe cannot prove a sync: a first step at a learning rate of 5e-8 moves float32
log-probabilities by about 2e-5, and in bfloat16 rounding hides a stale model altogether. The proof
is an integer checksum of every tensor's raw bits, computed on both sides, plus the version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from arise.errors import WeightSyncError
from arise.inference.base import WeightReport

_WRAPPER_SEGMENTS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_INTEGER_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 20
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)
_NUM_SHOWN = 5


def canonical_name(name: str, *, prefixes: Iterable[str] = ("module.",)) -> str:
    """The name a tensor has in the plain model, whatever wrapped it.

    Segments put in by `torch.compile`, FSDP and activation checkpointing go wherever they stand;
    `prefixes` go at the start only.

    Example:
        >>> canonical_name("module._orig_mod.model.layers.0._fsdp_wrapped_module.mlp.weight")
        'model.layers.0.mlp.weight'
    """
    plain = ".".join(part for part in name.split(".") if part not in _WRAPPER_SEGMENTS)
    for prefix in prefixes:
        plain = plain.removeprefix(prefix)
    return plain


@lru_cache(maxsize=8)
def _position_weights(device: torch.device) -> Tensor:
    """int64[_CHUNK]: odd pseudo-random factors, so that no two positions count alike."""
    index = torch.arange(1, _CHUNK + 1, dtype=torch.int64, device=device) * _GOLDEN
    mixed = (index ^ (index >> 29)) * _MIX
    return (mixed ^ (mixed >> 32)) | 1


def fingerprint(tensor: Tensor) -> tuple[int, int]:
    """Order-sensitive checksum of a tensor's raw bits.

    With x the elements' bits as integers and w a fixed odd pseudo-random factor per position,
    the pair is (Σ x, Σ w·x), both modulo 2^64 as signed integers. A change of any single element
    always changes both sums; moved, swapped or negated elements change the second one. Both zeros
    count as +0: they are the same weight, and a kernel that repacks a matrix may turn one into the
    other.

    Args:
        tensor: Any dtype, shape and device, not sharded. Computed where the tensor lies, in
            pieces of about a million elements, so that memory stays small.

    Returns:
        Two signed 64-bit integers, equal on every device.
    """
    flat = tensor.detach().reshape(-1)
    if flat.device.type == "mps":
        flat = flat.cpu()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    flat = flat.contiguous()
    factors = _position_weights(flat.device)
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for number, chunk in enumerate(flat.split(_CHUNK)):
        wide = _bits(chunk)
        sums[0] += wide.sum()
        sums[1] += (wide * factors[: wide.numel()]).sum() * (2 * number + 1)
    plain, weighted = sums.tolist()
    return plain, weighted


def partial_fingerprint(tensor: Tensor, positions: Tensor) -> tuple[int, int]:
    """A part's share of `fingerprint`: shares of disjoint parts that cover a tensor add up to it.

    Args:
        tensor: Elements of a part.
        positions: int64, same shape: where each element stands in the whole tensor, flattened.

    Returns:
        Two signed 64-bit integers, to be added modulo 2^64 (see `wrap`).
    """
    values, places = tensor.detach().reshape(-1), positions.reshape(-1)
    factors = _position_weights(values.device)
    sums = torch.zeros(2, dtype=torch.int64, device=values.device)
    for chunk, place in zip(values.split(_CHUNK), places.split(_CHUNK), strict=True):
        wide = _bits(chunk)
        sums[0] += wide.sum()
        number = place // _CHUNK
        sums[1] += (wide * factors[place - number * _CHUNK] * (2 * number + 1)).sum()
    plain, weighted = sums.tolist()
    return plain, weighted


def wrap(value: int) -> int:
    """An integer modulo 2^64, signed."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _bits(chunk: Tensor) -> Tensor:
    """int64, each element's bits as a signed integer of its size; -0 as +0."""
    if chunk.is_floating_point() and chunk.element_size() > 1:
        chunk = chunk.masked_fill(chunk == 0, 0)
    return chunk.contiguous().view(_INTEGER_VIEW[chunk.element_size()]).to(torch.int64)


def as_held(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor in the type that the engine holds floating ones in; `None` changes nothing."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def fingerprints(
    named: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> dict[str, tuple[int, int]]:
    """Fingerprint of every tensor by canonical name.

    Args:
        named: A state dict, or name and tensor pairs.
        dtype: Type that floating tensors are cast to first: give the engine's, where it holds
            bfloat16 and the trainer float32 master weights.
        device: Where they are computed, one tensor at a time; `None` is where each lies.
    """
    items = named.items() if isinstance(named, Mapping) else named
    return {
        canonical_name(name): fingerprint(as_held(tensor.to(device or tensor.device), dtype))
        for name, tensor in items
    }


def verify(expected: Mapping[str, tuple[int, int]], report: WeightReport, *, version: int) -> None:
    """Prove that the engine holds what the trainer sent.

    Args:
        expected: The trainer's fingerprints, in the engine's dtype (see `fingerprints`).
        report: What the engine says it holds, computed from its own tensors.
        version: Policy version that was sent.

    Raises:
        WeightSyncError: Version, set of names or a fingerprint differs. The message lists up to
            five names of each kind and what to check.
    """
    reported = {canonical_name(name): value for name, value in report.fingerprints.items()}
    derived = {canonical_name(name): value for name, value in report.derived.items()}
    wanted = {canonical_name(name): value for name, value in expected.items()}
    problems = []
    if report.version != version:
        problems.append(f"engine reports version {report.version}, sent was {version}")
    groups = {
        "tensors that differ": [n for n in wanted if n in reported and reported[n] != wanted[n]],
        "repacked copies that differ": [n for n in derived if derived[n] != wanted.get(n)],
        "missing in the engine": [n for n in wanted if n not in reported],
        "unexpected in the engine": [n for n in reported if n not in wanted],
    }
    problems += [f"{what}: {_shown(names)}" for what, names in groups.items() if names]
    if problems:
        raise WeightSyncError(
            f"weights of version {version} did not arrive: {'; '.join(problems)}. "
            "Check that the engine loaded this run's model, that nobody else updates it, that a "
            "tied output head was updated with its embedding, and that engine.dtype is the dtype "
            "the fingerprints were made in"
        )


def copy_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy the trainer's tensors into the engine's model, all of them or none.

    A tied tensor counts once and may come under any or all of its names. Nothing is copied unless
    every tensor of the model is covered and every given name and shape fits.

    Args:
        model: The engine's own model.
        weights: Full tensors of any device and dtype by (possibly wrapped) name.

    Returns:
        The model's own tensor for each given canonical name, for the report.

    Raises:
        WeightSyncError: A name is unknown, given twice or missing, a shape differs, or two names
            of one tied tensor carry different values.
    """
    own = dict(model.state_dict(keep_vars=True))
    given = _by_canonical_name(weights)
    unexpected = [name for name in given if name not in own]
    covered = {id(own[name]) for name in given if name in own}
    missing = {id(t): name for name, t in reversed(own.items()) if id(t) not in covered}
    misshapen = [n for n, t in given.items() if n in own and own[n].shape != t.shape]
    groups = {
        "missing": list(missing.values()),
        "unknown to the engine's model": unexpected,
        "of another shape": misshapen,
        "tied but with different values": _torn(own, given),
    }
    problems = [f"{what}: {_shown(names)}" for what, names in groups.items() if names]
    if problems:
        raise WeightSyncError(
            f"cannot load weights: {len(given)} tensors given, the model has "
            f"{len({id(t) for t in own.values()})}; {'; '.join(problems)}. Nothing was copied. "
            "Check that trainer and engine build the same model and that wrapper prefixes are "
            "stripped"
        )
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
    return {name: own[name] for name in given}


def _by_canonical_name(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    given: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        plain = canonical_name(name)
        if plain in given:
            raise WeightSyncError(f"two tensors are called {plain!r} once wrappers are stripped")
        given[plain] = tensor
    return given


def _torn(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Names whose value contradicts an earlier name of the same tied tensor."""
    first: dict[int, Tensor] = {}
    torn = []
    for name, tensor in given.items():
        if name not in own:
            continue
        other = first.setdefault(id(own[name]), tensor)
        if other is not tensor and not torch.equal(other, tensor):
            torn.append(name)
    return torn


def _shown(names: list[str]) -> str:
    more = len(names) - _NUM_SHOWN
    return ", ".join(names[:_NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")
