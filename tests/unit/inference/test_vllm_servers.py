"""Several servers over real HTTP: checks at start-up, placement, loss and return, weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from arise.errors import ConfigError, InferenceError, WeightSyncError
from arise.inference.base import Completion, GenerationRequest, SamplingParams
from arise.inference.vllm.engine import VLLMEngine
from arise.inference.vllm.worker import CONFIG_KEYS, plain
from arise.inference.weights import fingerprints, verify
from stub_vllm import StubServer

CONTEXT = 64
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def facts(**changes: Any) -> dict[str, Any]:
    config = LlamaConfig(**SIZES)
    return {
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "logprobs_mode": "processed_logprobs",
        "quantization": None,
        "mla": False,
        "cpu_chunks": False,
        "speculative": False,
        "transfer": None,
        "sleep_mode": False,
        "world_size": 1,
        "config": {key: plain(getattr(config, key, None)) for key in CONFIG_KEYS},
        **changes,
    }


@pytest.fixture
def stub() -> Iterator[Callable[..., StubServer]]:
    started: list[StubServer] = []

    def start(**changes: Any) -> StubServer:
        started.append(StubServer(facts(**changes)))
        return started[-1]

    yield start
    for server in started:
        server.close()


def engine_of(*servers: StubServer, **changes: Any) -> VLLMEngine:
    options: dict[str, Any] = {
        "model": model,
        "max_context_tokens": CONTEXT,
        "log_path": Path("unused.log"),
        "urls": [server.url for server in servers],
        "num_servers": None,
        "dtype": "float32",
        "sync": "disk",
        "sync_dir": None,
        "devices": None,
        "kv_cache_gib": None,
        "enforce_eager": True,
        "args": [],
        "start_timeout_s": 30.0,
        "request_timeout_s": 30.0,
        "health_interval_s": 0.1,
        "dead_after_s": 60.0,
        "max_outage_s": 0.3,
        "max_restarts": 2,
        "api_key_env": None,
    }
    return VLLMEngine(**{**options, **changes})


def run(engine: VLLMEngine, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def whole() -> Any:
        await engine.start()
        try:
            return await work()
        finally:
            await engine.stop()

    return asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another thread decides
            await asyncio.sleep(0.02)


def request(rollout: int, task: int = 0, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        session=(task, rollout),
        prompt_token_ids=(3, 4, 5 + rollout),
        sampling=SamplingParams(**{"max_tokens": 2, **sampling}),
    )


def weights(seed: int) -> Mapping[str, torch.Tensor]:
    torch.manual_seed(seed)
    return model().state_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": 32}, r"context of 32 tokens, shorter than rollout\.context_tokens = 64"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"dtype": "bfloat16"}, r"holds bfloat16, but engine\.dtype = float32"),
        ({"quantization": "fp8"}, "quantization fp8"),
        ({"speculative": True}, "speculative"),
        ({"cpu_chunks": True}, "--no-enable-chunked-prefill"),
        ({"config": {"vocab_size": 99}}, "another model than model.loader"),
        ({"faults": ["no_extension"]}, "--worker-extension-cls arise.inference.vllm.worker"),
        *(
            (
                {"faults": [f"without {path}"]},
                rf"lacks what training needs \(\S+{path} answered 404",
            )
            for path in (
                *("/inference/v1/generate", "/collective_rpc", "/weight_info", "/pause"),
                *("/resume", "/reset_prefix_cache", "/update_weight_version"),
            )
        ),
        ({"faults": ["blind"]}, r"engine\.sync_dir: .* does not see"),
    ],
)
def test_a_server_that_cannot_play_the_policy_is_named_at_start(
    stub: Callable[..., StubServer], changes: dict[str, Any], message: str
) -> None:
    server = stub(**changes)
    with pytest.raises(ConfigError, match=message) as error:
        run(engine_of(server), lambda: asyncio.sleep(0))
    assert server.url in str(error.value)


def test_all_servers_that_cannot_be_used_are_in_one_error(stub: Callable[..., StubServer]) -> None:
    short, good, other = stub(max_model_len=32), stub(), stub(dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"^engine\.urls: 2 of 3 cannot be used:") as error:
        run(engine_of(short, good, other), lambda: asyncio.sleep(0))
    lines = str(error.value).splitlines()[1:]
    assert [line.split()[0] for line in lines] == [short.url, other.url]
    assert "context of 32 tokens" in lines[0]
    assert "holds bfloat16" in lines[1]


def test_fewer_servers_than_asked_for_are_refused(stub: Callable[..., StubServer]) -> None:
    with pytest.raises(ConfigError, match=r"num_servers = 2, but engine\.urls names 1: http"):
        engine_of(stub(), num_servers=2)


def test_a_server_that_hangs_is_noticed_and_its_episodes_move_on(
    stub: Callable[..., StubServer],
) -> None:
    """Long before a request's own time limit, which is 30 s here."""
    first, second = stub(delay_s=60.0), stub()
    engine = engine_of(first, second, dead_after_s=0.5)

    async def work() -> None:
        await engine.load_weights(weights(1), version=7)
        asked = asyncio.create_task(engine.generate([request(r) for r in range(4)]))
        await until(lambda: first.calls.count("generate") == 2)
        assert first.state is not None
        first.state.faults.add("silent")
        async with asyncio.timeout(10):
            assert all(isinstance(answer, Completion) for answer in await asked)
        assert engine.urls == [second.url]
        first.state.faults.discard("silent")
        await until(lambda: first.url in engine.urls)

    run(engine, work)


def test_a_cancelled_request_is_cancelled(stub: Callable[..., StubServer]) -> None:
    server = stub(delay_s=60.0)
    engine = engine_of(server)

    async def work() -> None:
        asked = asyncio.create_task(engine.generate([request(0)]))
        await until(lambda: server.calls.count("generate") == 1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert engine.urls == [server.url]

    run(engine, work)


def test_requests_wait_for_a_server_to_come_back(stub: Callable[..., StubServer]) -> None:
    server = stub()
    engine = engine_of(server, max_outage_s=30.0)

    async def work() -> Completion:
        await engine.load_weights(weights(1), version=4)
        await asyncio.to_thread(server.kill)
        asked = asyncio.create_task(engine.generate([request(0)]))
        await until(lambda: not engine.urls)
        await asyncio.sleep(0.3)
        assert not asked.done()
        engine.require_alive()
        await asyncio.to_thread(server.start)
        (answer,) = await asked
        return answer

    assert run(engine, work).policy_versions == (4, 4)


def test_nothing_behind_an_address_is_one_clear_error() -> None:
    engine = engine_of(urls=["http://127.0.0.1:9"])
    with pytest.raises(ConfigError, match=r"engine\.urls: no vLLM server answers"):
        asyncio.run(engine.start())


def test_sessions_stay_on_their_server_and_load_is_even(stub: Callable[..., StubServer]) -> None:
    first, second = stub(), stub()
    engine = engine_of(first, second)

    async def work() -> list[str]:
        pool = engine._pool
        assert pool is not None
        places = []
        for _ in range(3):
            await engine.generate([request(rollout) for rollout in range(6)])
            places.append([pool.place((0, rollout)).url for rollout in range(6)])
        assert places[0] == places[1] == places[2]
        for rollout in range(6):
            await engine.release((0, rollout))
        assert not pool._place
        assert set(pool._load.values()) == {0}
        return places[0]

    places = run(engine, work)
    assert places.count(first.url) == places.count(second.url) == 3
    assert first.calls.count("generate") == second.calls.count("generate") == 9


def test_a_dead_servers_episodes_move_on_and_its_return_is_noticed(
    stub: Callable[..., StubServer], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = stub(delay_s=60.0), stub()
    engine = engine_of(first, second)

    async def work() -> None:
        await engine.load_weights(weights(1), version=7)
        asked = asyncio.create_task(engine.generate([request(r) for r in range(4)]))
        await until(lambda: first.calls.count("generate") == 2)
        await asyncio.to_thread(first.kill)
        # Those in flight on the dead server are asked again on the other one.
        assert all(isinstance(answer, Completion) for answer in await asked)
        assert engine.urls == [second.url]
        first.facts["delay_s"] = 0.0
        await asyncio.to_thread(first.start)
        await until(lambda: first.url in engine.urls)
        # It came back without weights and was given them before its first request.
        answers = await engine.generate([request(rollout, task=1) for rollout in range(4)])
        assert [a.policy_versions for a in answers] == [(7, 7)] * 4

    run(engine, work)
    calls = first.calls
    assert calls.count("generate") >= 1
    assert calls.index("arise_load") < calls.index("generate")
    assert f"the vLLM server {first.url} is back" in caplog.text


def test_without_any_server_a_request_fails_and_says_why(stub: Callable[..., StubServer]) -> None:
    server = stub()
    engine = engine_of(server)

    async def work() -> list[Any]:
        await asyncio.to_thread(server.kill)
        answers = await engine.generate([request(0), request(1)])
        with pytest.raises(InferenceError, match=r"none came back in time \(engine\.max_outage_s"):
            engine.require_alive()
        return answers

    answers = run(engine, work)
    assert all(isinstance(answer, InferenceError) for answer in answers)
    assert "no vLLM server is left" in str(answers[0])


def test_T14_an_answer_that_does_not_align_fails_alone(stub: Callable[..., StubServer]) -> None:
    engine = engine_of(stub(faults=["short"]), stub())
    answers = run(engine, lambda: engine.generate([request(rollout) for rollout in range(4)]))
    kinds = [type(answer) for answer in answers]
    assert kinds == [InferenceError, Completion] * 2
    assert "2 token ids and 1 log-probabilities" in str(answers[0])


def test_W02_W07_a_push_pauses_forgets_keys_stamps_and_keeps_requests(
    stub: Callable[..., StubServer],
) -> None:
    server = stub()
    engine = engine_of(server)

    async def work() -> Completion:
        (before,) = await engine.generate([request(0)])
        assert before.policy_versions == (-1, -1)
        # In flight while weights change: it is kept, not refused and not answered before.
        assert server.state is not None
        server.state.resumed.clear()
        asked = asyncio.create_task(engine.generate([request(1)]))
        await until(lambda: server.calls.count("generate") == 2)
        report = await engine.load_weights(weights(1), version=3)
        verify(fingerprints(weights(1)), report, version=3)
        return (await asked)[0]

    assert run(engine, work).policy_versions == (3, 3)
    calls = [call for call in server.calls if call != "generate"]
    order = ["pause?mode=keep", "arise_load", "arise_finish"]
    order += ["reset_prefix_cache?reset_running_requests=true", "arise_report", "resume"]
    assert [call for call in calls if call in order] == order


@pytest.mark.parametrize(
    ("fault", "message"),
    [("stale", "down_proj.weight"), ("ahead", "workers are at version"), ("extra", "is not given")],
)
def test_W04_a_server_that_does_not_take_everything_stops_the_run(
    stub: Callable[..., StubServer], fault: str, message: str
) -> None:
    engine = engine_of(stub(faults=[fault]))

    async def work() -> None:
        for version in (1, 2):
            sent = weights(version)
            report = await engine.load_weights(sent, version=version)
            verify(fingerprints(sent), report, version=version)

    with pytest.raises(WeightSyncError, match=message):
        run(engine, work)


def test_servers_that_differ_stop_the_run(stub: Callable[..., StubServer]) -> None:
    engine = engine_of(stub(), stub(faults=["stale"]))

    async def work() -> None:
        await engine.load_weights(weights(1), version=1)
        await engine.load_weights(weights(2), version=2)

    with pytest.raises(WeightSyncError, match="holds other weights than"):
        run(engine, work)


def test_a_full_folder_for_weights_is_named(
    stub: Callable[..., StubServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(stub(), sync_dir=str(tmp_path))
    monkeypatch.setattr("arise.inference.vllm.sync._HEADROOM", 1e12)
    with pytest.raises(WeightSyncError, match=r"set engine\.sync_dir to a folder with room"):
        run(engine, lambda: engine.load_weights(weights(1), version=1))
    assert list(tmp_path.iterdir()) == []


def test_weights_on_their_way_are_removed_and_so_are_a_killed_runs(
    stub: Callable[..., StubServer], tmp_path: Path
) -> None:
    gone = tmp_path / "arise-weights-999999999-x"
    gone.mkdir()
    engine = engine_of(stub(), sync_dir=str(tmp_path))

    async def work() -> list[str]:
        await engine.load_weights(weights(1), version=1)
        await engine.load_weights(weights(2), version=2)
        return [file.name for file in tmp_path.rglob("*") if file.is_file()]

    assert run(engine, work) == ["model-00000.safetensors"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int8"}, "engine.dtype must be one of"),
        ({"sync": "carrier"}, "engine.sync must be one of"),
        ({"sync": "ipc", "urls": ["http://a"]}, "engine.sync = ipc"),
        ({"max_context_tokens": 0}, "engine.max_context_tokens must be >= 1"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_of(**changes)


def test_a_missing_folder_for_weights_is_named(stub: Callable[..., StubServer]) -> None:
    engine = engine_of(stub(), sync_dir="/no/such/folder")
    with pytest.raises(ConfigError, match=r"engine\.sync_dir: folder '/no/such/folder'"):
        asyncio.run(engine.start())
