"""`evaluate.py` from the command line's point of view: composed, played, gone on with, reported."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from arise.config import register_schemas
from arise.errors import ConfigError
from arise.evaluate import evaluate
from runs import ROOT, TASKS


def composed(*overrides: str) -> DictConfig:
    register_schemas()
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
        return compose(config_name="evaluate", overrides=["quiet=true", *overrides])


def local(tmp_path: Path, *overrides: str) -> DictConfig:
    """The five hand-written tasks with a model of random weights."""
    return composed(
        "benchmark=shellworld",
        f"benchmark.path={TASKS}",
        "benchmark.attempts=2",
        "model=random_tiny",
        "harness=shell",
        "harness.action_format=raw",
        "harness.max_turns=1",
        "harness.max_output_tokens=4",
        f"paths.output_dir={tmp_path}",
        *overrides,
    )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A model that solves count-errors and fails the rest; one question in two thinks."""
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        bodies.append(body)
        asked = body["messages"][1]["content"]
        if "sort" in asked.lower():
            return web.json_response({"error": {"message": "no"}}, status=401)
        solve = (TASKS / "count-errors" / "solution" / "solve.sh").read_text()
        reply = solve.splitlines()[-1] if len(body["messages"]) == 2 else "submit"
        message = {"role": "assistant", "content": reply, "reasoning_content": "hm"}
        return web.json_response(
            {
                "choices": [{"message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 50, "completion_tokens": 5},
            }
        )

    loop = asyncio.new_event_loop()
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", bodies
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_a_local_model_is_evaluated_and_an_evaluation_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = evaluate(local(tmp_path))
    assert (report.rate.num_tasks, len(report.rate.runs_percent)) == (5, 2)
    assert report.errors == {}
    folder = tmp_path / "evaluations" / "shellworld" / "random_tiny-ShellAgent"
    assert "| random_tiny (ShellAgent) | 0.0 | 0.0 | 0.0 ± 0.0 |" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {
        "attempts.csv",
        "attempts.jsonl",
        "report.json",
        "report.md",
        "settings.json",
        "trajectories",
    }
    assert len(list((folder / "trajectories").iterdir())) == 10
    lines = (folder / "attempts.jsonl").read_text().splitlines(keepends=True)
    (folder / "attempts.jsonl").write_text("".join(lines[:7]) + lines[7][:9])
    again = evaluate(local(tmp_path))
    assert again.rate == report.rate
    kept = (folder / "attempts.jsonl").read_text().splitlines(keepends=True)
    assert (kept[:7], len(kept)) == (lines[:7], 10)
    with pytest.raises(ConfigError, match="benchmark = "):
        evaluate(local(tmp_path, "benchmark.temperature=0.5"))


def test_an_endpoint_is_evaluated(
    tmp_path: Path, endpoint: tuple[str, list[dict[str, Any]]]
) -> None:
    url, bodies = endpoint
    report = evaluate(
        composed(
            "benchmark=shellworld",
            f"benchmark.path={TASKS}",
            "benchmark.attempts=2",
            "benchmark.temperature=0.6",
            "benchmark.top_p=0.95",
            "benchmark.top_k=20",
            "model=endpoint",
            "model.model=big",
            f"model.base_url={url}",
            "+model.extra_body.reasoning_effort=high",
            "context_tokens=1000",
            "harness=shell",
            "harness.action_format=raw",
            f"paths.output_dir={tmp_path}",
        )
    )
    assert report.rate.percent == 20.0
    assert report.rate.run_std == 0.0
    assert report.errors == {"inference": 2}
    assert report.without_errors == 25.0
    assert report.totals["completion_tokens"] == 8 * 2 * 5
    body = bodies[0]
    assert body["model"] == "big"
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.6, 0.95, 20)
    assert body["reasoning_effort"] == "high"
    assert "Skills" not in body["messages"][0]["content"]
    documents = (
        tmp_path / "evaluations" / "shellworld" / "big-ShellAgent" / "trajectories"
    ).iterdir()
    steps = json.loads(next(documents).read_text())["steps"]
    assert steps[1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("benchmark=skillsbench",), "benchmark.path is not given"),
        (("benchmark=terminal_bench", "benchmark.path=/nowhere"), "benchmark.path: '/nowhere'"),
        (("benchmark=shellworld", "benchmark.attempts=0"), "benchmark.attempts = 0"),
        (("benchmark=shellworld", "+attempt=1"), "attempt is not a configuration key"),
        (
            (
                "benchmark=shellworld",
                "model=endpoint",
                "model.model=m",
                "model.base_url=http://127.0.0.1:9/v1",
            ),
            "context_tokens: an endpoint",
        ),
        (("benchmark=shellworld", "checkpoint=/nowhere"), "checkpoint: '/nowhere'"),
    ],
)
def test_a_mistake_is_one_clear_sentence(overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", "\\(")):
        evaluate(composed(*overrides))


def test_the_papers_settings() -> None:
    cfg = composed("benchmark=skillsbench", "benchmark.path=x", "harness=kilo")
    bench = cfg.benchmark
    assert (bench.attempts, bench.temperature, bench.top_p, bench.top_k) == (3, 0.6, 0.95, 20)
    assert bench.agent_timeout_s == 10_000
    assert bench.harness == {"max_output_tokens": 32_768}
