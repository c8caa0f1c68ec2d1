"""Fingerprints, names and all-or-nothing copies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from arise.errors import WeightSyncError
from arise.inference.base import WeightReport
from arise.inference.weights import (
    canonical_name,
    copy_weights,
    fingerprint,
    fingerprints,
    verify,
)


class Tied(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(2))


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def test_first_sum_is_the_sum_of_the_raw_bits() -> None:
    # 1.0 is 0x3F800000 and -2.0 is 0xC0000000 as int32.
    assert fingerprint(torch.tensor([1.0, -2.0]))[0] == 0x3F800000 + (0xC0000000 - 2**32)
    assert fingerprint(torch.tensor([3, -5]))[0] == -2


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_counts_in_every_dtype(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]).to(dtype)
    plain, swapped = fingerprint(values), fingerprint(values[[1, 0, 2, 3, 4]])
    assert plain[0] == swapped[0]
    assert plain[1] != swapped[1]
    assert fingerprint(values.clone()) == plain


def test_two_swapped_rows_a_stale_layer_and_a_sign_flip_are_seen() -> None:
    torch.manual_seed(0)
    weight = torch.randn(300, 64) * 0.02
    rows = weight[[1, 0, *range(2, 300)]]
    stale = weight.clone()
    stale[7] = 0.0
    flipped = weight.clone()
    flipped[0, 0] *= -1
    seen = {fingerprint(w) for w in (weight, rows, stale, flipped, -weight, weight.T)}
    assert len(seen) == 6


def test_a_step_at_the_first_learning_rate_is_seen() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 64) * 0.02
    assert fingerprint(weight - 5e-8 * torch.sign(weight)) != fingerprint(weight)
    one = weight.clone()
    one[63, 63] = torch.nextafter(one[63, 63], torch.tensor(1.0))
    assert fingerprint(one) != fingerprint(weight)


def test_pieces_and_layout_do_not_matter_but_values_in_later_pieces_do() -> None:
    big = torch.arange((1 << 20) + 5, dtype=torch.int32)
    later = big.clone()
    later[[(1 << 20) + 1, (1 << 20) + 2]] = later[[(1 << 20) + 2, (1 << 20) + 1]]
    # The same place in another piece must not weigh the same.
    across = big.clone()
    across[[3, (1 << 20) + 3]] = across[[(1 << 20) + 3, 3]]
    assert len({fingerprint(x) for x in (big, later, across)}) == 3
    matrix = torch.randn(6, 5)
    assert fingerprint(matrix.T) == fingerprint(matrix.T.contiguous())
    assert fingerprint(torch.empty(0)) == (0, 0)


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=2, max_size=40),
    st.data(),
)
def test_any_single_change_changes_both_sums(values: list[float], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(values) - 1))
    bits = torch.tensor(values, dtype=torch.float32).view(torch.int32)
    other = bits.clone()
    other[index] ^= 1 << data.draw(st.integers(0, 30))
    a, b = fingerprint(bits.view(torch.float32)), fingerprint(other.view(torch.float32))
    assert a[0] != b[0]
    assert a[1] != b[1]


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("_orig_mod.model.norm.weight", "model.norm.weight"),
        ("module._orig_mod.lm_head.weight", "lm_head.weight"),
        ("model._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.w", "model.layers.0.w"),
        ("model.layers.0.module.weight", "model.layers.0.module.weight"),
    ],
)
def test_W04_wrapped_names_become_plain(wrapped: str, plain: str) -> None:
    assert canonical_name(wrapped) == plain


@pytest.mark.slow
def test_W04_a_compiled_model_loads_under_its_plain_names() -> None:
    engine, trainer = Tied(0), torch.compile(Tied(1))
    state = trainer.state_dict()
    assert all(name.startswith("_orig_mod.") for name in state)
    own = copy_weights(engine, state)
    assert torch.equal(engine.embed.weight, trainer.embed.weight)
    verify(fingerprints(state), WeightReport(version=2, fingerprints=fingerprints(own)), version=2)


def test_W04_names_of_nested_wrappers_load_and_verify() -> None:
    engine, trainer = Tied(0), Tied(1)
    state = {f"module._orig_mod.{n}": t for n, t in trainer.state_dict().items()}
    own = copy_weights(engine, state)
    assert torch.equal(engine.embed.weight, trainer.embed.weight)
    verify(fingerprints(state), WeightReport(version=2, fingerprints=fingerprints(own)), version=2)


@pytest.mark.parametrize("dropped", ["head.weight", "embed.weight"])
def test_a_tied_tensor_may_come_under_either_name(dropped: str) -> None:
    engine, state = Tied(0), dict(Tied(1).state_dict())
    del state[dropped]
    assert set(copy_weights(engine, state)) == set(state)
    assert torch.equal(engine.head.weight, Tied(1).embed.weight)


def test_W04_missing_unknown_and_misshapen_are_refused_before_any_copy() -> None:
    engine = Tied(0)
    before = fingerprints(engine.state_dict())
    state = {n: t + 1 for n, t in Tied(1).state_dict().items()}
    state["model.language_model.norm.bias"] = state.pop("norm.bias")
    state["scale"] = torch.ones(3)
    with pytest.raises(WeightSyncError) as caught:
        copy_weights(engine, state)
    message = str(caught.value)
    assert "missing: norm.bias;" in message
    assert "unknown to the engine's model: model.language_model.norm.bias;" in message
    assert "of another shape: scale" in message
    assert fingerprints(engine.state_dict()) == before


def test_contradicting_tied_values_and_doubled_names_are_refused() -> None:
    state = {n: t.clone() for n, t in Tied(1).state_dict().items()}
    copy_weights(Tied(0), state)
    state["head.weight"][0, 0] += 1
    with pytest.raises(WeightSyncError, match=r"tied but with different values: head\.weight"):
        copy_weights(Tied(0), state)
    with pytest.raises(WeightSyncError, match="two tensors are called 'scale'"):
        copy_weights(Tied(0), {"scale": torch.ones(2), "_orig_mod.scale": torch.ones(2)})


def test_verify_lists_what_differs_up_to_five_names() -> None:
    expected = {f"layer.{i}": (i, i) for i in range(9)} | {"gone": (0, 0)}
    held = {f"layer.{i}": (i, i + (i > 1)) for i in range(9)} | {"extra": (0, 0)}
    with pytest.raises(WeightSyncError) as caught:
        verify(expected, WeightReport(version=3, fingerprints=held), version=4)
    message = str(caught.value)
    assert "engine reports version 3, sent was 4" in message
    assert "layer.2, layer.3, layer.4, layer.5, layer.6 and 2 more" in message
    assert "missing in the engine: gone" in message
    assert "unexpected in the engine: extra" in message
    assert "layer.1," not in message
    verify(expected, WeightReport(version=4, fingerprints=expected), version=4)
