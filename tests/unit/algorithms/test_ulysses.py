"""Which rank holds which tokens; `tests/integration/test_parallelism.py` has the ranks."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arise.algorithms.packing import pack
from arise.algorithms.ulysses import shared_inputs, token_share
from learning import make_rows


class Ranks:
    """What is asked of a group: which rank this is, and of how many."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def group(rank: int, size: int) -> Any:
    return cast(Any, Ranks(rank, size))


@given(num_tokens=st.integers(2, 50), size=st.integers(1, 8))
def test_every_token_has_one_rank(num_tokens: int, size: int) -> None:
    shares = [token_share(num_tokens, group(rank, size)) for rank in range(size)]
    tokens = [token for share in shares for token in range(share.start, share.stop)]
    assert tokens == list(range(num_tokens))


def test_one_rank_has_all_tokens() -> None:
    assert token_share(7, None) == slice(0, 7)


def test_the_last_share_is_filled_up_with_a_sequence_of_its_own() -> None:
    """Rows of 5 and 4 tokens on two ranks: shares of 5, one of the second's is a filler."""
    (batch,) = pack(make_rows([5, 4]), max_tokens=16)
    first, second = (shared_inputs(batch, group(rank, 2)) for rank in range(2))
    assert torch.equal(first[0], batch.input_ids[:5])
    assert second[0].tolist() == [*batch.input_ids[5:].tolist(), 0]
    assert first[1].tolist() == [0, 1, 2, 3, 4]
    assert second[1].tolist() == [0, 1, 2, 3, 0]
    assert first[2].tolist() == second[2].tolist() == [0, 5, 9, 10]


@pytest.mark.parametrize("size", [2, 4])
def test_a_boundary_inside_a_sequence_leaves_its_spans_as_they_are(size: int) -> None:
    (batch,) = pack(make_rows([3, 9]), max_tokens=16)
    parts = [shared_inputs(batch, group(rank, size)) for rank in range(size)]
    assert torch.equal(torch.cat([part[0] for part in parts]), batch.input_ids)
    assert torch.equal(torch.cat([part[1] for part in parts]), batch.position_ids)
    assert all(part[2].tolist() == [0, 3, 12] for part in parts)
