"""Properties of the method's pure functions."""

import itertools
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arise.algorithms.advantages import combined_advantages, rubric_advantages, task_advantages
from arise.algorithms.losses import dual_clipped_loss
from arise.algorithms.packing import WeightedRow, assign_to_ranks, pack, padded, to_padded
from arise.algorithms.rewards import length_regularized
from arise.types import Outcome, TokenRow

REWARDS = st.one_of(
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.95, 1.0, -1.0]),
    st.floats(-10, 10, allow_subnormal=False),
)
STD = st.sampled_from(["sample", "population"])
VERDICTS = st.dictionaries(st.integers(0, 4), st.sampled_from(list(Outcome)), max_size=5)
GROUPS = st.lists(st.tuples(REWARDS, VERDICTS), min_size=1, max_size=8)
EPS = 1e-9


@st.composite
def token_rows(draw):
    length = draw(st.integers(1, 30))
    mask = [False, *(draw(st.booleans()) for _ in range(length - 1))]
    tokens = TokenRow(
        token_ids=tuple(draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))),
        generated_mask=tuple(mask),
        logprobs=tuple(-0.25 * (i % 7) if m else 0.0 for i, m in enumerate(mask)),
        policy_versions=tuple(0 if m else -1 for m in mask),
    )
    return WeightedRow(row=tokens, advantage=draw(st.sampled_from([-1.5, 0.0, 0.25, 2.0])))


def unpacked(batch):
    """The rows of a batch as plain tuples, in order."""
    rows = []
    for start, end in itertools.pairwise(batch.cu_seqlens.tolist()):
        assert batch.position_ids[start:end].tolist() == list(range(end - start))
        assert len(set(batch.advantages[start:end].tolist())) == 1
        rows.append(
            (
                tuple(batch.input_ids[start:end].tolist()),
                tuple(batch.generated_mask[start:end].tolist()),
                tuple(batch.behavior_logprobs[start:end].tolist()),
                batch.advantages[start].item(),
            )
        )
    return rows


@given(st.lists(token_rows(), max_size=12), st.integers(1, 40), st.sampled_from([pack, padded]))
@settings(max_examples=80, deadline=None)
def test_packing_round_trip(rows, max_tokens, function):
    batches = function(rows, max_tokens=max_tokens)
    found = [row for batch in batches for row in unpacked(batch)]
    given_rows = [
        (w.row.token_ids, w.row.generated_mask, w.row.logprobs, w.advantage) for w in rows
    ]
    assert sorted(found) == sorted(given_rows)
    for batch in batches:
        members = [given_rows.index(row) for row in unpacked(batch)]
        assert members == sorted(members) or len(set(given_rows)) < len(given_rows)
        input_ids, attention_mask, index = to_padded(batch)
        assert torch.equal(input_ids.flatten()[index], batch.input_ids)
        assert int(attention_mask.sum()) == batch.num_tokens
        size = batch.num_tokens if function is pack else input_ids.numel()
        assert size <= max_tokens or batch.num_sequences == 1


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_rank_loads_exceed_the_mean_by_less_than_a_row(lengths, world_size):
    ranks = assign_to_ranks(lengths, world_size)
    assert sorted(index for rank in ranks for index in rank) == list(range(len(lengths)))
    mean = sum(lengths) / world_size
    for rank in ranks:
        assert rank == sorted(rank)
        smallest = min((lengths[index] for index in rank), default=0)
        assert sum(lengths[index] for index in rank) <= mean + smallest


@given(GROUPS, STD)
@settings(max_examples=150, deadline=None)
def test_task_and_rubric_advantages_sum_to_zero(group, std):
    rewards, outcomes = [reward for reward, _ in group], [verdicts for _, verdicts in group]
    advantages = task_advantages(rewards, std=std, eps=EPS)
    assert abs(math.fsum(advantages)) < 1e-6
    assert np.abs(advantages).max() <= math.sqrt(len(group)) + 1e-9
    if len(set(rewards)) == 1:
        assert not advantages.any()
    rubrics = rubric_advantages(outcomes, std=std, eps=EPS)
    for row, mask in zip(rubrics.values, rubrics.applicable, strict=True):
        assert abs(math.fsum(row)) < 1e-9
        assert mask.sum() >= 2
        assert row[mask].any()
        assert not row[~mask].any()


@given(GROUPS, STD, st.floats(0, 1), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_advantages_and_shaping_follow_a_permutation(group, std, rubric_weight, random):
    order = list(range(len(group)))
    random.shuffle(order)
    lengths = [random.randrange(40_000) for _ in group]

    def evaluate(indices):
        shaped = length_regularized(
            [group[i][0] for i in indices],
            [lengths[i] for i in indices],
            alpha=0.5,
            length_threshold=16_384,
            eps=EPS,
        )
        outcomes = [group[i][1] for i in indices]
        mixed = combined_advantages(shaped, outcomes, rubric_weight=rubric_weight, std=std, eps=EPS)
        return shaped, mixed

    shaped, mixed = evaluate(range(len(group)))
    permuted_shaped, permuted_mixed = evaluate(order)
    np.testing.assert_array_equal(permuted_shaped, shaped[order])
    np.testing.assert_array_equal(permuted_mixed, mixed[order])


@given(GROUPS)
@settings(max_examples=100, deadline=None)
def test_shaping_keeps_signs_and_stays_within_its_bounds(group):
    rewards = np.array([reward for reward, _ in group])
    lengths = [3000 * len(verdicts) for _, verdicts in group]
    shaped = length_regularized(rewards, lengths, alpha=0.5, length_threshold=6000, eps=EPS)
    positive = rewards > 0
    np.testing.assert_array_equal(shaped[~positive], rewards[~positive])
    assert (shaped[positive] >= 0.5 * rewards[positive] - 1e-12).all()
    assert (shaped[positive] <= 1.5 * rewards[positive] + 1e-12).all()


TOKENS = st.lists(
    st.tuples(
        st.one_of(st.floats(-3, 3), st.sampled_from([-9999.0, 9999.0, math.nan, math.inf])),
        st.floats(-3, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


def loss_of(tokens, total):
    log_ratio, advantages, mask = zip(*tokens, strict=True)
    logprobs = torch.zeros(len(tokens), dtype=torch.float64, requires_grad=True)
    result = dual_clipped_loss(
        logprobs,
        -torch.tensor(log_ratio, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(mask),
        loss_order="arise",
        dual_clip=3.0,
        ratio_low=0.5,
        ratio_high=5.0,
        num_generated_tokens=total,
    )
    result.loss.backward()
    return result, logprobs.grad


@given(TOKENS, st.data())
@settings(max_examples=150, deadline=None)
def test_the_loss_does_not_depend_on_the_split_into_micro_batches(tokens, data):
    cut = data.draw(st.integers(1, len(tokens)))
    whole, gradient = loss_of(tokens, 50)
    parts = [loss_of(part, 50) for part in (tokens[:cut], tokens[cut:]) if part]
    total = sum(result.loss.item() for result, _ in parts)
    assert math.isclose(whole.loss.item(), total, rel_tol=1e-12, abs_tol=1e-15)
    torch.testing.assert_close(torch.cat([grad for _, grad in parts]), gradient)
    merged = parts[0][0].statistics
    for result, _ in parts[1:]:
        merged = merged + result.statistics
    for name in ("num_generated", "num_kept", "num_nonfinite", "ratio_min", "ratio_max"):
        assert torch.equal(getattr(merged, name), getattr(whole.statistics, name)), name


@given(TOKENS)
@settings(max_examples=150, deadline=None)
def test_dual_clip_bound_and_exact_zeros(tokens):
    for log_ratio, advantage, generated in tokens:
        result, gradient = loss_of([(log_ratio, advantage, generated)], 1)
        loss, grad = result.loss.item(), gradient.item()
        assert math.isfinite(loss)
        assert math.isfinite(grad)
        assert loss <= 3.0 * abs(advantage)
        kept = generated and math.log(0.5) < log_ratio < math.log(5.0)
        if not kept:
            assert loss == grad == 0.0
        elif advantage < 0 and log_ratio >= math.log(3.0):
            assert grad == 0.0
        else:
            assert math.isclose(grad, -advantage * math.exp(log_ratio), rel_tol=1e-12)
        statistics = result.statistics
        assert int(statistics.num_generated) == int(
            statistics.num_kept
            + statistics.num_masked_low
            + statistics.num_masked_high
            + statistics.num_nonfinite
        )
