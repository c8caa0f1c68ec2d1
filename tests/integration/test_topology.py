"""Two trainer ranks and two vLLM servers, one of which is killed in the middle: the run goes on."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from arise.inference.vllm.client import ServerClient
from arise.inference.vllm.server import VLLMServer
from arise.runs.folder import checkpoint_step, complete_checkpoints
from engines import LOADER, server_options
from integration.test_two_processes import rendezvous_port
from runs import kill_group, only_run, scalars, start_training, trajectories

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

_TIMEOUT_S = 900


@pytest.fixture
def second(vllm_url: str, tmp_path: Path) -> Iterator[VLLMServer]:
    """A server beside the session's."""
    server = VLLMServer(server_options(), log_path=tmp_path / "second.log")

    async def healthy(url: str) -> bool:
        async with aiohttp.ClientSession() as http:
            client = ServerClient(url, http=http, request_timeout_s=5.0)
            return await client.is_healthy(timeout_s=5.0)

    asyncio.run(server.start(LOADER.model().config, healthy))
    yield server
    asyncio.run(server.stop())


def kill(server: VLLMServer) -> None:
    """As a machine that loses power: everything at once."""
    assert server._guard is not None
    for process in psutil.Process(server._guard.pid).children(recursive=True):
        process.kill()


def wait_for_trajectories(process: subprocess.Popen[str], output: Path, count: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while len(list(output.glob("arise/*/trajectories/step_*"))) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_dies_costs_nothing_but_its_share_of_the_work(
    vllm_url: str, second: VLLMServer, tmp_path: Path
) -> None:
    process = start_training(
        "experiment=arise",
        "engine=vllm",
        f"engine.urls=[{vllm_url},{second.url}]",
        "engine.num_servers=2",
        "engine.health_interval_s=1",
        "trainer.devices=2",
        "trainer.max_steps=3",
        "evaluation=none",
        "rollout.tasks_per_step=2",
        "rollout.rollouts_per_task=4",
        "rubrics.update_interval=1",
        f"paths.output_dir={tmp_path}",
        env={"STANDALONE_PORT": str(rendezvous_port())},
    )
    try:
        wait_for_trajectories(process, tmp_path, 1)
        kill(second)
        said, _ = process.communicate(timeout=_TIMEOUT_S)
    finally:
        if process.poll() is None:
            kill_group(process)
    assert process.returncode == 0, said
    assert "lost a vLLM server" in said
    for row in ("rank 0", "rank 1", f"vLLM server  {vllm_url}", f"vLLM server  {second.url}"):
        assert row in said
    run = only_run(tmp_path, "arise")
    assert max(map(checkpoint_step, complete_checkpoints(run))) == 3
    played = trajectories(run)
    assert [len(slots) for slots in played.values()] == [8, 8, 8]
    versions = [
        {v for slot in slots for turn in slot["turns"] for v in turn["policy_versions"]}
        for slots in played.values()
    ]
    assert versions == [{0}, {1}, {2}]
    assert max(value for _, value in scalars(run)["ratio/max"]) < 1.001
