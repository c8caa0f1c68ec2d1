"""The learning step with the real trainer, one process: what an iteration does to the weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from arise.errors import WeightSyncError
from learning import VOCAB, Rows, make_module, make_row, make_rows, num_generated, train

ROWS = make_rows([60, 12, 33, 7, 5, 48, 21], seed=1)


def initial_weights() -> dict[str, torch.Tensor]:
    return make_module()._loader.model().state_dict()


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert list(a) == list(b)
    return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


def with_logprobs(rows: Rows, bad: float) -> Rows:
    """The last token of every row with this behaviour log-probability."""
    return [replace(w, row=replace(w.row, logprobs=(*w.row.logprobs[:-1], bad))) for w in rows]


def test_L01_the_update_does_not_depend_on_micro_batches_or_layout() -> None:
    whole = train([ROWS], max_tokens=1000, max_grad_norm=0.1)
    assert difference(whole.weights, initial_weights()) > 1e-4
    for options in ({"max_tokens": 64}, {"max_tokens": 1}, {"max_tokens": 100, "layout": "rows"}):
        split = train([ROWS], max_grad_norm=0.1, **options)
        assert difference(split.weights, whole.weights) <= 1e-6
        for name in ("loss/policy", "loss/entropy", "loss/grad_norm", "ratio/mean"):
            assert split.metrics[0][name] == pytest.approx(whole.metrics[0][name], rel=1e-5), name


def test_log_ratios_are_kept_by_row_whatever_the_micro_batches() -> None:
    whole = train([ROWS], max_tokens=1000)
    (ratios,) = whole.log_ratios
    assert sorted(ratios) == list(range(len(ROWS)))
    for number, weighted in enumerate(ROWS):
        assert ratios[number].shape == (sum(weighted.row.generated_mask),)
        assert not ratios[number].requires_grad
    every = torch.cat([ratios[number] for number in range(len(ROWS))])
    assert every.exp().mean().item() == pytest.approx(whole.metrics[0]["ratio/mean"], rel=1e-5)
    assert every.abs().max().item() == pytest.approx(whole.metrics[0]["ratio/max_abs_log_ratio"])
    for options in ({"max_tokens": 64}, {"max_tokens": 1}, {"max_tokens": 100, "layout": "rows"}):
        (split,) = train([ROWS], **options).log_ratios
        assert sorted(split) == sorted(ratios)
        for number, values in ratios.items():
            assert torch.allclose(split[number], values, atol=1e-5)


@pytest.mark.parametrize(
    "rows", [[], make_rows([20, 9], logprob=-20.0)], ids=["no rows", "no kept token"]
)
def test_a_step_with_nothing_to_train_counts_and_changes_nothing(rows: Rows) -> None:
    trained = train([rows])
    assert difference(trained.weights, initial_weights()) == 0.0
    assert trained.trainer.global_step == 1
    (metrics,) = trained.metrics
    assert metrics["loss/grad_norm"] == 0.0
    assert metrics["loss/skipped_steps"] == 0.0
    (state,) = trained.trainer.optimizers
    assert {float(s["step"]) for s in state.state.values()} == {1.0}
    if rows:
        assert metrics["loss/policy"] == 0.0
        assert metrics["ratio/masked_high_share"] == 1.0


def test_a_gradient_that_is_not_finite_leaves_the_weights_but_counts() -> None:
    broken = [make_row(20, 3e38, seed=1), make_row(20, 3e38, seed=2)]
    trained = train([broken])
    assert difference(trained.weights, initial_weights()) == 0.0
    assert trained.trainer.global_step == 1
    assert trained.metrics[0]["loss/skipped_steps"] == 1.0
    assert "loss/grad_norm" not in trained.metrics[0]
    trained = train([broken, ROWS])
    assert difference(trained.weights, initial_weights()) > 1e-4
    # The schedule advanced: update 2 of 2 warm-up steps.
    assert trained.metrics[1]["loss/lr"] == pytest.approx(5e-4)


def test_K08_K09_every_iteration_is_one_step_of_a_linear_warm_up() -> None:
    trained = train([ROWS] * 3)
    assert trained.trainer.global_step == 3
    rates = [metrics["loss/lr"] for metrics in trained.metrics]
    assert rates == pytest.approx([2.5e-4, 5e-4, 5e-4])


@pytest.mark.parametrize("bad", [-9999.0, math.nan, -math.inf])
def test_T15_an_unusable_behaviour_logprob_trains_the_other_tokens(bad: float) -> None:
    """The bad tokens are masked but stay in Σm; the rest gets what it would have got."""
    rows = with_logprobs(ROWS, bad)
    (metrics,) = train([rows]).metrics
    assert math.isfinite(metrics["loss/policy"])
    assert 0.0 < metrics["loss/grad_norm"] < math.inf
    masked = metrics["ratio/masked_high_share"] * num_generated(ROWS)
    expected = len(ROWS) if bad == -9999.0 else 0
    before = train([ROWS]).metrics[0]["ratio/masked_high_share"] * num_generated(ROWS)
    assert masked == pytest.approx(before + expected)
    assert metrics["ratio/nonfinite_tokens"] == len(ROWS) - expected


def test_T16_an_engine_that_plays_another_policy_stops_the_run() -> None:
    with pytest.raises(WeightSyncError, match=r"max_initial_ratio_error = 0\.0001"):
        train([ROWS], max_initial_ratio_error=1e-4)


def test_T16_the_gap_is_logged() -> None:
    """About ln 261 nats under the policy, 5.5 ± 0.4 under the behaviour policy."""
    (metrics,) = train([ROWS]).metrics
    assert metrics["ratio/min"] < metrics["ratio/mean"] < metrics["ratio/max"]
    assert metrics["ratio/min"] == pytest.approx(math.exp(5.5 - 0.4 - math.log(VOCAB)), rel=0.3)
    assert metrics["ratio/max"] == pytest.approx(math.exp(5.5 + 0.4 - math.log(VOCAB)), rel=0.3)
    extremes = (abs(math.log(metrics[name])) for name in ("ratio/min", "ratio/max"))
    assert metrics["ratio/max_abs_log_ratio"] == pytest.approx(max(extremes), rel=1e-5)


def test_L04_a_zero_advantage_row_counts_in_the_denominator() -> None:
    silent = make_row(40, 0.0, seed=9)
    (alone,), (together,) = train([ROWS[:1]]).metrics, train([[*ROWS[:1], silent]]).metrics
    share = num_generated(ROWS[:1]) / num_generated([*ROWS[:1], silent])
    assert together["loss/policy"] == pytest.approx(share * alone["loss/policy"], rel=1e-5)
    assert together["loss/grad_norm"] == pytest.approx(share * alone["loss/grad_norm"], rel=1e-4)


def test_the_other_loss_order_reaches_the_weights() -> None:
    """A < 0 and ω about e^1.3: capped, so no gradient, in one order only."""
    rows = [make_row(40, -1.0, seed=3, logprob=-math.log(VOCAB) - 1.35)]
    (arise,) = train([rows]).metrics
    (areal,) = train([rows], loss_order="areal").metrics
    assert arise["ratio/dual_clipped_share"] > 0.5
    assert areal["ratio/dual_clipped_share"] == 0.0
    assert areal["loss/policy"] > arise["loss/policy"]
    assert areal["loss/grad_norm"] > 2 * arise["loss/grad_norm"]
