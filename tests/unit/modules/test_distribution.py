"""Which rank gets what, without processes; `tests/integration/test_two_processes.py` has them."""

from __future__ import annotations

import torch

from arise.modules.distribution import rank_batches, share_rows
from arise.types import Iteration
from learning import make_rows, num_generated

LENGTHS = [60, 12, 33, 7, 5, 48, 21]


def test_every_row_is_on_exactly_one_rank_and_nothing_is_added() -> None:
    rows = make_rows(LENGTHS)
    for world_size in (1, 2, 3, 8):
        ranks = rank_batches(rows, world_size, layout="packed", max_tokens=64)
        assert len({len(own) for own in ranks}) == 1
        real = [b for own in ranks for b in own if b.num_generated_tokens]
        ids = sorted(
            tuple(batch.input_ids[a:b].tolist())
            for batch in real
            for a, b in torch.stack([batch.cu_seqlens[:-1], batch.cu_seqlens[1:]]).T.tolist()
        )
        assert ids == sorted(weighted.row.token_ids for weighted in rows)
        total = sum(batch.num_generated_tokens for own in ranks for batch in own)
        assert total == num_generated(rows)
        for own in ranks:
            for batch in own:
                numbers = batch.row_numbers.tolist()
                assert (numbers == [-1]) == (batch.num_generated_tokens == 0)
                for number, a, b in zip(
                    numbers, batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True
                ):
                    if number >= 0:
                        assert tuple(batch.input_ids[a:b].tolist()) == rows[number].row.token_ids


def test_ranks_hold_about_equally_many_tokens() -> None:
    """186 tokens on two ranks: 60 + 21 + 12 and 48 + 33 + 7 + 5."""
    first, second = rank_batches(make_rows(LENGTHS), 2, layout="packed", max_tokens=1000)
    assert [first[0].num_tokens, second[0].num_tokens] == [93, 93]


def test_L07_a_rank_without_rows_gets_micro_batches_that_train_nothing() -> None:
    own, other = rank_batches(make_rows([30]), 2, layout="packed", max_tokens=64)
    assert len(own) == len(other) == 1
    assert own[0].num_tokens == 30
    assert other[0].num_generated_tokens == 0


def test_no_row_at_all_gives_no_micro_batch_anywhere() -> None:
    assert rank_batches([], 2, layout="rows", max_tokens=64) == [[], []]


def test_one_process_packs_everything_itself() -> None:
    iteration = Iteration(index=0, num_generated_tokens=7)
    share_rows(iteration, make_rows([9, 8]), layout="packed", max_tokens=64)
    assert [batch.num_tokens for batch in iteration.micro_batches] == [17]
    assert iteration.num_generated_tokens == 7
