"""The real learning step on one device, and the engine that plays what it made."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from lightning import Callback, Trainer
from scale import GIB, Scale, Table, now, peak, reset_peak
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from arise.aio import EventLoopThread
from arise.algorithms.packing import WeightedRow
from arise.callbacks.probe import LogprobProbe
from arise.inference.base import SamplingParams
from arise.inference.transformers import TransformersEngine
from arise.modules.distribution import share_rows
from arise.modules.parallel import ParallelStrategy
from arise.modules.policy import PolicyModule
from arise.types import Iteration, TokenRow


class RandomQwen3:
    """A loader of a random model of Qwen3's shape."""

    def __init__(self, scale: Scale) -> None:
        self._config = Qwen3Config(
            **scale.model,
            vocab_size=scale.vocabulary,
            max_position_embeddings=2 * max(scale.row_tokens),
            tie_word_embeddings=True,
        )

    def model(self) -> PreTrainedModel:
        """Random weights."""
        return self.empty_model()

    def empty_model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Random weights, too."""
        return Qwen3ForCausalLM(self._config).to(dtype)

    def tokenizer(self) -> Any:
        """None is needed."""
        raise NotImplementedError("token ids are random")


class Stream:
    """A sized stream of empty iterations."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Iteration]:
        return (Iteration(index=index) for index in range(self._count))


class Feed(Callback):
    """Gives random rows to each step and keeps its time and metrics."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        chance = random.Random(0)
        self._rows = [
            _row(chance, length, scale, advantage=(-1.0) ** number)
            for number, length in enumerate(scale.row_tokens)
        ]
        self._started = 0.0
        self.seconds: list[float] = []
        self.metrics: list[dict[str, float]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Iteration, batch_idx: int
    ) -> None:
        """Fill the iteration."""
        batch.num_generated_tokens = sum(sum(row.row.generated_mask) for row in self._rows)
        max_tokens = sum(self._scale.row_tokens)
        share_rows(batch, self._rows, layout=pl_module.policy.layout, max_tokens=max_tokens)
        self._started = now(self._scale)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Iteration, batch_idx: int
    ) -> None:
        """Keep what it took and gave."""
        self.seconds.append(now(self._scale) - self._started)
        self.metrics.append(batch.metrics)


def check_step(scale: Scale, table: Table, *, cpu_offload: str) -> PolicyModule:
    """Optimizer steps of the real module under the real trainer, FSDP2 on one device."""
    feed = Feed(scale)
    before = reset_peak(scale)
    module = PolicyModule(
        loader=RandomQwen3(scale),
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.0),
        warmup_steps=0,
        max_grad_norm=1.0,
        loss_order="arise",
        dual_clip=3.0,
        ratio_low=0.01,
        ratio_high=100.0,
        max_initial_ratio_error=None,
        temperature=1.0,
        compute_dtype=scale.dtype,
        layout="packed",
        chunk_tokens=scale.chunk_tokens,
        activation_checkpointing=True,
        lora=None,
        cpu_offload=cpu_offload,
    )
    trainer = Trainer(
        accelerator="gpu" if scale.device == "cuda" else "cpu",
        devices=1,
        strategy=ParallelStrategy(cpu_offload=cpu_offload),
        max_steps=scale.num_steps,
        max_epochs=-1,
        logger=False,
        callbacks=[feed],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, train_dataloaders=Stream(scale.num_steps))
    name = f"step of {sum(scale.row_tokens)} tokens, offloaded: {cpu_offload}"
    steady = min(feed.seconds[1:])
    table.add(f"{name}, time", steady, "s ")
    table.add(f"{name}, tokens/s", sum(scale.row_tokens) / steady)
    table.add(f"{name}, peak memory", (peak(scale) - before) / GIB, "GiB ")
    losses = [metrics["loss/policy"] for metrics in feed.metrics]
    table.add(f"{name}, change of the loss", losses[-1] - losses[0], limit=-1e-6)
    table.add(f"{name}, skipped", sum(m["loss/skipped_steps"] for m in feed.metrics), limit=0)
    return module


def check_engine(scale: Scale, table: Table, module: PolicyModule) -> None:
    """The engine of transformers with the trained weights, and how far its scores are off."""
    assert module.policy is not None
    engine = TransformersEngine(
        model=RandomQwen3(scale).empty_model,
        device=scale.device,
        dtype=scale.dtype,
        max_context_tokens=64,
        max_sessions=4,
    )
    loop = EventLoopThread()
    try:
        loop.run(engine.start())
        loop.run(engine.load_weights(module.policy.full_weights(), version=1))
        sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0)
        probe = LogprobProbe(loop=loop, engine=engine, sampling=sampling)
        start = now(scale)
        gaps = probe.measure(module.policy, is_asking=True)
        table.add("32 tokens of the transformers engine", now(scale) - start, "s ")
        mean = gaps.get("engine/probe_mean_logprob_gap", math.nan)
        table.add("engine against trainer, mean gap", mean, "nats ", limit=scale.engine_gap)
        largest = gaps.get("engine/probe_max_logprob_gap", math.nan)
        table.add("engine against trainer, largest gap", largest, "nats ")
    finally:
        loop.run(engine.stop())
        loop.close()


def _row(chance: random.Random, length: int, scale: Scale, *, advantage: float) -> WeightedRow:
    prompt = length // 4
    logprob = -math.log(scale.vocabulary)
    row = TokenRow(
        token_ids=tuple(chance.randrange(scale.vocabulary) for _ in range(length)),
        generated_mask=(False,) * prompt + (True,) * (length - prompt),
        logprobs=(0.0,) * prompt + (logprob,) * (length - prompt),
        policy_versions=(-1,) * prompt + (0,) * (length - prompt),
    )
    return WeightedRow(row=row, advantage=advantage)
