"""What only TensorBoard shows: a first page of charts, pictures, a page of text for each pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from arise.callbacks.figures import (
    NUM_STAGES,
    WINDOW_STEPS,
    feedback_figure,
    sampling_figure,
    stage_of,
)
from arise.types import Capability, Iteration

FIRST_PAGE: dict[str, list[str]] = {
    "Pass rate": ["reward/pass_rate", "evaluation/pass_rate"],
    "Rubric reward": ["rubric/mean_reward"],
    "Rubric reward by capability": [f"rubric/pass_rate_{c.value}" for c in Capability],
    "Groups without a signal": [
        "reward/all_fail_group_share",
        "reward/all_pass_group_share",
        "reward/zero_advantage_group_share",
    ],
    "Pool": ["pool/size", "pool/active_skills"],
    "Exploration": ["sampler/coverage", "sampler/discovery_probability"],
    "Length": ["rollout/generated_tokens_mean", "rollout/turns_mean"],
    "Entropy and gradient": ["loss/entropy", "loss/grad_norm"],
    "Importance ratio": ["ratio/min", "ratio/mean", "ratio/max"],
    "Seconds": ["time/rollout_s", "time/train_s", "time/sync_s", "time/iteration_s"],
}
"""Charts of the custom-scalars page, in order, with their scalars."""

_KEPT = (
    "reward/pass_rate",
    "rubric/mean_reward",
    "reward/all_fail_group_share",
    "pool/size",
    "pool/created",
    "pool/retired",
)


class BoardCallback(Callback):
    """Draws for TensorBoard; does nothing without it.

    Comes after `MonitoringCallback`, which completes the metrics. What the pictures are made of is
    part of the checkpoint, so that those of a resumed run are whole.
    """

    def __init__(self) -> None:
        self._history: list[dict[str, float]] = []
        self._choices: list[tuple[int, str, str]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lay out the first page."""
        for board in _boards(trainer):
            charts = {title: ["Multiline", names] for title, names in FIRST_PAGE.items()}
            board.add_custom_scalars({"ARISE": charts})

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Remember the iteration; every `WINDOW_STEPS` steps and at the end, draw."""
        if not trainer.is_global_zero:
            return
        step, last = trainer.global_step, max(trainer.max_steps, trainer.global_step)
        kept = {name: batch.metrics[name] for name in _KEPT if name in batch.metrics}
        self._history.append({"step": float(step), **kept})
        self._choices += [
            (step, sample.tag, sample.capability.value)
            for sample in batch.samples
            if sample.tag is not None and sample.capability is not None
        ]
        if step % WINDOW_STEPS and step != last:
            return
        for board in _boards(trainer):
            board.add_figure("figures/feedback", feedback_figure(self._history, last), step)
            if self._choices:
                stages = [Counter[tuple[str, str]]() for _ in range(NUM_STAGES)]
                for number, tag, capability in self._choices:
                    stages[stage_of(number, last)][tag, capability] += 1
                board.add_figure("figures/sampling", sampling_figure(stages), step)

    def state_dict(self) -> dict[str, Any]:
        """What the pictures are made of, as primitives."""
        return {
            "history": [dict(point) for point in self._history],
            "choices": list(self._choices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put it back."""
        self._history = [dict(point) for point in state_dict["history"]]
        self._choices = list(state_dict["choices"])


def _boards(trainer: Trainer) -> list[Any]:
    """TensorBoard's writers."""
    if not trainer.is_global_zero:
        return []
    return [own.experiment for own in trainer.loggers if isinstance(own, TensorBoardLogger)]


def pair_page(event: Mapping[str, Any], pair: Mapping[str, Any]) -> str:
    """The text of a pair at an event, in Markdown; texts that a model wrote are indented blocks.

    Args:
        event: `created`, `refined` or `retired`.
        pair: The pair's texts, as in `created` events.
    """
    kind = event["type"]
    head = f"**R{event['pair_id']} {kind}** at step {event['step']}"
    if kind != "created":
        rate = f"{event['pass_rate']:.1%} of {event['num_applicable']} passed"
        head += f": {rate}"
    rubric = pair["rubric"]
    parts = {
        "title": f"{pair['title']} ({pair['capability']})",
        "applies": rubric["applicability"],
        "fail": rubric["fail_condition"],
        "pass": rubric["pass_condition"],
    }
    if kind == "refined":
        parts |= {"skill before": event["old_text"], "skill now": event["text"]}
    else:
        parts["skill"] = pair["skill"]["text"]
    return "\n\n".join([head, *(f"{name}\n\n{_block(text)}" for name, text in parts.items())])


def _block(text: str) -> str:
    """Markdown that shows a text as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
