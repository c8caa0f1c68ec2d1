"""The learning step: dual-clipped loss over an iteration's micro-batches, one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from operator import add
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from arise.algorithms.losses import LossStatistics, dual_clipped_loss
from arise.algorithms.packing import PackedBatch
from arise.errors import WeightSyncError
from arise.modules.distribution import (
    rows_of_all_ranks,
    statistics_over_ranks,
    summed_over_ranks,
)
from arise.modules.gradients import clip_gradients, keep_meshes_apart
from arise.modules.loading import ModelLoader
from arise.modules.lora import LoraOptions, add_adapters
from arise.modules.parallel import sequence_group
from arise.modules.policy_lm import PolicyLM
from arise.modules.tensor_parallel import require_heads
from arise.types import Iteration

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PolicyModule(LightningModule):
    """Trains the policy with Eq. 18 and 19; one training batch is one iteration.

    Optimisation is manual: the number of micro-batches varies, and each one's loss is already a
    share of the whole iteration's, so that gradients simply add up.

    Args:
        loader: Gives the policy's initial weights.
        optimizer: Makes the optimizer from parameters.
        warmup_steps: Update n, counted from 1, uses lr · min(1, n / warmup_steps); 0 is none.
        max_grad_norm: Gradients are scaled down to this global norm.
        loss_order: `"arise"` or `"areal"`; see `dual_clipped_loss`.
        dual_clip: κ.
        ratio_low: Lower bound of ω.
        ratio_high: Upper bound of ω.
        max_initial_ratio_error: Largest |ω - 1| allowed while the policy is the one that
            generated; `None` switches the check off.
        temperature: Sampling temperature of the rollouts.
        compute_dtype: `"float32"` or `"bfloat16"`.
        layout: See `PolicyLM`.
        chunk_tokens: Tokens whose logits exist at one time.
        activation_checkpointing: See `PolicyLM`.
        sequence_parallel: Ranks that share the tokens of a micro-batch.
        cpu_offload: What waits in the host's memory: `"none"`, `"activations"`, `"weights"`
            (with gradients and optimizer state) or `"both"`.
        lora: Train adapters of this kind and nothing else; `None` trains every weight.
    """

    def __init__(
        self,
        *,
        loader: ModelLoader,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        warmup_steps: int,
        max_grad_norm: float,
        loss_order: str,
        dual_clip: float,
        ratio_low: float,
        ratio_high: float,
        max_initial_ratio_error: float | None,
        temperature: float,
        compute_dtype: str,
        layout: str,
        chunk_tokens: int,
        activation_checkpointing: bool,
        lora: LoraOptions | None,
        sequence_parallel: int = 1,
        cpu_offload: str = "none",
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy: PolicyLM | None = None
        self._loader = loader
        self._make_optimizer = optimizer
        self._warmup_steps = warmup_steps
        self._max_grad_norm = max_grad_norm
        self._loss_options: dict[str, Any] = {
            "loss_order": loss_order,
            "dual_clip": dual_clip,
            "ratio_low": ratio_low,
            "ratio_high": ratio_high,
        }
        self._max_initial_ratio_error = max_initial_ratio_error
        self._temperature = temperature
        self._compute_dtype = _DTYPES[compute_dtype]
        self._layout = layout
        self._chunk_tokens = chunk_tokens
        self._activation_checkpointing = activation_checkpointing
        self._lora = lora
        self._sequence_parallel = sequence_parallel
        self._offloads_activations = cpu_offload in ("activations", "both")
        self._offloads_weights = cpu_offload in ("weights", "both")

    def configure_model(self) -> None:
        """Load the weights and spread them over the ranks."""
        if self.policy is not None:
            return
        if self.device_mesh is not None:
            self._require_heads(self.device_mesh["tensor_parallel"].size())
        model = self._loader.model()
        if self._lora is not None:
            add_adapters(model, self._lora)
        self.policy = PolicyLM(
            model,
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
            layout=self._layout,
            activation_checkpointing=self._activation_checkpointing,
            offload_activations=self._offloads_activations,
        )
        if self.device_mesh is not None:
            self.policy.shard(
                self.device_mesh["data_parallel"],
                compute_dtype=self._compute_dtype,
                tensor_mesh=self.device_mesh["tensor_parallel"],
                sequence_group=sequence_group(self.device_mesh, self._sequence_parallel),
                offload_weights=self._offloads_weights,
            )

    def _require_heads(self, tensor_parallel: int) -> None:
        """Refuse what this model's heads do not allow before its weights are read."""
        if tensor_parallel == self._sequence_parallel == 1:
            return
        with torch.device("meta"):
            config = self._loader.empty_model().config.get_text_config()
        require_heads(config, tensor=tensor_parallel, sequence=self._sequence_parallel)

    def configure_optimizers(self) -> Any:
        """The optimizer and its linear warm-up, stepped once an iteration."""
        optimizer = self._make_optimizer(self._trained())
        keep_meshes_apart(optimizer)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._learning_rate_factor)
        return [optimizer], [scheduler]

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def _learning_rate_factor(self, updates_done: int) -> float:
        if self._warmup_steps == 0:
            return 1.0
        return min(1.0, (updates_done + 1) / self._warmup_steps)

    def transfer_batch_to_device(
        self, batch: Iteration, device: torch.device, dataloader_idx: int
    ) -> Iteration:
        """Leave the iteration where it is: micro-batches are moved one at a time."""
        return batch

    def training_step(self, iteration: Iteration, batch_idx: int) -> None:
        """One optimizer step on everything the iteration generated, over all ranks.

        Metrics are those of the whole iteration, on every rank.

        Raises:
            WeightSyncError: On-policy importance ratios are not 1.
        """
        assert self.policy is not None
        self.policy.reshard_weights()
        optimizer: Any = self.optimizers()
        optimizer.zero_grad(set_to_none=False)
        shares, entropies, statistics = [], [], []
        log_ratios: dict[int, Tensor] = {}
        for batch in iteration.micro_batches:
            share, entropy, seen = self._backward(
                iteration, batch.to(self.policy.device), log_ratios
            )
            shares.append(share)
            entropies.append(entropy)
            statistics.append(seen)
        if statistics:
            shared = self.policy.num_replica_ranks
            seen = statistics_over_ranks(reduce(add, statistics), num_replica_ranks=shared)
            self._require_on_policy(iteration, seen)
            loss, entropy = summed_over_ranks(
                [sum(shares), sum(entropies)], device=self.policy.device, num_replica_ranks=shared
            )
            iteration.metrics.update(_loss_metrics(loss, entropy, seen))
            iteration.log_ratios = rows_of_all_ranks(log_ratios)
        iteration.metrics["loss/lr"] = optimizer.param_groups[0]["lr"]
        norm = self._step(optimizer)
        iteration.metrics["loss/skipped_steps"] = float(not math.isfinite(norm))
        if math.isfinite(norm):
            iteration.metrics["loss/grad_norm"] = norm

    def _backward(
        self, iteration: Iteration, batch: PackedBatch, log_ratios: dict[int, Tensor]
    ) -> tuple[float, float, LossStatistics]:
        assert self.policy is not None
        logprobs, entropy = self.policy(batch)
        log_ratios |= _log_ratios(logprobs, batch)
        result = dual_clipped_loss(
            logprobs,
            batch.behavior_logprobs,
            batch.advantages,
            batch.generated_mask,
            num_generated_tokens=iteration.num_generated_tokens,
            **self._loss_options,
        )
        # FSDP averages gradients over its ranks; the loss is a share of a sum over ranks. Those of
        # one micro-batch have the same loss, each the gradient of its own tokens.
        self.manual_backward(result.loss * self.policy.num_sharding_ranks)
        mean_entropy = entropy.sum().item() / max(1, iteration.num_generated_tokens)
        return result.loss.item(), mean_entropy, result.statistics

    def _require_on_policy(self, iteration: Iteration, seen: LossStatistics) -> None:
        """The policy that generated is the policy that trains: ω must be 1 before the step."""
        assert self.policy is not None
        limit = self._max_initial_ratio_error
        # Only rank 0 has the trajectories; all ranks must come to the same end.
        (num_stale,) = summed_over_ranks(
            [float(not _is_on_policy(iteration))], device=self.policy.device
        )
        if limit is None or int(seen.num_measured) == 0 or num_stale:
            return
        error = max(float(seen.ratio_max) - 1.0, 1.0 - float(seen.ratio_min))
        if error > limit:
            raise WeightSyncError(
                f"iteration {iteration.index}: on-policy importance ratios differ from 1 by up to "
                f"{error:.1e} (allowed: algorithm.max_initial_ratio_error = {limit:g}). The engine "
                "does not play the policy that is trained: check engine.dtype against "
                "model.compute_dtype, rollout.temperature, and the chat template"
            )

    def _step(self, optimizer: Any) -> float:
        """Clip and step; a non-finite gradient leaves the weights untouched but counts as a step.

        Returns:
            The global gradient norm before clipping.
        """
        parameters = self._trained()
        for parameter in parameters:
            # Nothing to train is a gradient of 0, not a step that the optimizer skips.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        assert self.policy is not None
        self.policy.complete_gradients()
        norm = clip_gradients(parameters, self._max_grad_norm)
        if not math.isfinite(norm):
            # AdamW skips parameters without a gradient, moments included.
            optimizer.zero_grad(set_to_none=True)
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()
        return norm


def _log_ratios(logprobs: Tensor, batch: PackedBatch) -> dict[int, Tensor]:
    """log ω of each row's generated tokens, float32[N] on the CPU, by row number."""
    mask_T = batch.generated_mask
    ratios_N = (logprobs.detach() - batch.behavior_logprobs)[mask_T].float().cpu()
    ends_T = torch.cat([mask_T.new_zeros(1, dtype=torch.int64), mask_T.cumsum(0)])
    sizes = ends_T[batch.cu_seqlens.long()].diff().tolist()
    parts = zip(batch.row_numbers.tolist(), ratios_N.split(sizes), strict=True)
    return {number: part for number, part in parts if number >= 0}


def _is_on_policy(iteration: Iteration) -> bool:
    return all(
        version == iteration.index
        for group in iteration.groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
        for version in turn.policy_versions
    )


def _loss_metrics(loss: float, entropy: float, seen: LossStatistics) -> dict[str, float]:
    """Scalars of one iteration; undefined ones are left out."""
    generated = max(1, int(seen.num_generated))
    metrics = {
        "loss/policy": loss,
        "loss/entropy": entropy,
        "ratio/masked_low_share": int(seen.num_masked_low) / generated,
        "ratio/masked_high_share": int(seen.num_masked_high) / generated,
        "ratio/dual_clipped_share": int(seen.num_dual_clipped) / generated,
        "ratio/nonfinite_tokens": float(int(seen.num_nonfinite)),
        "ratio/max_abs_log_ratio": float(seen.max_abs_log_ratio),
    }
    if int(seen.num_measured) > 0:
        metrics["ratio/mean"] = float(seen.ratio_sum) / int(seen.num_measured)
        metrics["ratio/min"] = float(seen.ratio_min)
        metrics["ratio/max"] = float(seen.ratio_max)
    return metrics
