"""Training tokens per second of our learning step against that of TRL's `GRPOTrainer`.

Both train the same tiny policy on the same rollouts: one iteration of the bundled suite, really
played. Each block runs in a process of its own, in the order ours, TRL, TRL, ours, ...; medians
over blocks. What counts is the step alone. For ours: packing, forward, backward, clipping,
optimizer. For TRL: forward, backward, clipping, optimizer; its padding, decoding and rewards are
left out. Gradient norms are printed, because both must compute the same update.

TRL is given its best case: every `--trl-batch` is tried and the fastest one counts. It is no
dependency of ours; `make train-step` makes an environment with it and runs this.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from omegaconf import DictConfig
from real_rows import PlayedRow, composed, play

Measured = tuple[list[float], float]
"""Seconds of each step after the warm-up, and the gradient's norm before clipping."""

WARM_UP = 2
# So small that every step sees the same on-policy rows.
LEARNING_RATE = 1e-12


def ours(rows: list[PlayedRow], num_steps: int, _: int) -> Measured:
    """`PolicyModule` under the trainer and strategy of a run."""
    from hydra.utils import instantiate
    from lightning import Callback

    from arise.modules.distribution import share_rows
    from arise.types import Iteration

    cfg = composed(
        f"trainer.max_steps={num_steps + WARM_UP}",
        "trainer.enable_checkpointing=false",
        f"algorithm.optimizer.lr={LEARNING_RATE}",
    )
    weighted = [row.weighted for row in rows]
    num_generated = sum(sum(row.row.generated_mask) for row in weighted)
    seconds: list[float] = []
    norms: list[float] = []

    class Feed(Callback):
        started = 0.0

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, _: int) -> None:
            self.started = time.perf_counter()
            batch.num_generated_tokens = num_generated
            max_tokens = cfg.algorithm.micro_batch_tokens
            share_rows(batch, weighted, layout=pl_module.policy.layout, max_tokens=max_tokens)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, _: int
        ) -> None:
            seconds.append(time.perf_counter() - self.started)
            norms.append(batch.metrics["loss/grad_norm"])

    class Stream:
        def __len__(self) -> int:
            return num_steps + WARM_UP

        def __iter__(self) -> Iterator[Iteration]:
            return (Iteration(index=index) for index in range(len(self)))

    trainer = instantiate(cfg.trainer, callbacks=[Feed()], logger=False)
    trainer.fit(_module(cfg), train_dataloaders=Stream())
    return seconds[WARM_UP:], norms[-1]


def _module(cfg: DictConfig) -> Any:
    from hydra.utils import instantiate

    from arise.modules.policy import PolicyModule

    algorithm, model = cfg.algorithm, cfg.model
    return PolicyModule(
        loader=instantiate(model.loader),
        optimizer=instantiate(algorithm.optimizer),
        warmup_steps=0,
        max_grad_norm=algorithm.max_grad_norm,
        loss_order=algorithm.loss_order,
        dual_clip=algorithm.dual_clip,
        ratio_low=algorithm.ratio_low,
        ratio_high=algorithm.ratio_high,
        max_initial_ratio_error=algorithm.max_initial_ratio_error,
        temperature=cfg.rollout.temperature,
        compute_dtype=model.compute_dtype,
        layout=model.layout,
        chunk_tokens=model.logprob_chunk_tokens,
        activation_checkpointing=model.activation_checkpointing,
        lora=None,
    )


def trl(rows: list[PlayedRow], num_steps: int, batch_rows: int) -> Measured:
    """`GRPOTrainer` with a rollout function that returns the same rows every time."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from arise.modules.loading import PackagedModel

    loader = PackagedModel("arise.tasks.shellworld", "policy")
    rollouts_per_task = len(rows) // (1 + max(row.group for row in rows))
    seconds: list[float] = []
    norms: list[float] = []
    preparation: list[float] = []

    class Timed(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = time.perf_counter()
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                preparation.append(time.perf_counter() - start)

    class Clock(TrainerCallback):
        started = 0.0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            preparation.clear()
            self.started = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(time.perf_counter() - self.started - sum(preparation))

        def on_log(self, *args: Any, logs: Any = None, **kwargs: Any) -> None:
            norms.extend([logs["grad_norm"]] if "grad_norm" in (logs or {}) else [])

    with tempfile.TemporaryDirectory() as scratch:
        options = GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=batch_rows,
            gradient_accumulation_steps=len(rows) // batch_rows,
            num_generations=rollouts_per_task,
            max_completion_length=512,
            max_steps=num_steps + WARM_UP,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            beta=0.0,
            temperature=1.0,
            scale_rewards="group",
            loss_type="dapo",
            shuffle_dataset=False,
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False,
            logging_steps=num_steps + WARM_UP,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Timed(
            model=loader.model(),
            processing_class=loader.tokenizer(),
            reward_funcs=lambda prompts, reward, **_: reward,
            args=options,
            train_dataset=Dataset.from_dict(
                {"prompt": [str(group) for group in range(len(rows) // rollouts_per_task)]}
            ),
            rollout_func=lambda prompts, _: _as_completions(rows, prompts),
            callbacks=[Clock()],
        )
        trainer.train()
    return seconds[WARM_UP:], norms[-1]


def _as_completions(rows: list[PlayedRow], prompts: list[str]) -> dict[str, list[Any]]:
    """Each prompt's next row: what stands before the first generated token is its prompt."""
    left = {str(row.group): [r for r in rows if r.group == row.group] for row in rows}
    output: dict[str, list[Any]] = {
        key: [] for key in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    }
    for prompt in prompts:
        played = left[prompt].pop(0)
        row = played.weighted.row
        start = row.generated_mask.index(True)
        output["prompt_ids"].append(list(row.token_ids[:start]))
        output["completion_ids"].append(list(row.token_ids[start:]))
        output["logprobs"].append(list(row.logprobs[start:]))
        output["env_mask"].append([int(m) for m in row.generated_mask[start:]])
        output["reward"].append(played.reward)
    return output


def _child(
    way: Callable[..., Measured], rows: Any, steps: int, size: int, threads: int, pipe: Connection
) -> None:
    torch.set_num_threads(threads)
    # Lightning left them in the parent, which still listens on that port.
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK"):
        os.environ.pop(name, None)
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")
    pipe.send(way(rows, steps, size))


def block(
    way: Callable[..., Measured], rows: list[PlayedRow], size: int, args: Any
) -> tuple[float, float]:
    """Median seconds of a step, and the gradient's norm, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_child, args=(way, rows, args.steps, size, args.threads, sender)
    )
    process.start()
    sender.close()
    try:
        seconds, norm = receiver.recv()
    except EOFError:
        process.join()
        raise SystemExit(f"{way.__name__} died with exit code {process.exitcode}") from None
    process.join()
    return statistics.median(seconds), norm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a block")
    parser.add_argument("--rounds", type=int, default=4, help="blocks of each way")
    parser.add_argument("--trl-batch", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    # In this iteration some groups differ in their rewards: without that both gradients are zero.
    rows = play("seed=4")
    num_tokens = sum(len(row.weighted.row.token_ids) for row in rows)
    ways: list[tuple[str, Callable[..., Measured], int]] = [("ours", ours, 0)]
    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed, so there is nothing to compare with: run `make train-step`")
    else:
        ways += [(f"TRL, {size} rows at once", trl, size) for size in args.trl_batch]
    print(f"{len(rows)} rows, {num_tokens:,} tokens; median seconds of a step", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    for number in range(args.rounds):
        for name, way, size in ways[:: 1 if number % 2 == 0 else -1]:
            median, norm = block(way, rows, size, args)
            seconds[name].append(median)
            print(f"  {name:<22} {median:7.3f} s, gradient norm {norm:.5f}", flush=True)
    best = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in best.items():
        print(f"{name:<24} {num_tokens / median:,.0f} training tokens/s")
    if len(best) > 1:
        fastest = min(list(best)[1:], key=lambda name: best[name])
        ratios = [a / b for a, b in zip(seconds[fastest], seconds["ours"], strict=True)]
        print(f"ratio ours / {fastest}: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
