"""Rows into micro-batches and onto ranks."""

import random

import pytest
import torch

from arise.algorithms.logprobs import token_logprobs
from arise.algorithms.packing import (
    WeightedRow,
    align_to_tokens,
    assign_to_ranks,
    filler_batch,
    pack,
    padded,
    prediction_index,
    to_padded,
)
from arise.errors import ConfigError
from arise.types import FinishReason, TokenRow, Trajectory, Turn


def row(*token_ids, prompt=1, advantage=1.0):
    generated = len(token_ids) - prompt
    tokens = TokenRow(
        token_ids=token_ids,
        generated_mask=(False,) * prompt + (True,) * generated,
        logprobs=(0.0,) * prompt + tuple(-float(i + 1) for i in range(generated)),
        policy_versions=(-1,) * prompt + (0,) * generated,
    )
    return WeightedRow(row=tokens, advantage=advantage)


def of_lengths(*lengths):
    return [row(*([100 + i] * length)) for i, length in enumerate(lengths)]


def members(batch):
    return [int(batch.input_ids[start]) - 100 for start in batch.cu_seqlens[:-1]]


def test_the_fields_of_a_packed_batch():
    (batch,) = pack([row(5, 6, 7, advantage=0.5), row(8, 9, prompt=1, advantage=-2)], max_tokens=8)
    assert batch.input_ids.tolist() == [5, 6, 7, 8, 9]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.generated_mask.tolist() == [False, True, True, False, True]
    assert batch.behavior_logprobs.tolist() == [0.0, -1.0, -2.0, 0.0, -1.0]
    assert batch.advantages.tolist() == [0.5, 0.5, 0.5, -2.0, -2.0]
    assert (batch.num_sequences, batch.num_tokens, batch.num_generated_tokens) == (2, 5, 3)
    dtypes = [batch.input_ids.dtype, batch.position_ids.dtype, batch.cu_seqlens.dtype]
    assert dtypes == [torch.int64, torch.int64, torch.int32]
    dtypes = [batch.generated_mask.dtype, batch.behavior_logprobs.dtype, batch.advantages.dtype]
    assert dtypes == [torch.bool, torch.float32, torch.float32]
    moved = batch.to("meta")
    assert moved.input_ids.device.type == moved.advantages.device.type == "meta"


def test_first_fit_decreasing_keeps_order_and_leaves_long_rows_alone():
    batches = pack(of_lengths(3, 6, 4, 12, 7, 2), max_tokens=10)
    assert [members(batch) for batch in batches] == [[0, 4], [1, 2], [3], [5]]
    assert pack([], max_tokens=10) == []


def test_padded_batches_bound_the_padded_area():
    batches = padded(of_lengths(3, 6, 4, 12, 7, 2), max_tokens=10)
    assert [members(batch) for batch in batches] == [[0, 2], [1], [3], [4], [5]]
    assert to_padded(batches[0])[0].shape == (2, 4)


def test_T12_masks_come_from_lengths_not_from_token_ids():
    (batch,) = pack([row(5, 7, 2), row(2, 2, 2, 5, 2)], max_tokens=100)
    input_ids, attention_mask, index = to_padded(batch)
    assert attention_mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert input_ids[0, :3].tolist() == [5, 7, 2]
    assert input_ids.flatten()[index].tolist() == batch.input_ids.tolist()
    assert batch.generated_mask.tolist() == [False, True, True] + [False] + [True] * 4


def test_A05_every_row_of_a_trajectory_carries_its_one_advantage():
    def turn(*token_ids, starts_row):
        return Turn(
            prompt_token_ids=(1, 2),
            token_ids=token_ids,
            logprobs=(-1.0,) * len(token_ids),
            policy_versions=(0,) * len(token_ids),
            text="",
            starts_row=starts_row,
        )

    trajectory = Trajectory(
        task_id="t",
        rollout=0,
        turns=(turn(3, starts_row=True), turn(4, 5, starts_row=True), turn(6, starts_row=False)),
        finish_reason=FinishReason.SUBMITTED,
        task_reward=1.0,
    )
    assert len(trajectory.rows) == 2
    rows = [WeightedRow(row=tokens, advantage=1.0) for tokens in trajectory.rows]
    (batch,) = pack([*rows, row(7, 8, advantage=-1.0)], max_tokens=100)
    assert batch.advantages[batch.generated_mask].tolist() == [1.0, 1.0, 1.0, 1.0, -1.0]


def test_logprobs_align_with_the_tokens_they_are_about():
    (batch,) = pack([row(1, 3, 0), row(2, 1, 1, prompt=2)], max_tokens=100)
    weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    hidden = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    table = (hidden @ weight.t()).log_softmax(-1)
    expected = {1: table[0, 3], 2: table[1, 0], 4: table[3, 1], 5: table[4, 1]}
    for generated_only, tokens in ((False, [1, 2, 4, 5]), (True, [1, 2, 5])):
        index = prediction_index(batch, generated_only=generated_only)
        assert index.tolist() == [token - 1 for token in tokens]
        logprobs, _ = token_logprobs(
            hidden[index], weight, batch.input_ids[index + 1], temperature=1.0, chunk_tokens=2
        )
        aligned = align_to_tokens(logprobs, index, num_tokens=batch.num_tokens)
        for token in range(6):
            value = float(expected[token]) if token in tokens else 0.0
            assert aligned[token].item() == pytest.approx(value, abs=1e-6)


def test_alignment_is_differentiable():
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    aligned = align_to_tokens(values, torch.tensor([0, 3]), num_tokens=6)
    (aligned * torch.arange(6.0)).sum().backward()
    assert aligned.tolist() == [0.0, 1.0, 0.0, 0.0, 2.0, 0.0]
    assert values.grad.tolist() == [1.0, 4.0]


def test_L07_a_filler_batch_trains_nothing():
    batch = filler_batch()
    assert batch.num_generated_tokens == 0
    assert batch.num_sequences == 1
    assert prediction_index(batch, generated_only=True).tolist() == []


def test_ranks_get_equal_shares():
    assert assign_to_ranks([5, 4, 3, 3, 1], 2) == [[0, 3], [1, 2, 4]]
    assert assign_to_ranks([7], 3) == [[0], [], []]
    assert assign_to_ranks([], 2) == [[], []]
    assert assign_to_ranks([2, 2, 2, 2], 2) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("seed", range(20))
def test_ranks_are_balanced_under_a_heavy_tail(seed):
    generator = random.Random(seed)
    lengths = [min(131_072, int(generator.lognormvariate(9.5, 1.0)) + 1) for _ in range(256)]
    ranks = assign_to_ranks(lengths, 32)
    assert sorted(index for rank in ranks for index in rank) == list(range(256))
    mean = sum(lengths) / 32
    loads = [sum(lengths[index] for index in rank) for rank in ranks]
    assert max(loads) <= 1.1 * mean or len(ranks[loads.index(max(loads))]) == 1


@pytest.mark.parametrize("function", [pack, padded])
def test_malformed_rows_are_refused(function):
    generated_first = TokenRow(
        token_ids=(1,), generated_mask=(True,), logprobs=(-1.0,), policy_versions=(0,)
    )
    misaligned = TokenRow(
        token_ids=(1, 2), generated_mask=(False, True), logprobs=(0.0,), policy_versions=(-1, 0)
    )
    empty = TokenRow(token_ids=(), generated_mask=(), logprobs=(), policy_versions=())
    for tokens, message in (
        (generated_first, "row 1 must begin with a prompt token"),
        (empty, "row 1 must begin with a prompt token"),
        (misaligned, "row 1 has 2 tokens, 2 mask entries and 1 log-prob"),
    ):
        with pytest.raises(ValueError, match=message):
            function([row(1, 2), WeightedRow(row=tokens, advantage=0.0)], max_tokens=10)
    with pytest.raises(ConfigError, match=r"algorithm\.micro_batch_tokens is 0"):
        function([row(1, 2)], max_tokens=0)


def test_there_must_be_a_rank():
    with pytest.raises(ValueError, match="world_size is 0"):
        assign_to_ranks([1], 0)
