"""Task types of tasks, by a language model, before training (Appendix C.2).

The model sees the instruction, the names of skills on offer and the paths of the environment's
files; never tests, solutions or rollouts. Each match has to name the operation that the task
requires and the observable result. If nothing matched but types came close, those alone are
looked at in a second pass.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from arise.errors import JudgeError
from arise.llm.budget import CallBudget
from arise.llm.chat import ChatModel, Purpose
from arise.llm.text import clean_text, without_thinking
from arise.llm.tokens import cut_middle_to_tokens
from arise.rubrics.lenient_json import read_objects
from arise.rubrics.payloads import AnnotationPayload, TaskTypeEntry
from arise.rubrics.prompting import Prompts
from arise.tasks.taxonomy import Taxonomy
from arise.types import Task

MAX_INSTRUCTION_TOKENS = 16_384
MAX_PATHS = 300
_BUILD_FILES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A task type that a task has, and why.

    Attributes:
        task_type: Its name in the registry.
        operation: What the task requires to be done.
        observable_result: Where the result of that can be seen.
    """

    task_type: str
    operation: str
    observable_result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """What one answer says.

    Attributes:
        matches: Types that the task has, each once.
        candidates: Types that came close, or were named as matches without operation or result.
        unknown: Names that are not in the registry, as written.
    """

    matches: tuple[Match, ...]
    candidates: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTags:
    """The annotation of one task: one line of `tags.jsonl`.

    Attributes:
        task_id: The task.
        tags: Its task types; none is possible.
        matches: Why it has them.
        candidates: What came close in the first pass.
        unknown: Names that the model made up.
        num_passes: 1, or 2 if the near candidates were looked at again.
        task_hash: Hash of what the model saw of the task.
        prompt_hash: Hash of the prompt file.
        registry_hash: Hash of the registry.
        model: Name of the model.
        prompt_tokens: Tokens sent.
        completion_tokens: Tokens answered.
    """

    task_id: str
    tags: tuple[str, ...]
    matches: tuple[Match, ...]
    candidates: tuple[str, ...]
    unknown: tuple[str, ...]
    num_passes: int
    task_hash: str
    prompt_hash: str
    registry_hash: str
    model: str
    prompt_tokens: int
    completion_tokens: int


class Annotator:
    """Asks a model for the task types of tasks.

    Args:
        model: Answers the requests.
        prompts: The prompt files.
        taxonomy: The registry.
        budget: Calls that may still be made; `None` for no limit.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        prompts: Prompts,
        taxonomy: Taxonomy,
        budget: CallBudget | None = None,
    ) -> None:
        self.model = model
        self._prompts = prompts
        self._taxonomy = taxonomy
        self._budget = budget or CallBudget()

    @property
    def num_calls(self) -> int:
        """Calls to the endpoint so far."""
        return self._budget.num_taken

    @property
    def origin(self) -> dict[str, str]:
        """What an annotation depends on besides its task."""
        return {
            "prompt_hash": self._prompts.sha256(Purpose.ANNOTATION),
            "registry_hash": self._taxonomy.sha256,
            "model": self.model.name,
        }

    async def annotate(self, task: Task) -> TaskTags:
        """The task types of one task; two requests at most.

        Raises:
            JudgeError: There is no answer, or it is not of the requested form: the task is not
                annotated, which is not the same as having no type.
        """
        first, tokens = await self._ask(task, self._taxonomy.types)
        final, num_passes = first, 1
        if not first.matches and first.candidates:
            near = [entry for entry in self._taxonomy.types if entry.name in first.candidates]
            final, more = await self._ask(task, tuple(near), is_second_pass=True)
            tokens, num_passes = (tokens[0] + more[0], tokens[1] + more[1]), 2
        return TaskTags(
            task_id=task.id,
            tags=tuple(match.task_type for match in final.matches),
            matches=final.matches,
            candidates=first.candidates,
            unknown=(*first.unknown, *(final.unknown if num_passes == 2 else ())),
            num_passes=num_passes,
            task_hash=task_hash(task),
            **self.origin,
            prompt_tokens=tokens[0],
            completion_tokens=tokens[1],
        )

    async def _ask(
        self, task: Task, registry: tuple[TaskTypeEntry, ...], *, is_second_pass: bool = False
    ) -> tuple[Annotation, tuple[int, int]]:
        payload = AnnotationPayload(
            task_id=task.id,
            instruction=cut_middle_to_tokens(clean_text(task.instruction), MAX_INSTRUCTION_TOKENS),
            skill_names=skill_names(task),
            artifact_paths=artifact_paths(task),
            registry=registry,
            is_second_pass=is_second_pass,
        )
        if not self._budget.take():
            raise JudgeError("not asked: the budget of calls is spent")
        request = replace(self._prompts.annotation(payload), budget=self._budget)
        response = await self.model.complete(request)
        annotation = parse_annotation(response.text, [entry.name for entry in registry])
        if annotation is None:
            raise JudgeError(f"no annotation in the answer: {response.text[:200]!r}")
        return annotation, (response.prompt_tokens, response.completion_tokens)


def parse_annotation(text: str, names: list[str]) -> Annotation | None:
    """Read `{"matches": [...], "candidates": [...]}`.

    Names count without differences of case, white space and hyphens.

    Args:
        text: The answer.
        names: The registry's names.

    Returns:
        `None` if the answer has not that form: no list of matches.

    Example:
        >>> match = '{"operation": "o", "observable_result": "r", "task_type": "unit  Tests"}'
        >>> answer = parse_annotation('{"matches": [' + match + "]}", ["Unit tests"])
        >>> [found.task_type for found in answer.matches]
        ['Unit tests']
    """
    known = {_fold(name): name for name in names}
    objects, _ = read_objects(without_thinking(text))
    answer = next((o for o in objects if isinstance(o.get("matches"), list)), None)
    if answer is None:
        return None
    matches: dict[str, Match] = {}
    near: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for entry, is_match in _entries(answer):
        written = str(entry.get("task_type", ""))
        name = known.get(_fold(written))
        reasons = [entry.get(key) for key in ("operation", "observable_result")]
        if name is None:
            unknown[written[:100]] = None
        elif is_match and all(isinstance(text, str) and text.strip() for text in reasons):
            operation, result = map(str, reasons)
            matches.setdefault(
                name, Match(task_type=name, operation=operation, observable_result=result)
            )
        else:
            near[name] = None
    return Annotation(
        matches=tuple(matches.values()),
        candidates=tuple(name for name in near if name not in matches),
        unknown=tuple(unknown),
    )


def _entries(answer: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Matches, then candidates; a bare name stands for an entry without reasons."""
    for key in ("matches", "candidates"):
        values = answer.get(key)
        for value in values if isinstance(values, list) else ():
            if isinstance(value, str):
                yield {"task_type": value}, key == "matches"
            elif isinstance(value, dict):
                yield value, key == "matches"


def _fold(name: str) -> str:
    return " ".join(name.casefold().replace("-", " ").replace("‑", " ").split())


def skill_names(task: Task) -> tuple[str, ...]:
    """Names of the skills that the benchmark provides."""
    folder = task.environment.skills
    if folder is None:
        return ()
    return tuple(sorted(file.parent.name for file in folder.glob("*/SKILL.md")))


def artifact_paths(task: Task) -> tuple[str, ...]:
    """Paths of the environment's files, at most `MAX_PATHS`; neither tests nor solution."""
    spec = task.environment
    hidden = {path.resolve() for path in (task.tests, task.solution, spec.skills) if path}
    hidden |= {path.resolve() for path in task.extra_tests}
    folders = [spec.context, *(step.workdir for step in task.steps)]
    paths: set[str] = set()
    for folder in folders:
        if folder is None or not folder.is_dir():
            continue
        for file in folder.rglob("*"):
            below = file.relative_to(folder)
            is_part = below.parts[0] not in spec.exclude and below.as_posix() not in _BUILD_FILES
            if is_part and file.is_file() and hidden.isdisjoint(file.resolve().parents):
                paths.add(below.as_posix())
    return tuple(clean_text(path) for path in sorted(paths)[:MAX_PATHS])


def task_hash(task: Task) -> str:
    """Names what the annotator sees of a task, so that a change of it is noticed."""
    seen = [task.instruction, skill_names(task), artifact_paths(task)]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
