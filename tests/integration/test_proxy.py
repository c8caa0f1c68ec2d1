"""The recording proxy over real HTTP: what clients get, and what is recorded."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest

from arise.agents.gate import GenerationGate
from arise.agents.proxied import CallBudgets, ProxiedEpisode
from arise.agents.proxy import RecordingProxy
from arise.agents.recording import PolicySession
from arise.agents.rendering import ChatRenderer
from arise.errors import ConfigError, InferenceError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.scripted import ScriptedEngine
from arise.types import FinishReason, InjectedSkill, Trajectory
from harnesses import ITEM_CALLS, JSON_CALLS, call, make_tokenizer

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
SYSTEM = {"role": "system", "content": "Act."}
USER = {"role": "user", "content": "List <|end|> files."}
BUDGETS = CallBudgets(max_turns=20, max_output_tokens=500, max_refused_calls=4)


class Setting:
    """A served episode and clients of it."""

    def __init__(self, proxy: RecordingProxy, episode: ProxiedEpisode, key: str) -> None:
        self.proxy, self.episode, self.key = proxy, episode, key
        self.url = f"http://127.0.0.1:{proxy.port}/v1"
        self.client = openai.AsyncOpenAI(base_url=self.url, api_key=key, max_retries=0)

    async def post(self, path: str, body: Any, *, key: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/{path}", json=body, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def chat(self, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """The reply's message and the whole response."""
        status, response = await self.post("chat/completions", {"messages": messages, **body})
        assert status == 200, response
        return response["choices"][0]["message"] | {"_": response}

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(
            task_id="t",
            rollout=0,
            turns=tuple(self.episode.session.turns),
            finish_reason=FinishReason.SUBMITTED,
            task_reward=0.0,
        )

    def reasons(self) -> dict[str, int]:
        return {str(key): count for key, count in self.episode.session.row_reasons.items()}


def said(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "_"}


@asynccontextmanager
async def served(
    texts: Sequence[str],
    *,
    template: str | None = JSON_CALLS,
    context_tokens: int = 20_000,
    budgets: CallBudgets = BUDGETS,
    engine_class: type[ScriptedEngine] = ScriptedEngine,
    **session: Any,
) -> AsyncIterator[tuple[Setting, ScriptedEngine]]:
    tokenizer = make_tokenizer(template)
    engine = engine_class(
        script={(0, 0): texts},
        encode=lambda text: tokenizer(text, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ],
        end_token_id=tokenizer.eos_token_id,
        max_context_tokens=context_tokens,
    )
    engine.version = 7
    gate = GenerationGate(engine, lockstep=False)
    gate.enter((0, 0))
    policy = PolicySession(
        session=(0, 0),
        renderer=ChatRenderer(tokenizer, observation_role="tool"),
        generate=gate.generate,
        sampling=SamplingParams(temperature=1.0),
        seed_parts=(1,),
        context_tokens=context_tokens,
        **session,
    )
    proxy = RecordingProxy()
    await proxy.start()
    try:
        episode = ProxiedEpisode(policy, budgets)
        with proxy.serving(episode) as key:
            yield Setting(proxy, episode, key), engine
    finally:
        await proxy.stop()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 60))


def check_rows(setting: Setting, engine: ScriptedEngine, calls: Sequence[int]) -> None:
    """Each row, cut at its replies, is exactly what the engine saw, in the order of `calls`."""
    prompts = [tuple(request.prompt_token_ids) for request in engine.requests]
    seen = []
    for row in setting.trajectory.rows:
        starts = [
            place
            for place, (now, before) in enumerate(
                zip(row.generated_mask, (False, *row.generated_mask), strict=False)
            )
            if now and not before
        ]
        seen += [row.token_ids[:start] for start in starts]
    assert seen == [prompts[index] for index in calls]


@pytest.mark.parametrize("template", [JSON_CALLS, ITEM_CALLS, None])
def test_T06_a_tool_loop_is_one_row_of_exact_tokens(template: str | None) -> None:
    reply = "<think>look\n</think>I list." + call("bash", '{"command": "ls \\"a\\" </tool_call>"}')

    async def body() -> None:
        async with served([reply, "Done."], template=template) as (setting, engine):
            messages = [SYSTEM, USER]
            first = await setting.client.chat.completions.create(
                model="policy",
                messages=messages,
                tools=TOOLS,
                temperature=0.2,
                top_p=0.5,
                extra_body={"top_k": 3, "return_token_ids": True},
                logprobs=True,
            )
            choice = first.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "I list."
            assert choice.message.reasoning_content == "look"
            (tool_call,) = choice.message.tool_calls
            assert json.loads(tool_call.function.arguments) == {"command": 'ls "a" </tool_call>'}
            echoed = choice.message.model_dump(exclude_none=True)
            result = {"role": "tool", "tool_call_id": tool_call.id, "content": "a.txt <|end|>"}
            second = await setting.client.chat.completions.create(
                model="policy", messages=[*messages, echoed, result], tools=TOOLS
            )
            assert (second.choices[0].message.content, second.choices[0].finish_reason) == (
                "Done.",
                "stop",
            )
            trajectory = setting.trajectory
            (row,) = trajectory.rows
            one, two = trajectory.turns
            assert choice.token_ids == list(one.token_ids)
            assert first.prompt_token_ids == list(one.prompt_token_ids)
            assert len(choice.logprobs.content) == first.usage.completion_tokens
            assert (one.action, one.observation) == ('ls "a" </tool_call>', "a.txt <|end|>")
            assert set(one.policy_versions) == {7}
            assert set(two.logprobs) == {-1.0}
            check_rows(setting, engine, [0, 1])
            # Training samples from the plain distribution whatever the client asks for.
            for request in engine.requests:
                sampling = request.sampling
                assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
            assert engine.requests[0].sampling.seed != engine.requests[1].sampling.seed
            # Content that spells a special token is text: the end token stands between messages.
            renderer = setting.episode.session.renderer
            assert row.token_ids.count(renderer.stop_token_ids[0]) == 5
            assert setting.reasons() == {}

    run(body)


@pytest.mark.parametrize("template", [JSON_CALLS, ITEM_CALLS])
def test_T06_a_history_of_calls_reaches_the_template_as_mappings(template: str) -> None:
    history = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "a \\"b\\" <|end|>"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "out"},
    ]

    async def body() -> None:
        async with served(["ok"], template=template) as (setting, engine):
            await setting.chat(history, tools=TOOLS)
            renderer = setting.episode.session.renderer
            prompt = engine.requests[0].prompt_token_ids
            text = renderer._tokenizer.decode(list(prompt))
            expected = (
                '"arguments": {"command": "a \\"b\\" <|end|>"}'
                if template == JSON_CALLS
                else '<parameter=command>\na "b" <|end|>\n</parameter>'
            )
            assert expected in text
            assert list(prompt).count(renderer.stop_token_ids[0]) == 4

    run(body)


def test_a_stream_carries_the_same_answer() -> None:
    reply = "<think>why</think>So." + call("bash", '{"command": "ls"}')

    async def body() -> None:
        async with served([reply, reply]) as (setting, _):
            whole = await setting.chat([SYSTEM, USER], tools=TOOLS)
            stream = await setting.client.chat.completions.create(
                model="m",
                messages=[SYSTEM, {**USER, "content": "again"}],
                tools=TOOLS,
                stream=True,
                stream_options={"include_usage": True},
            )
            content = reasoning = arguments = ""
            finish, usage = None, None
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    content += choice.delta.content or ""
                    reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                    for part in choice.delta.tool_calls or ():
                        arguments += part.function.arguments
                    finish = choice.finish_reason or finish
            assert (content, reasoning) == (whole["content"], whole["reasoning_content"])
            assert arguments == whole["tool_calls"][0]["function"]["arguments"]
            assert finish == "tool_calls"
            assert usage.completion_tokens == len(reply) + 1

    run(body)


def test_H06_what_does_not_extend_a_row_begins_one_with_its_reason() -> None:
    thoughts = [f"<think>hm</think>Yes {number:02}." for number in range(12)]

    async def body() -> None:
        async with served(thoughts) as (setting, engine):
            dated = {"role": "user", "content": "It is Mon 3 Mar 2025, 9:05 AM. Go."}
            later = {"role": "user", "content": "It is Tue 14 Oct 2025, 10:15 PM. Go."}
            more = {"role": "user", "content": "more"}
            first = said(await setting.chat([SYSTEM, dated]))
            second = said(await setting.chat([SYSTEM, dated, first, more]))
            assert setting.reasons() == {}
            steps: list[tuple[list[dict[str, Any]], dict[str, Any], str | None]] = [
                ([SYSTEM, later, first, more], {}, "time_stamp"),
                (
                    [SYSTEM, dated, {**first, "reasoning_content": None}, more],
                    {},
                    "dropped_thinking",
                ),
                ([SYSTEM, {"role": "user", "content": "Summary: all well."}], {}, "compaction"),
                ([{**SYSTEM, "content": "Find a title."}, dated], {}, "sub_agent"),
                ([SYSTEM, dated], {"tools": TOOLS}, "sub_agent"),
                # The same question once more: the exact tokens, answered anew.
                ([SYSTEM, dated, first, more], {}, "branch"),
                ([SYSTEM, dated, first, {**more, "content": "else"}], {}, "branch"),
                (
                    [SYSTEM, dated, {**first, "content": "No."}, more, second, more],
                    {},
                    "edited",
                ),
                # And the first row still goes on.
                ([SYSTEM, dated, first, more, second, more], {}, None),
            ]
            expected: dict[str, int] = {}
            for messages, options, reason in steps:
                await setting.chat(messages, **options)
                if reason is not None:
                    expected[reason] = expected.get(reason, 0) + 1
                assert setting.reasons() == expected
            assert len(setting.trajectory.rows) == 1 + sum(expected.values())
            check_rows(setting, engine, [0, 1, 10, *range(2, 10)])
            prompts = [list(request.prompt_token_ids) for request in engine.requests]
            assert prompts[7] == prompts[1]
            generated = sum(sum(row.generated_mask) for row in setting.trajectory.rows)
            assert generated == 11 * (len(thoughts[0]) + 1)

    run(body)


def test_H05_budgets_refuse_and_end_the_episode() -> None:
    async def body() -> None:
        budgets = replace(BUDGETS, max_turns=2, max_refused_calls=10)
        async with served(["x" * 900] * 9, context_tokens=1000, budgets=budgets) as (
            setting,
            engine,
        ):
            long = [{"role": "user", "content": "y" * 600}]
            first = (await setting.chat(long, max_tokens=2048))["_"]["choices"][0]
            room = 1000 - len(engine.requests[0].prompt_token_ids)
            assert engine.requests[0].sampling.max_tokens == min(500, room) == room
            assert first["finish_reason"] == "length"
            too_long = {"messages": [{"role": "user", "content": "y" * 1000}]}
            status, answer = await setting.post("chat/completions", too_long)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert setting.episode.limit is FinishReason.CONTEXT_LIMIT
            assert not setting.episode.over.is_set()
            await setting.chat([USER], max_completion_tokens=7)
            assert engine.requests[-1].sampling.max_tokens == 7
            assert setting.episode.limit is None
            status, answer = await setting.post("chat/completions", {"messages": [USER]})
            assert (status, answer["error"]["code"]) == (400, "turn_limit")
            assert setting.episode.limit is FinishReason.TURN_LIMIT
            assert setting.episode.over.is_set()
            assert setting.episode.session.report.num_refused_calls == 2

    run(body)


def test_evaluation_passes_the_clients_sampling() -> None:
    async def body() -> None:
        async with served(["a", "b"], is_training=False) as (setting, engine):
            await setting.chat([USER], temperature=0.6, top_p=0.95, top_k=20)
            await setting.chat([SYSTEM, USER])
            one, two = (request.sampling for request in engine.requests)
            assert (one.temperature, one.top_p, one.top_k) == (0.6, 0.95, 20)
            assert (two.temperature, two.top_p, two.top_k) == (1.0, 1.0, 0)

    run(body)


class SlowEngine(ScriptedEngine):
    """Answers after a while, and knows how often it was told to stop."""

    num_ended = 0
    wait_s = 30.0

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        try:
            await asyncio.sleep(self.wait_s)
        except asyncio.CancelledError:
            self.num_ended += 1
            raise
        return await super().generate(requests)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_generation(stream: bool) -> None:
    async def body() -> None:
        async with served(["late"], engine_class=SlowEngine) as (setting, engine):
            assert isinstance(engine, SlowEngine)
            waiting = asyncio.create_task(
                setting.post("chat/completions", {"messages": [USER], "stream": stream})
            )
            await asyncio.sleep(0.3)
            waiting.cancel()
            await asyncio.wait([waiting])
            for _ in range(100):
                if engine.num_ended:
                    break
                await asyncio.sleep(0.02)
            assert engine.num_ended == 1
            engine.wait_s = 0.0
            assert (await setting.chat([USER]))["content"] == "late"
            assert len(setting.trajectory.turns) == 1
            check_rows(setting, engine, [0])

    run(body)


def test_calls_at_the_same_time_are_answered_one_after_the_other() -> None:
    async def body() -> None:
        async with served([str(n) for n in range(8)]) as (setting, engine):
            questions = [[{"role": "user", "content": f"q{n}"}] for n in range(8)]
            answers = await asyncio.gather(*(setting.chat(question) for question in questions))
            assert sorted(answer["content"] for answer in answers) == [str(n) for n in range(8)]
            assert len(setting.trajectory.rows) == len(engine.requests) == 8

    run(body)


def test_skills_are_put_below_the_system_message() -> None:
    skill = InjectedSkill(pair_id=1, revision=0, text="Look twice.")

    async def body() -> None:
        async with served(["a", "b", "c"], skills=(skill,)) as (setting, engine):
            reply = said(await setting.chat([SYSTEM, USER]))
            await setting.chat([SYSTEM, USER, reply, USER])
            await setting.chat([USER])
            decode = setting.episode.session.renderer._tokenizer.decode
            shown = [decode(list(request.prompt_token_ids)) for request in engine.requests]
            assert shown[0].startswith("<|system|>Act.\nSkills:\n- Look twice.<|end|>")
            assert shown[1].count("Look twice.") == 1
            assert shown[2].startswith("<|system|>Skills:\n- Look twice.<|end|>")
            assert len(setting.trajectory.rows) == 2

    run(body)


def test_skills_that_leave_no_room_are_a_mistake_of_the_configuration() -> None:
    skill = InjectedSkill(pair_id=1, revision=0, text="x" * 500)

    async def body() -> None:
        async with served(["a"], skills=(skill,), context_tokens=300) as (setting, _):
            status, _ = await setting.post("chat/completions", {"messages": [USER]})
            assert status == 500
            assert isinstance(setting.episode.error, ConfigError)
            assert setting.episode.over.is_set()

    run(body)


def test_a_stop_text_cuts_text_and_tokens_alike() -> None:
    async def body() -> None:
        async with served(["one\nSTOP two", "next"]) as (setting, engine):
            reply = await setting.chat([USER], stop=["STOP"])
            assert (reply["content"], reply["_"]["choices"][0]["finish_reason"]) == ("one", "stop")
            assert len(setting.trajectory.turns[0].token_ids) == len("one\nSTOP")
            await setting.chat([USER, said(reply), USER])
            assert len(setting.trajectory.rows) == 1
            check_rows(setting, engine, [0, 1])

    run(body)


def test_completions_of_text_and_of_token_ids_extend_rows() -> None:
    async def body() -> None:
        async with served(["one", "two", "three", "four"]) as (setting, engine):
            client = setting.client.completions
            first = await client.create(model="m", prompt="<|user|>Hi<|end|>", logprobs=0)
            text = "<|user|>Hi<|end|>" + first.choices[0].text
            assert text.endswith("one")
            assert set(first.choices[0].logprobs.token_logprobs) == {-1.0}
            await client.create(model="m", prompt=text + "<|end|><|user|>More")
            assert len(setting.trajectory.rows) == 1
            ids = [*engine.requests[-1].prompt_token_ids, *setting.trajectory.turns[-1].token_ids]
            await client.create(model="m", prompt=[*ids, 5, 6])
            assert len(setting.trajectory.rows) == 1
            await client.create(model="m", prompt=[5, 6])
            assert setting.reasons() == {"edited": 1}
            check_rows(setting, engine, [0, 1, 2, 3])
            assert (
                engine.requests[0].prompt_token_ids[-1]
                in setting.episode.session.renderer.stop_token_ids
            )

    run(body)


def test_messages_in_the_other_dialect() -> None:
    reply = "<think>why</think>So." + call("bash", '{"command": "ls"}')

    async def body() -> None:
        async with served([reply, "Done."]) as (setting, engine):
            tools = [{"name": "bash", "description": "", "input_schema": {"type": "object"}}]
            request = {
                "model": "m",
                "max_tokens": 300,
                "system": [{"type": "text", "text": "Act."}],
                "tools": tools,
                "messages": [{"role": "user", "content": "Go."}],
            }
            _, first = await setting.post("messages", request)
            assert first["stop_reason"] == "tool_use"
            thinking, text, use = first["content"]
            assert (thinking["thinking"], text["text"]) == ("why", "So.")
            assert use["input"] == {"command": "ls"}
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": "a.txt"}
            request["messages"] += [
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [result]},
            ]
            _, events = await setting.post("messages", {**request, "stream": True})
            names = [line[7:] for line in events.splitlines() if line.startswith("event: ")]
            assert names == [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
            assert '"text": "Done."' in events
            assert len(setting.trajectory.rows) == 1
            check_rows(setting, engine, [0, 1])
            assert engine.requests[0].sampling.max_tokens == 300
            status, answer = await setting.post("messages", {"messages": []})
            assert (status, answer["type"]) == (400, "error")

    run(body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"messages": []}, "at least one"),
        ({"messages": [{"role": "robot", "content": ""}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
        ({"messages": [USER], "n": 2}, "n must be 1"),
        ({"messages": [USER], "max_tokens": 0}, "1 or more"),
        ({"messages": [USER], "temperature": -1}, "temperature"),
        ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [USER], "stop": 1}, "stop"),
        ([1], "JSON object"),
    ],
)
def test_a_malformed_call_is_explained_and_leaves_no_trace(body: Any, problem: str) -> None:
    async def go() -> None:
        async with served(["a"]) as (setting, engine):
            status, answer = await setting.post("chat/completions", body)
            assert status == 400
            assert problem in answer["error"]["message"]
            assert engine.requests == []

    run(go)


def test_keys_belong_to_open_episodes() -> None:
    async def body() -> None:
        async with served(["a"]) as (setting, engine):
            for key in ("", "guess", setting.key[:-1]):
                status, _ = await setting.post("chat/completions", {"messages": [USER]}, key=key)
                assert status == 401
            models = await setting.client.models.list()
            assert [model.id for model in models.data] == ["policy"]
            assert models.data[0].max_model_len == 20_000
            other = ProxiedEpisode(setting.episode.session, BUDGETS)
            with setting.proxy.serving(other) as key:
                pass
            status, _ = await setting.post("chat/completions", {"messages": [USER]}, key=key)
            assert status == 401
            assert engine.requests == []
            assert len(setting.key) >= 43

    run(body)


def test_an_engine_that_fails_ends_the_episode_as_lost() -> None:
    async def body() -> None:
        async with served([]) as (setting, _):  # a script without a line
            status, answer = await setting.post("chat/completions", {"messages": [USER]})
            assert (status, answer["error"]["code"]) == (500, "engine_error")
            assert isinstance(setting.episode.error, InferenceError)
            status, _ = await setting.post("chat/completions", {"messages": [USER], "stream": True})
            assert status == 403

    run(body)


def test_the_socket_serves_what_the_port_does() -> None:
    async def body() -> None:
        async with served(["a"]) as (setting, _):
            assert setting.proxy.folder is not None
            folder = setting.proxy.folder
            connector = aiohttp.UnixConnector(path=str(folder / "model.sock"))
            headers = {"x-api-key": setting.key}
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.post(
                    "http://model/v1/chat/completions", json={"messages": [USER]}, headers=headers
                ) as response,
            ):
                assert response.status == 200
        assert not folder.exists()

    run(body)
