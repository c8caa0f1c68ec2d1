"""Where tensors go, and fingerprints of parts of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from arise.errors import WeightSyncError
from arise.inference.vllm.layout import CopyRecorder, Region, View, read_back, share
from arise.inference.vllm.updates import _merged
from arise.inference.weights import fingerprint, partial_fingerprint, wrap


def empty(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def test_a_fused_parameter_is_mapped_to_its_tensors() -> None:
    """As q_proj, k_proj become rows of one matrix, and a padded vocabulary its first rows."""
    parameters = {"qk.weight": empty(6, 4), "embed.weight": empty(8, 4)}
    recorder = CopyRecorder(parameters)
    given_tensors = [
        ("q", empty(4, 4)),
        ("k", empty(2, 4)),
        ("embed", empty(7, 4)),
        ("x", empty(3)),
    ]
    with recorder:
        loaded = dict(recorder.watch(given_tensors))
        parameters["qk.weight"].data.narrow(0, 0, 4).copy_(loaded["q"])
        parameters["qk.weight"].data[4:].copy_(loaded["k"])
        parameters["embed.weight"][:7].data.copy_(loaded["embed"])
        parameters["embed.weight"][7:].data.fill_(0)
    assert [(r.name, r.parameter, r.target) for r in recorder.regions] == [
        ("q", "qk.weight", View(shape=(4, 4), strides=(4, 1), offset=0)),
        ("k", "qk.weight", View(shape=(2, 4), strides=(4, 1), offset=16)),
        ("embed", "embed.weight", View(shape=(7, 4), strides=(4, 1), offset=0)),
    ]


def sharded(tensor: Tensor, axis: int, num_shards: int) -> list[tuple[Region, Tensor]]:
    """What each worker of a tensor-parallel server holds, by the recorder."""
    parts = []
    size = tensor.shape[axis] // num_shards
    for rank in range(num_shards):
        shape = list(tensor.shape)
        shape[axis] = size
        parameter, source = empty(*shape), torch.empty_like(tensor, device="meta")
        recorder = CopyRecorder({"w": parameter})
        with recorder:
            for _, whole in recorder.watch([("t", source)]):
                parameter.data.copy_(whole.narrow(axis, rank * size, size))
        held = tensor.narrow(axis, rank * size, size).clone()
        parts.append((recorder.regions[0], held))
    return parts


@pytest.mark.parametrize("axis", [0, 1])
def test_shares_of_a_sharded_tensor_add_up_to_its_fingerprint(axis: int) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(8, 6)
    shares = []
    for region, held in sharded(tensor, axis, 2):
        made = share(region, held, dtype=torch.float32, numel=48)
        shares.append({"t": [[made.key, made.numel, *made.sums]]})
    assert _merged(shares, {"t": 48}, "url") == {"t": fingerprint(tensor)}
    # A replica counts once, and must be equal.
    assert _merged([*shares, shares[0]], {"t": 48}, "url") == {"t": fingerprint(tensor)}
    key, numel, plain, weighted = shares[0]["t"][0]
    other = {"t": [[key, numel, plain + 1, weighted]]}
    with pytest.raises(WeightSyncError, match="several copies of t that differ"):
        _merged([*shares, other], {"t": 48}, "url")
    with pytest.raises(WeightSyncError, match="24 of the 48 elements of t"):
        _merged(shares[:1], {"t": 48}, "url")


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 5), st.integers(0, 1 << 30))
def test_any_two_parts_add_up(rows: int, columns: int, cut: int, seed: int) -> None:
    tensor = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    places = torch.arange(tensor.numel()).view_as(tensor)
    cut = min(cut, rows)
    parts = [
        partial_fingerprint(tensor[piece], places[piece])
        for piece in (slice(0, cut), slice(cut, rows))
    ]
    summed = tuple(wrap(sum(values)) for values in zip(*parts, strict=True))
    assert summed == fingerprint(tensor)


def test_positions_of_a_strided_view() -> None:
    whole = torch.arange(24).view(4, 6)
    for piece in (whole[1:3], whole[:, 2:5], whole.T, whole[2, 3]):
        positions = View.of(piece).positions(torch.device("cpu"))
        assert torch.equal(positions, piece)


def test_a_wider_type_in_the_engine_is_compared_in_the_type_that_was_sent() -> None:
    sent = torch.randn(5, 3).to(torch.bfloat16)
    view = View.of(sent)
    region = Region(name="t", source=view, parameter="w", target=view)
    made = share(region, sent.float(), dtype=torch.bfloat16, numel=15)
    assert made.sums == fingerprint(sent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernels_matrix_is_read_back_to_the_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(70, 300).to(dtype)
    weight[0, 0] = -0.0
    matrix = read_back(lambda rows: nn.functional.linear(rows, weight), (70, 300), dtype)
    assert torch.equal(matrix, weight)
    assert fingerprint(matrix) == fingerprint(weight)
