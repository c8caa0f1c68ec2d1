import math
from collections.abc import Sequence

import pytest

from arise.agents.recording import PolicySession, request_seed, with_skills
from arise.agents.rendering import ChatRenderer
from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.modules.loading import RandomModel
from arise.types import FinishReason, InjectedSkill, Trajectory

pytestmark = pytest.mark.anyio

TOKENIZER = RandomModel(
    seed=1, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, context_tokens=64
).tokenizer()
RENDERER = ChatRenderer(TOKENIZER, observation_role="user")
END = TOKENIZER.eos_token_id


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def encode(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def make_engine(texts: Sequence[str], max_context_tokens: int = 100_000) -> ScriptedEngine:
    return ScriptedEngine(
        script={(0, 0): texts},
        encode=encode,
        end_token_id=END,
        max_context_tokens=max_context_tokens,
        logprob=-0.25,
    )


def make_session(
    engine: ScriptedEngine,
    *,
    context_tokens: int = 100_000,
    skills: tuple[InjectedSkill, ...] = (),
    strips_skills: bool = False,
    seed_parts: tuple[int | str, ...] = (1, "train", 0, "task", 0),
) -> PolicySession:
    async def generate(request: GenerationRequest) -> Completion:
        (answer,) = await engine.generate([request])
        if isinstance(answer, InferenceError):
            raise answer
        return answer

    return PolicySession(
        session=(0, 0),
        renderer=RENDERER,
        generate=generate,
        sampling=SamplingParams(temperature=0.7),
        seed_parts=seed_parts,
        context_tokens=context_tokens,
        skills=skills,
        strips_skills=strips_skills,
    )


def begin_with_prompt_of(session: PolicySession, num_tokens: int) -> None:
    frame = len(RENDERER.start([{"role": "user", "content": ""}]))
    session.begin([{"role": "user", "content": "a" * (num_tokens - frame)}])


def as_trajectory(session: PolicySession) -> Trajectory:
    return Trajectory(
        task_id="task",
        rollout=0,
        turns=tuple(session.turns),
        finish_reason=FinishReason.SUBMITTED,
        task_reward=0.0,
    )


async def test_H05_the_room_left_caps_the_output() -> None:
    engine = make_engine(["x" * 3000])
    session = make_session(engine, context_tokens=4096)
    begin_with_prompt_of(session, 2089)
    reply = await session.reply(max_tokens=2048)
    (request,) = engine.requests
    assert len(request.prompt_token_ids) == 2089
    assert request.sampling.max_tokens == 2007
    assert reply.limit is FinishReason.CONTEXT_LIMIT
    assert len(session.turns[0].token_ids) == 2007


async def test_H05_a_full_context_ends_the_episode_without_a_call() -> None:
    engine = make_engine(["ls", "never asked"])
    session = make_session(engine, context_tokens=200)
    begin_with_prompt_of(session, 50)
    assert (await session.reply(max_tokens=20)).limit is None
    session.observe("y" * 500)
    reply = await session.reply(max_tokens=20)
    assert reply.limit is FinishReason.CONTEXT_LIMIT
    assert len(engine.requests) == len(session.turns) == 1
    # What was generated so far is trained, the observation that did not fit is not part of it.
    (row,) = as_trajectory(session).rows
    assert len(row.token_ids) == 50 + 3


async def test_T11_nothing_is_added_to_a_reply_cut_by_the_output_limit() -> None:
    engine = make_engine(["abcdef"])
    session = make_session(engine)
    begin_with_prompt_of(session, 10)
    reply = await session.reply(max_tokens=4)
    assert reply.limit is FinishReason.OUTPUT_LIMIT
    assert reply.text == "abcd"
    (row,) = as_trajectory(session).rows
    assert row.token_ids[10:] == tuple(encode("abcd"))
    assert row.generated_mask == (False,) * 10 + (True,) * 4


async def test_rows_hold_exactly_what_the_engine_saw_and_gave() -> None:
    engine = make_engine(["ls", "cat x", "submit"])
    engine.version = 5
    session = make_session(engine)
    session.begin([{"role": "user", "content": "go"}])
    for observation in ("x", "héllo", ""):
        await session.reply(max_tokens=100)
        session.act("some command")
        session.observe(observation, exit_code=0)
    (row,) = as_trajectory(session).rows
    for request, reply in zip(engine.requests, ("ls", "cat x", "submit"), strict=True):
        start = len(request.prompt_token_ids)
        expected = (*encode(reply), END)
        assert row.token_ids[:start] == tuple(request.prompt_token_ids)
        assert row.token_ids[start : start + len(expected)] == expected
        assert all(row.generated_mask[start : start + len(expected)])
        assert row.logprobs[start : start + len(expected)] == (-0.25,) * len(expected)
        assert row.policy_versions[start : start + len(expected)] == (5,) * len(expected)
    assert sum(row.generated_mask) == len(encode("lscat xsubmit")) + 3
    assert [turn.starts_row for turn in session.turns] == [True, False, False]
    assert [turn.observation for turn in session.turns] == ["x", "héllo", ""]


async def test_each_call_has_its_own_seed_and_stop_tokens() -> None:
    engine = make_engine(["a", "b"])
    session = make_session(engine)
    session.begin([{"role": "user", "content": "go"}])
    for _ in range(2):
        await session.reply(max_tokens=10)
        session.observe("")
    first, second = (request.sampling for request in engine.requests)
    assert first.seed == request_seed(1, "train", 0, "task", 0, 0)
    assert second.seed == request_seed(1, "train", 0, "task", 0, 1)
    assert first.stop_token_ids == (END,)
    assert first.temperature == 0.7


def test_seeds_differ_in_every_part_and_fit_into_63_bits() -> None:
    parts = [
        (1, "train", 0, "a", 0, 0),
        (2, "train", 0, "a", 0, 0),
        (1, "evaluate", 0, "a", 0, 0),
        (1, "train", 1, "a", 0, 0),
        (1, "train", 0, "b", 0, 0),
        (1, "train", 0, "a", 1, 0),
        (1, "train", 0, "a", 0, 1),
        (1, "train", 0, "a", 11, 0),
        (1, "train", 0, "a", 1, 10),
    ]
    seeds = [request_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # The same in every process and on every machine.
    assert request_seed(1, "train", 0, "a", 0, 0) == 225279903494181517


@pytest.mark.parametrize("num_tokens", [0, 5])
async def test_T14_an_answer_of_the_wrong_length_is_refused(num_tokens: int) -> None:
    async def generate(request: GenerationRequest) -> Completion:
        return Completion(
            token_ids=(1,) * num_tokens,
            logprobs=(-1.0,) * num_tokens,
            policy_versions=(0,) * num_tokens,
            finish_reason="stop",
        )

    session = PolicySession(
        session=(0, 0),
        renderer=RENDERER,
        generate=generate,
        sampling=SamplingParams(),
        seed_parts=(),
        context_tokens=100,
    )
    session.begin([{"role": "user", "content": "go"}])
    with pytest.raises(InferenceError, match=f"1 to 4 tokens, got {num_tokens}"):
        await session.reply(max_tokens=4)
    assert session.turns == []


@pytest.mark.parametrize(("num_ids", "num_logprobs"), [(5, 6), (6, 5), (4, 0)])
def test_T02_arrays_that_do_not_align_are_refused(num_ids: int, num_logprobs: int) -> None:
    with pytest.raises(InferenceError, match="differ in length"):
        Completion(
            token_ids=(1,) * num_ids,
            logprobs=(-1.0,) * num_logprobs,
            policy_versions=(0,) * num_ids,
            finish_reason="stop",
        )


async def test_a_log_probability_that_is_not_finite_is_kept_as_it_is() -> None:
    engine = ScriptedEngine(
        script={(0, 0): ["a"]},
        encode=encode,
        end_token_id=END,
        max_context_tokens=100,
        logprob=-math.inf,
    )
    session = make_session(engine)
    session.begin([{"role": "user", "content": "go"}])
    await session.reply(max_tokens=10)
    assert session.turns[0].logprobs == (-math.inf, -math.inf)


def test_skills_follow_the_system_prompt_in_pair_order() -> None:
    skills = (
        InjectedSkill(pair_id=7, revision=1, text="Check."),
        InjectedSkill(pair_id=2, revision=3, text="Plan."),
    )
    assert with_skills("You act.", skills) == "You act.\nSkills:\n- Plan.\n- Check."
    assert with_skills("You act.", ()) == "You act."


def test_skills_that_leave_no_room_are_a_configuration_error() -> None:
    skill = InjectedSkill(pair_id=1, revision=0, text="x")
    session = make_session(make_engine([]), context_tokens=50, skills=(skill,))
    with pytest.raises(ConfigError, match=r"rollout\.context_tokens = 50 .* 1 active skills"):
        begin_with_prompt_of(session, 50)
    begin_with_prompt_of(session, 49)


async def test_a_command_is_recorded_before_it_runs() -> None:
    session = make_session(make_engine(["sleep 9"]))
    session.begin([{"role": "user", "content": "go"}])
    await session.reply(max_tokens=20)
    session.act("sleep 9")
    assert session.turns[0].action == "sleep 9"
    session.observe("done", exit_code=0)
    assert (session.turns[0].action, session.turns[0].exit_code) == ("sleep 9", 0)


async def test_rows_can_be_trained_without_what_the_prompt_showed() -> None:
    skills = (InjectedSkill(pair_id=1, revision=0, text="Read first."),)
    system = {"role": "system", "content": "Act."}
    shown = {"role": "system", "content": with_skills("Act.", skills)}
    user = {"role": "user", "content": "Do it."}
    session = make_session(make_engine(["ls", "cat a"]), skills=skills, strips_skills=True)
    session.begin([shown, user])
    await session.reply(max_tokens=64)
    session.observe("a")
    await session.reply(max_tokens=64)
    first, second = session.turns
    assert first.prompt_token_ids == RENDERER.start([shown, user])
    assert first.trained_prompt_token_ids == RENDERER.start([system, user])
    assert second.trained_prompt_token_ids is None
    (row,) = as_trajectory(session).rows
    plain = (
        *RENDERER.start([system, user]),
        *first.token_ids,
        *second.prompt_token_ids,
        *second.token_ids,
    )
    assert row.token_ids == plain
    assert sum(row.generated_mask) == len(first.token_ids) + len(second.token_ids)


async def test_without_skills_nothing_is_stripped() -> None:
    session = make_session(make_engine(["ls"]), strips_skills=True)
    session.begin([{"role": "system", "content": "Act."}, {"role": "user", "content": "Do it."}])
    await session.reply(max_tokens=64)
    assert session.turns[0].trained_prompt_token_ids is None


async def test_a_row_that_goes_back_is_stripped_too() -> None:
    skills = (InjectedSkill(pair_id=1, revision=0, text="Read first."),)
    messages = [{"role": "system", "content": with_skills("Act.", skills)}]
    messages += [{"role": "user", "content": "Do it."}]
    session = make_session(make_engine(["ls", "pwd"]), skills=skills, strips_skills=True)
    session.begin(messages)
    start = session.snapshot()
    await session.reply(max_tokens=64)
    session.return_to(start, "again", reason="retry")
    await session.reply(max_tokens=64)
    first, second = session.turns
    assert first.trained_prompt_token_ids is not None
    added = second.prompt_token_ids[len(start) :]
    assert second.trained_prompt_token_ids == (*first.trained_prompt_token_ids, *added)
