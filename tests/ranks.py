"""One rank of two that watch over each other, without a trainer; runs in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
from torch import distributed

from arise.callbacks.watch import ROLLOUTS, TRAINING, WatchCallback
from arise.modules.rank_watch import RankWatch, WatchOptions


def main(
    rank: int,
    port: int,
    output: str,
    scenario: str,
    *,
    timeout_s: float = 3.0,
    stall_s: float = 600.0,
    collective_s: float = 600.0,
) -> None:
    """Start, then do what the scenario says.

    Args:
        rank: 0 or 1.
        port: Where rank 0 has the store.
        output: File for what is printed.
        scenario: Which way it goes.
        timeout_s: Silence that counts as death.
        stall_s: Longest stay at one point.
        collective_s: The process group's own limit.
    """
    file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=collective_s),
    )
    options = WatchOptions(interval_s=0.3, timeout_s=timeout_s, stall_s=stall_s)
    watch = RankWatch(options, on_end=lambda text: print(f"error: {text}", file=sys.stderr))
    watch.start()
    watch.enter(ROLLOUTS, 7)
    print("ready", flush=True)
    SCENARIOS[scenario](watch, rank)


def play(watch: RankWatch, rank: int) -> None:
    """Rank 0 plays for long."""
    if rank == 0:
        time.sleep(600)
    watch.meet()


def fail(watch: RankWatch, rank: int) -> None:
    """Rank 0 cannot play any more."""
    if rank == 0:
        watch.leave(ValueError("no server is left"))
        time.sleep(1.0)
    watch.meet()


def train(watch: RankWatch, rank: int) -> None:
    """Rank 1 never comes to the collective call."""
    watch.enter(TRAINING, 7, is_bounded=True)
    watch.advance()
    if rank == 1:
        time.sleep(600)
    reduce(watch)


def play_and_end(watch: RankWatch, rank: int) -> None:
    """Rank 0 is late; then both go through a collective call and end."""
    if rank == 0:
        time.sleep(2.0)
    watch.meet()
    total = torch.ones(1)
    distributed.all_reduce(total)
    watch.stop()
    distributed.destroy_process_group()
    print(f"sum {total.item():.0f}", flush=True)


def reduce(watch: RankWatch) -> None:
    """A collective call as the trainer's hooks surround it."""
    callback = WatchCallback(watch)
    with callback.explained():
        try:
            distributed.all_reduce(torch.ones(1))
        except RuntimeError as error:
            trainer = SimpleNamespace(global_step=7)
            callback.on_exception(trainer, SimpleNamespace(), error)  # type: ignore[arg-type]
            raise


SCENARIOS = {"play": play, "fail": fail, "train": train, "play and end": play_and_end}
