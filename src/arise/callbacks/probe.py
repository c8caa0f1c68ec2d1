"""How far the engine's log-probabilities are from the trainer's, on a few replies of its own.

A gauge of health, not a proof: after a first step at a small learning rate, or in bfloat16, a stale
engine is as close as a fresh one. That it plays the trainer's weights is proven by checksums.
"""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from torch import distributed

from arise.aio import EventLoopThread
from arise.algorithms.packing import PackedBatch, WeightedRow, pack, padded
from arise.errors import InferenceError
from arise.inference.base import Completion, Engine, GenerationRequest, SamplingParams
from arise.modules.distribution import num_ranks
from arise.modules.policy_lm import PolicyLM
from arise.types import TokenRow

_NUM_PROMPTS = 2
_PROMPT_TOKENS = 16
_REPLY_TOKENS = 16
# A session that no rollout has.
_TASK = -1


class LogprobProbe:
    """Asks the engine for a few tokens after each push, and the trainer for their score.

    Args:
        loop: The run's event loop.
        engine: Plays the policy.
        sampling: As in training rollouts, so that temperature and type are those that count.
    """

    def __init__(self, *, loop: EventLoopThread, engine: Engine, sampling: SamplingParams) -> None:
        self._loop = loop
        self._engine = engine
        self._sampling = sampling

    def measure(self, policy: PolicyLM, *, is_asking: bool) -> dict[str, float]:
        """Mean and largest |Δ log-probability|; collective, because a sharded model is run.

        Args:
            policy: The trainer's, with the weights the engine was just given.
            is_asking: Whether this rank talks to the engine.

        Returns:
            `engine/probe_mean_logprob_gap` and `engine/probe_max_logprob_gap` in nats; nothing if
            the engine did not answer, which the next rollouts will tell.
        """
        batches = self._ask(policy) if is_asking else None
        if num_ranks() > 1:
            received = [batches]
            distributed.broadcast_object_list(received, src=0)
            (batches,) = received
        gaps = [_gap(policy, batch) for batch in batches or ()]
        if not gaps:
            return {}
        gap = torch.cat(gaps)
        return {
            "engine/probe_mean_logprob_gap": float(gap.mean()),
            "engine/probe_max_logprob_gap": float(gap.max()),
        }

    def _ask(self, policy: PolicyLM) -> list[PackedBatch]:
        vocabulary = policy.model.config.get_text_config().vocab_size
        chance = random.Random(0)
        length = max(1, min(_PROMPT_TOKENS, self._engine.max_context_tokens - 1))
        prompts = [
            tuple(chance.randrange(vocabulary) for _ in range(length)) for _ in range(_NUM_PROMPTS)
        ]
        requests = [
            GenerationRequest(
                session=(_TASK, index),
                prompt_token_ids=prompt,
                sampling=replace(self._sampling, max_tokens=_REPLY_TOKENS, seed=index),
            )
            for index, prompt in enumerate(prompts)
        ]
        rows = [
            _row(prompt, answer)
            for prompt, answer in zip(prompts, self._loop.run(self._answers(requests)), strict=True)
            if isinstance(answer, Completion)
        ]
        longest = _NUM_PROMPTS * (_PROMPT_TOKENS + _REPLY_TOKENS)
        return (pack if policy.layout == "packed" else padded)(rows, max_tokens=longest)

    async def _answers(
        self, requests: list[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        try:
            return await self._engine.generate(requests)
        finally:
            for request in requests:
                await self._engine.release(request.session)


def _row(prompt: tuple[int, ...], answer: Completion) -> WeightedRow:
    before = len(prompt)
    row = TokenRow(
        token_ids=prompt + answer.token_ids,
        generated_mask=(False,) * before + (True,) * len(answer.token_ids),
        logprobs=(0.0,) * before + answer.logprobs,
        policy_versions=(-1,) * before + answer.policy_versions,
    )
    return WeightedRow(row=row, advantage=0.0)


def _gap(policy: PolicyLM, batch: PackedBatch) -> torch.Tensor:
    """float[N], |Δ| of the generated tokens."""
    batch = batch.to(policy.device)
    with torch.no_grad():
        logprobs, _ = policy(batch)
    return (logprobs - batch.behavior_logprobs)[batch.generated_mask].abs().float().cpu()
