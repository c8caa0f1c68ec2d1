"""Going on with a run: what is checked before anything heavy is imported.

A run goes on only as what it was: every setting counts as part of the run unless `FREE_KEYS`
names it. Those say how fast, where or how often something happens, or how long the run lasts,
not what is computed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arise.errors import ConfigError
from arise.runs.folder import (
    RunFolder,
    checkpoint_name,
    checkpoint_step,
    find_checkpoint,
    is_first_process,
    without_secrets,
    write_overrides,
)
from arise.runs.lock import RunLock
from arise.runs.manifest import read_manifest

log = logging.getLogger(__name__)

FREE_KEYS = (
    "ckpt_path",
    "resume",
    "quiet",
    "dry_run",
    "experiment_name",
    "paths",
    "logger",
    "evaluation",
    "callbacks",
    "environment",
    "datamodule",
    "trainer",
    "engine",
    "model.layout",
    "model.logprob_chunk_tokens",
    "model.activation_checkpointing",
    "model.tensor_parallel",
    "model.sequence_parallel",
    "model.cpu_offload",
    "algorithm.micro_batch_tokens",
    "algorithm.max_initial_ratio_error",
    "rollout.max_in_flight",
    "rollout.max_sandboxes",
    "rollout.max_groups_in_flight",
    "rollout.max_lost_iterations",
    "rubrics.pool_path",
    "judge.max_calls_per_iteration",
    "judge.on_outage",
    "judge.give_up_after",
    "judge.alarm_after",
    "judge.cache",
    "judge.prices",
    "reflection.prices",
    *(
        f"{group}.{key}"
        for group in ("judge", "reflection")
        for key in (
            "config_key",
            "base_url",
            "api_key_env",
            "timeout_s",
            "max_tries",
            "max_concurrency",
            "backoff_s",
            "max_wait_s",
        )
    ),
)
"""Keys, with all that is below them, that a resumed run may change freely. Another task list is
fine too: evidence goes on by task id, with a warning."""

MEANING_KEYS = ("trainer.precision", "engine.dtype")
"""Keys below a free one that are part of the run all the same."""

_ABSENT = "(not set)"
# Keys that runs of an earlier version do not have, with the value that they worked by.
_FORMER = {"rollout.max_staleness": 0}


def find_run(cfg: DictConfig) -> RunFolder | None:
    """The run that `ckpt_path` says to go on with, locked and fit for it.

    Args:
        cfg: The composed and resolved configuration.

    Returns:
        `None` if a fresh run is asked for. Only the first of several processes locks and checks.

    Raises:
        ConfigError: There is no such checkpoint, it cannot be used, a living process works in the
            run's folder, or the configuration is another one than the run's and `resume.force` is
            not set.
    """
    checkpoint = find_checkpoint(cfg)
    if checkpoint is None:
        return None
    folder = RunFolder(path=checkpoint.parent.parent, checkpoint=checkpoint)
    if not is_first_process():
        return folder
    read_manifest(checkpoint)
    lock = RunLock(folder.path)
    try:
        _require_unchanged(folder, cfg)
    except BaseException:
        lock.release()
        raise
    return replace(folder, lock=lock)


def is_finished(folder: RunFolder, max_steps: int) -> bool:
    """Whether the checkpoint to go on from is the run's end; the final model is there then."""
    assert folder.checkpoint is not None
    return checkpoint_step(folder.checkpoint) >= max_steps


def finished_message(folder: RunFolder, max_steps: int) -> str:
    """What to tell the user who goes on with a finished run."""
    assert folder.checkpoint is not None
    step = checkpoint_step(folder.checkpoint)
    return (
        f"run {folder.path} is finished: its checkpoint {checkpoint_name(step)} has reached "
        f"trainer.max_steps = {max_steps}; set trainer.max_steps above {step} to go on"
    )


def changed_keys(saved: DictConfig, now: DictConfig) -> Iterator[tuple[str, Any, Any]]:
    """Settings that differ and are part of the run: key, saved value, present value; sorted."""
    old, new = _flat(saved), _flat(now)
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key, _FORMER.get(key, _ABSENT)), new.get(key, _ABSENT)
        if before != after and not _is_free(key) and not _is_idle(key, now):
            yield key, before, after


def record_config(folder: RunFolder, cfg: DictConfig, overrides: list[str]) -> None:
    """Keep the configuration with which a run goes on beside the one it was started with.

    `.hydra/config.yaml` stays as it is; each continuation gets `.hydra/from_step_000010/` with its
    own, which appears when it is complete. Those of abandoned continuations are removed.
    """
    assert folder.checkpoint is not None
    start = checkpoint_step(folder.checkpoint)
    path = folder.path / ".hydra" / f"from_{checkpoint_name(start)}"
    hidden = path.with_name(f".writing_{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    OmegaConf.save(without_secrets(cfg), hidden / "config.yaml")
    write_overrides(hidden, overrides)
    for abandoned, step in _continuations(folder.path):
        if step >= start:
            shutil.rmtree(abandoned)
    hidden.rename(path)


def config_in_force(run: Path, step: int) -> DictConfig | None:
    """The configuration that made the run's checkpoint of `step`; `None` if it was not kept."""
    files = [run / ".hydra" / "config.yaml"]
    files += [path / "config.yaml" for path, start in _continuations(run) if start < step]
    for file in reversed(files):
        if file.is_file():
            config = OmegaConf.load(file)
            return config if isinstance(config, DictConfig) else None
    return None


def _continuations(run: Path) -> list[tuple[Path, int]]:
    """Folders of `record_config` with the step they start from, oldest first."""
    found = [
        (path, int(path.name.rpartition("_")[2]))
        for path in (run / ".hydra").glob("from_step_*")
        if path.name.rpartition("_")[2].isdecimal()
    ]
    return sorted(found, key=lambda entry: entry[1])


def _require_unchanged(folder: RunFolder, cfg: DictConfig) -> None:
    """Refuse, or with `resume.force` report, settings that would make it another run."""
    assert folder.checkpoint is not None
    saved = config_in_force(folder.path, checkpoint_step(folder.checkpoint))
    if saved is None:
        log.warning("%s has no .hydra/config.yaml: settings cannot be compared", folder.path)
        return
    changes = [
        f"  {key}: {before!r} -> {after!r}"
        for key, before, after in changed_keys(saved, without_secrets(cfg))
    ]
    if not changes:
        return
    listed = "\n".join(changes)
    if not cfg.resume.force:
        raise ConfigError(
            f"ckpt_path: run {folder.path} was made with other settings (run -> now):\n{listed}\n"
            "Going on would mix two methods in one run. Give the run's own settings, or set "
            "resume.force=true to go on all the same"
        )
    log.warning("resume.force: going on with other settings (run -> now):\n%s", listed)


def _flat(config: DictConfig) -> dict[str, Any]:
    """Leaves by dotted key; lists are leaves."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                walk(f"{prefix}.{key}" if prefix else str(key), value)
        else:
            flat[prefix] = node

    walk("", OmegaConf.to_container(config, resolve=True))
    return flat


def _is_free(key: str) -> bool:
    def is_below(prefix: str) -> bool:
        return key == prefix or key.startswith(f"{prefix}.")

    return any(map(is_below, FREE_KEYS)) and not any(map(is_below, MEANING_KEYS))


def _is_idle(key: str, config: DictConfig) -> bool:
    """Whether nothing looks at a setting: the scaffold, whose T follows `trainer.max_steps`."""
    mode = OmegaConf.select(config, "rubrics.mode")
    return key.startswith("rubrics.scaffold.") and mode != "ruscarl"
