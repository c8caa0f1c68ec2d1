"""Eq. 18 and 19 by hand-computed values, and the gradient against the plain formula."""

import math

import pytest
import torch

from arise.algorithms.losses import dual_clipped_loss
from arise.errors import ConfigError


def evaluate(logprobs, behavior, advantages, mask=None, *, total=None, **change):
    advantages = torch.as_tensor(advantages, dtype=torch.float32)
    mask = (
        torch.ones(len(advantages), dtype=torch.bool)
        if mask is None
        else torch.tensor(mask, dtype=torch.bool)
    )
    options = {"loss_order": "arise", "dual_clip": 3.0, "ratio_low": 0.5, "ratio_high": 5.0}
    options |= change
    total = int(mask.sum()) if total is None else total
    return dual_clipped_loss(
        logprobs,
        torch.as_tensor(behavior, dtype=torch.float32),
        advantages,
        mask,
        num_generated_tokens=total,
        **options,
    )


def with_ratios(ratios, advantages, mask=None, *, dtype=torch.float64, **options):
    logprobs = torch.tensor([math.log(r) for r in ratios], dtype=dtype, requires_grad=True)
    return logprobs, evaluate(logprobs, [0.0] * len(ratios), advantages, mask, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (4.9, -1.0, 3.0, 0.0),
        (4.9, 1.0, -4.9, -4.9),
        (5.0, -1.0, 0.0, 0.0),
        (5.0, 1.0, 0.0, 0.0),
        (0.5, 1.0, 0.0, 0.0),
        (0.5, -1.0, 0.0, 0.0),
        (2.0, -1.0, 2.0, 2.0),
        (3.0, -2.0, 6.0, 0.0),
        (0.51, -1.0, 0.51, 0.51),
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_L04_values_and_gradients_of_single_tokens(ratio, advantage, loss, gradient, dtype):
    logprobs, result = with_ratios([ratio], [advantage], dtype=dtype)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad.item() == pytest.approx(gradient, abs=1e-6)


def test_L04_the_denominator_counts_tokens_before_filtering():
    _, result = with_ratios([1.0, 6.0, 0.4, 4.0], [1, 1, -1, -1])
    assert result.loss.item() == pytest.approx(0.5, abs=1e-7)


def test_L01_micro_batches_add_up_to_the_token_mean():
    _, first = with_ratios([2.0] * 100, [-1.0] * 100, total=1000)
    _, second = with_ratios([1.0] * 900, [-0.5] * 900, total=1000)
    assert (first.loss + second.loss).item() == pytest.approx(0.65, abs=1e-6)


def test_L02_unequal_ranks_give_the_gradient_of_one_process():
    ratios, advantages = [1.1, 0.9, 1.3, 2.0, 0.7, 1.7], [1.0, -1.0, 0.5, -0.5, 2.0, -2.0]
    whole, result = with_ratios(ratios, advantages, total=6)
    result.loss.backward()
    world_size, parts = 2, []
    for rows in (slice(0, 5), slice(5, 6)):
        logprobs, result = with_ratios(ratios[rows], advantages[rows], total=6)
        (result.loss * world_size).backward()
        parts.append(logprobs.grad / world_size)  # what averaging over ranks leaves
    torch.testing.assert_close(torch.cat(parts), whole.grad, rtol=1e-12, atol=0)


def test_L07_a_batch_without_trained_tokens_gives_zero_and_stays_connected():
    for mask, total in (([False, False], 10), ([False, False], 0), ([True, True], 2)):
        logprobs, result = with_ratios([9.0, 0.1], [1, -1], mask, total=total)
        result.loss.backward()
        assert result.loss.item() == 0.0
        assert logprobs.grad.tolist() == [0.0, 0.0]


def test_an_empty_micro_batch():
    logprobs = torch.zeros(0, requires_grad=True)
    result = evaluate(logprobs, [], [], [], total=5)
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert result.statistics.ratio_min.item() == math.inf
    assert result.statistics.ratio_max.item() == -math.inf


def test_L08_tokens_outside_the_mask_do_not_count():
    logprobs, result = with_ratios([2.0, 2.0, 4.0], [1, 1, 1], [True, True, False])
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-2.0)
    assert logprobs.grad.tolist() == pytest.approx([-1.0, -1.0, 0.0])
    assert result.statistics.num_generated.item() == 2


@pytest.mark.parametrize("bad", [-9999.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_T15_an_unusable_behaviour_logprob_masks_its_token(bad, advantage):
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    result = evaluate(logprobs, [bad, -1.0], [advantage, 1.0])
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-0.5)
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.5])
    assert result.statistics.num_nonfinite.item() == (0 if bad == -9999.0 else 1)
    assert result.statistics.num_masked_high.item() == (1 if bad == -9999.0 else 0)
    assert result.statistics.ratio_sum.item() == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [-9999.0, math.nan, -math.inf])
def test_T15_an_unusable_policy_logprob_masks_its_token(bad):
    logprobs = torch.tensor([bad, -1.0], requires_grad=True)
    result = evaluate(logprobs, [-1.0, -1.0], [1.0, 1.0])
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-0.5)
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.5])


def test_T07_on_policy_ratio_is_one():
    logprobs = torch.tensor([-0.208060, -3.0], requires_grad=True)
    result = evaluate(logprobs, [-0.208060, -3.0], [1.0, 1.0])
    assert result.statistics.ratio_min.item() == result.statistics.ratio_max.item() == 1.0


def test_gradient_equals_autograd_of_the_plain_formula():
    generator = torch.Generator().manual_seed(1)
    behavior = -2 * torch.rand(400, generator=generator, dtype=torch.float64)
    log_ratio = torch.randn(400, generator=generator, dtype=torch.float64)
    advantages = torch.randn(400, generator=generator, dtype=torch.float64)
    mask = torch.rand(400, generator=generator) < 0.7
    plain = (behavior + log_ratio).requires_grad_()
    ratio = (plain - behavior).exp()
    kept = mask & (ratio.detach() > 0.5) & (ratio.detach() < 5.0)
    reference = (kept * torch.minimum(-ratio * advantages, 3.0 * advantages.abs())).sum() / 777
    reference.backward()
    logprobs = (behavior + log_ratio).requires_grad_()
    result = dual_clipped_loss(
        logprobs,
        behavior,
        advantages,
        mask,
        loss_order="arise",
        dual_clip=3.0,
        ratio_low=0.5,
        ratio_high=5.0,
        num_generated_tokens=777,
    )
    result.loss.backward()
    assert 0 < int(result.statistics.num_dual_clipped) < int(result.statistics.num_kept) < 400
    torch.testing.assert_close(result.loss, reference, rtol=1e-12, atol=0)
    torch.testing.assert_close(logprobs.grad, plain.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (4.9, -1.0, 4.9, 4.9),
        (3.0, -2.0, 6.0, 6.0),
        (2.9, -1.0, 2.9, 2.9),
        (4.9, 1.0, -4.9, -4.9),
        (5.0, -1.0, 0.0, 0.0),
        (0.5, 1.0, 0.0, 0.0),
        (0.51, -1.0, 0.51, 0.51),
    ],
)
def test_the_other_order_weighs_after_the_cap(ratio, advantage, loss, gradient):
    logprobs, result = with_ratios([ratio], [advantage], loss_order="areal")
    result.loss.backward()
    assert result.loss.item() == pytest.approx(loss, abs=1e-9)
    assert logprobs.grad.item() == pytest.approx(gradient, abs=1e-9)
    assert result.statistics.num_dual_clipped.item() == 0


def test_the_orders_differ_only_where_the_cap_binds():
    ratios, advantages = [1.0, 2.9, 3.1, 3.1, 4.9, 6.0, 0.4], [-1, -1, -1, 1, -1, -1, -1]
    arise, result = with_ratios(ratios, advantages)
    areal, other = with_ratios(ratios, advantages, loss_order="areal")
    result.loss.backward()
    other.loss.backward()
    # ω/7 more where A = -1 and 3 <= ω < 5; the losses differ by (3.1 - 3 + 4.9 - 3) / 7.
    expected = [0, 0, 3.1 / 7, 0, 4.9 / 7, 0, 0]
    assert (areal.grad - arise.grad).tolist() == pytest.approx(expected, abs=1e-12)
    assert (other.loss - result.loss).item() == pytest.approx(2.0 / 7, abs=1e-7)


def test_statistics_and_their_sum():
    ratios, advantages = [1.0, 6.0, 0.4, 4.0, 2.0], [1, 1, -1, -1, 1]
    mask = [True, True, True, True, False]
    _, whole = with_ratios(ratios, advantages, mask)
    _, first = with_ratios(ratios[:2], advantages[:2], mask[:2])
    _, second = with_ratios(ratios[2:], advantages[2:], mask[2:])
    expected = {
        "num_generated": 4,
        "num_measured": 4,
        "num_kept": 2,
        "num_masked_low": 1,
        "num_masked_high": 1,
        "num_dual_clipped": 1,
        "num_nonfinite": 0,
        "ratio_sum": 11.4,
        "ratio_min": 0.4,
        "ratio_max": 6.0,
        "max_abs_log_ratio": math.log(6.0),
    }
    merged = first.statistics + second.statistics
    for name, value in expected.items():
        assert getattr(whole.statistics, name).item() == pytest.approx(value), name
        assert getattr(merged, name).item() == pytest.approx(value), name
        assert not getattr(merged, name).requires_grad


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"loss_order": "verl"}, "algorithm.loss_order.*'verl'.*arise, areal"),
        ({"dual_clip": 1.0}, "algorithm.dual_clip"),
        ({"dual_clip": math.inf}, "algorithm.dual_clip"),
        ({"ratio_low": 1.0}, "algorithm.ratio_low"),
        ({"ratio_low": -0.1}, "algorithm.ratio_low"),
        ({"ratio_high": 1.0}, "algorithm.ratio_high"),
    ],
)
def test_a_constant_out_of_range_names_its_key(change, key):
    with pytest.raises(ConfigError, match=key):
        with_ratios([1.0], [1.0], **change)


def test_a_lower_bound_of_zero_masks_nothing():
    _, result = with_ratios([1e-6], [-1.0], ratio_low=0.0)
    assert result.loss.item() == pytest.approx(1e-6)


def test_a_negative_token_count_is_refused():
    with pytest.raises(ValueError, match="num_generated_tokens is -1"):
        with_ratios([1.0], [1.0], total=-1)
