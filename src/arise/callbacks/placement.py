"""Processes, servers and Docker hosts that a run found at its start, in one table."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import distributed

from arise.environments.base import EnvironmentFactory
from arise.inference.base import Engine
from arise.modules.rank_watch import RankWatch
from arise.types import Iteration

log = logging.getLogger(__name__)

Row = tuple[str, str, str]


class PlacementCallback(Callback):
    """Comes after what rank 0 does alone, and before those that write what all ranks have.

    A run in one process that uses nothing else finds nothing worth saying.

    Args:
        engine: Knows its servers.
        environments: Knows its Docker hosts, if it has any.
        watch: This rank's.
    """

    def __init__(self, engine: Engine, environments: EnvironmentFactory, watch: RankWatch) -> None:
        self._engine = engine
        self._environments = environments
        self._watch = watch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the table on rank 0; collective."""
        ranks = _of_all_ranks(trainer.strategy.root_device)
        hosts: Sequence[tuple[str, str]] = getattr(self._environments, "found", ())
        if not trainer.is_global_zero:
            return
        rows: list[Row] = [(f"rank {n}", host, what) for n, (host, what) in enumerate(ranks)]
        rows += [("vLLM server", url, facts) for url, facts in self._engine.found]
        rows += [("Docker host", url, facts) for url, facts in hosts]
        if len(rows) > 1:
            log.info("found:\n%s", as_table(rows))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Iteration,
        batch_idx: int,
    ) -> None:
        """Evaluation and pool updates take rank 0 as long as they take."""
        self._watch.meet()


def _of_all_ranks(device: torch.device) -> list[tuple[str, str]]:
    """Machine and device of every rank, in order, on rank 0."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    own = (socket.gethostname(), " ".join(filter(None, (str(device), name))))
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return [own]
    is_first = distributed.get_rank() == 0
    parts: list[Any] | None = [None] * distributed.get_world_size() if is_first else None
    distributed.gather_object(own, parts, dst=0)
    return parts or []


def as_table(rows: Sequence[Row]) -> str:
    """Lines of three columns, each as wide as its longest entry.

    Example:
        >>> print(as_table([("rank 0", "node1", "cuda:0"), ("server", "http://a:1", "llama")]))
          rank 0  node1       cuda:0
          server  http://a:1  llama
    """
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)
