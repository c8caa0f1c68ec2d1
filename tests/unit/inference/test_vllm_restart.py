"""A server of our own that dies is started again, so often and no more: real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from arise.errors import InferenceError
from arise.inference.base import Completion
from unit.inference.test_vllm_servers import engine_of, facts, request, run, until, weights

TESTS = Path(__file__).parents[2]


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Process ids of the servers so far; a stand-in for vLLM is started."""
    file = tmp_path / "starts"
    paths = (TESTS / "stub_vllm_package", TESTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    monkeypatch.setenv("STUB_FACTS", json.dumps(facts()))
    monkeypatch.setenv("STUB_STARTS", str(file))
    return lambda: [int(line) for line in file.read_text().split()]


def test_a_server_that_dies_is_restarted_with_the_current_weights_and_not_for_ever(
    starts: Callable[[], list[int]], tmp_path: Path
) -> None:
    log = tmp_path / "vllm.log"
    engine = engine_of(urls=[], log_path=log, max_outage_s=60.0, max_restarts=1)

    async def work() -> list[Any]:
        await engine.load_weights(weights(1), version=5)
        os.kill(starts()[0], signal.SIGKILL)
        (answer,) = await engine.generate([request(0)])
        assert isinstance(answer, Completion)
        assert answer.policy_versions == (5, 5)
        engine.require_alive()
        os.kill(starts()[1], signal.SIGKILL)
        await until(lambda: not engine.urls)
        answers = await engine.generate([request(0), request(1)])
        with pytest.raises(InferenceError, match=r"died 2 times \(engine\.max_restarts = 1\)"):
            engine.require_alive()
        return answers

    answers = run(engine, work)
    assert all(isinstance(answer, InferenceError) for answer in answers)
    assert "the stub is starting" in str(answers[0])
    assert len(starts()) == log.read_text().count("the stub is starting") == 2
    assert not any(psutil.pid_exists(pid) for pid in starts())
