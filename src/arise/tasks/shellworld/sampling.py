"""Samples episodes of a policy in lockstep, to measure it; the trainer has its own engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from arise.tasks.shellworld.behaviours import Behaviour, Step, observe_behaviours
from arise.tasks.shellworld.episode import (
    CONTEXT_TOKENS,
    MAX_OUTPUT_TOKENS,
    MAX_TURNS,
    SUBMIT,
    observation,
    system_prompt,
)
from arise.tasks.shellworld.folder import grade
from arise.tasks.shellworld.local_shell import LocalShell
from arise.tasks.shellworld.spec import TaskSpec
from arise.tasks.shellworld.tokenizer import encode_messages


@dataclass(slots=True)
class Episode:
    """One episode in the making.

    Attributes:
        spec: Its task.
        skills: Sentences in the system prompt.
        ids: Token ids so far.
        generated: Which of them the policy sampled.
        steps: Commands and what came back.
        submitted: Whether the policy ended it.
        reward: Verifier outcome, once it has ended.
    """

    spec: TaskSpec
    skills: tuple[str, ...] = ()
    ids: list[int] = field(default_factory=list)
    generated: list[bool] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    submitted: bool = False
    reward: float = 0.0

    @property
    def behaviours(self) -> dict[Behaviour, bool | None]:
        """What its trace shows."""
        return observe_behaviours(self.spec.instruction, self.steps, submitted=self.submitted)


class Sampler:
    """Plays episodes with plain sampling at temperature 1.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its tokenizer.
        shell: Where commands run.
        seed: Of the sampling.
    """

    def __init__(self, model: Any, tokenizer: Any, shell: LocalShell, seed: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._shell = shell
        self._generator = torch.Generator().manual_seed(seed)

    def play(self, tasks: Sequence[tuple[TaskSpec, Sequence[str]]]) -> list[Episode]:
        """One episode of each task, with the given skill sentences."""
        episodes = [Episode(spec=spec, skills=tuple(skills)) for spec, skills in tasks]
        folders: list[Path] = [self._shell.open(episode.spec) for episode in episodes]
        for episode in episodes:
            self._extend(
                episode,
                [("system", system_prompt(episode.skills)), ("user", episode.spec.instruction)],
            )
        live = list(range(len(episodes)))
        for _ in range(MAX_TURNS):
            replies = self._replies([episodes[index].ids for index in live])
            going = []
            for index, reply in zip(live, replies, strict=True):
                if self._act(episodes[index], folders[index], reply):
                    going.append(index)
            live = going
            if not live:
                break
        for episode, folder in zip(episodes, folders, strict=True):
            episode.reward = grade(episode.spec, folder)
            self._shell.close_episode(folder)
        return episodes

    def _extend(self, episode: Episode, messages: Sequence[tuple[str, str]]) -> None:
        ids, _ = encode_messages(self._tokenizer, messages, reply=True)
        episode.ids += ids
        episode.generated += [False] * len(ids)

    def _act(self, episode: Episode, folder: Path, reply: list[int]) -> bool:
        """Execute a reply; whether the episode goes on."""
        episode.ids += reply
        episode.generated += [True] * len(reply)
        if reply[-1] != self._tokenizer.eos_token_id:
            return False
        command = self._tokenizer.decode(reply, skip_special_tokens=True).strip()
        if command == SUBMIT:
            episode.submitted = True
            return False
        seen = self._shell.run(folder, command)
        step = Step(command=command, observation=observation(seen))
        episode.steps.append(step)
        self._extend(episode, [("tool", step.observation)])
        return len(episode.ids) + MAX_OUTPUT_TOKENS <= CONTEXT_TOKENS

    @torch.inference_mode()
    def _replies(self, prompts: list[list[int]]) -> list[list[int]]:
        """Sample a reply to each prompt: left-padded prefill, then one token at a time."""
        pad, end = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        cache = DynamicCache(config=self._model.config)
        replies: list[list[int]] = [[] for _ in prompts]
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for _ in range(MAX_OUTPUT_TOKENS):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            logits = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=self._generator)
            for row, token in enumerate(drawn[:, 0].tolist()):
                if not ended[row]:
                    replies[row].append(token)
            ended |= drawn[:, 0] == end
            if bool(ended.all()):
                break
            ids = drawn
            mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=mask.dtype)], 1)
        return replies


def play_all(
    sampler: Sampler, tasks: Sequence[tuple[TaskSpec, Sequence[str]]], batch: int = 128
) -> list[Episode]:
    """Episodes of many tasks, `batch` at a time."""
    episodes: list[Episode] = []
    for start in range(0, len(tasks), batch):
        episodes += sampler.play(tasks[start : start + batch])
    return episodes


def shuffled_tasks(
    specs: Sequence[TaskSpec], repeats: int, skills: Sequence[str], seed: int
) -> list[tuple[TaskSpec, Sequence[str]]]:
    """Every task `repeats` times, in random order, with the same skills."""
    tasks: list[tuple[TaskSpec, Sequence[str]]] = [
        (spec, skills) for spec in specs for _ in range(repeats)
    ]
    random.Random(seed).shuffle(tasks)
    return tasks
