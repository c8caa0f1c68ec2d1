"""A run that loses every server ends with a checkpoint of its last step and one sentence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arise import app
from arise.errors import InferenceError
from arise.inference.vllm.worker import CONFIG_KEYS, plain
from arise.modules.loading import RandomModel
from arise.runs.folder import checkpoint_step, complete_checkpoints
from runs import TINY, compose_config, only_run
from stub_vllm import StubServer

pytestmark = pytest.mark.slow


def server_facts(cfg: Any) -> dict[str, Any]:
    """What a server reports that plays this run's random model."""
    options = {str(key): value for key, value in cfg.model.loader.items() if key != "_target_"}
    config = RandomModel(**options).empty_model().config
    return {
        "dtype": "float32",
        "max_model_len": cfg.rollout.context_tokens,
        "logprobs_mode": "processed_logprobs",
        "quantization": None,
        "mla": False,
        "cpu_chunks": False,
        "speculative": False,
        "transfer": None,
        "sleep_mode": False,
        "world_size": 1,
        "config": {key: plain(getattr(config, key, None)) for key in CONFIG_KEYS},
    }


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[StubServer]]:
    facts = server_facts(compose_config(*TINY, "model=random_tiny"))
    started = [StubServer(facts), StubServer(facts)]
    yield started
    for server in started:
        server.close()


def test_without_servers_a_run_ends_with_a_checkpoint_between_two_steps(
    servers: list[StubServer], tmp_path: Path
) -> None:
    """It saves although no checkpoint is due; one server fewer it survives."""
    urls = ",".join(server.url for server in servers)
    cfg = compose_config(
        *TINY,
        "model=random_tiny",
        "engine=vllm",
        f"engine.urls=[{urls}]",
        "engine.num_servers=2",
        "engine.health_interval_s=0.2",
        "engine.max_outage_s=0.5",
        "algorithm.max_initial_ratio_error=null",
        "callbacks.checkpoint.every_steps=1000",
        "trainer.max_steps=1000",
        "quiet=true",
        f"paths.output_dir={tmp_path}",
    )

    def kill() -> None:
        for number, server in enumerate(servers):
            while len(list(tmp_path.glob("*/*/trajectories/*"))) < 2 + 2 * number:
                time.sleep(0.02)
            server.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        InferenceError, match=r"no vLLM server is left.*engine\.max_outage_s = 0\.5"
    ):
        app.train(cfg)
    killer.join()
    run = only_run(tmp_path)
    (checkpoint,) = complete_checkpoints(run)
    played = sorted((run / "trajectories").glob("*"))
    assert checkpoint_step(checkpoint) == len(played) >= 4
