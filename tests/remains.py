"""What a run leaves, so that two runs can be compared bit for bit; durations are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from arise.runs.folder import complete_checkpoints
from runs import TASKS, checkpoint_tensors, scalars, trajectories

STEPS = 12

# The whole method in seconds: pool, evidence, held-out evaluation, checkpoints that are pruned.
# A random policy's commands do nothing whose outcome depends on timing, as `cat a | wc > a` would.
WHOLE_METHOD = (
    "experiment=arise",
    "debug=tiny",
    "datamodule=folder",
    f"datamodule.corpus={TASKS}",
    f"evaluation.corpus={TASKS}",
    "evaluation.eval_interval=4",
    "rubrics.update_interval=2",
    "callbacks.checkpoint.every_steps=2",
    "callbacks.checkpoint.keep_last=2",
    "callbacks.checkpoint.keep_every=4",
    f"trainer.max_steps={STEPS}",
    # A limit on wall-clock time that strikes on a busy machine would be a real difference.
    "harness.command_timeout_s=3600",
    "rollout.agent_timeout_s=36000",
    "environment.start_timeout_s=3600",
    "judge.timeout_s=600",
    "reflection.timeout_s=600",
)


def remains(run: Path, scratch: Path) -> dict[str, Any]:
    """Everything that a run left, by name, ready for `==`.

    Args:
        run: The run's folder.
        scratch: Folder for temporary files.
    """
    parts: dict[str, Any] = {
        "trajectories": trajectories(run),
        "pool": (run / "pool.jsonl").read_text(),
        "held-out": (run / "evaluations.jsonl").read_text(),
        "points": scalars(run),
        "final model": (run / "final_model" / "model.safetensors").read_bytes(),
        "checkpoints": [path.name for path in complete_checkpoints(run)],
    }
    for checkpoint in complete_checkpoints(run):
        # Pool, windows, B_k, evidence, coverage, generators; schedules and held-out results too.
        meta = torch.load(checkpoint / "meta.pt", weights_only=True)
        kept = ("TaskDataModule", "global_step", "lr_schedulers", "callbacks")
        parts[f"state of {checkpoint.name}"] = {key: meta[key] for key in kept}
        parts[f"tensors of {checkpoint.name}"] = {
            name: tensor.numpy().tobytes()
            for name, tensor in checkpoint_tensors(checkpoint, scratch).items()
        }
    return parts
