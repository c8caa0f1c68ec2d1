"""A vLLM server of our own that does not come up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from arise.errors import ConfigError, InferenceError
from arise.inference.vllm.server import VLLMServer
from engines import LOADER, server_options

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


async def never(url: str) -> bool:
    return False


def listeners(port: str) -> list[str]:
    """Command lines of the processes that were told to serve a port."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().decode(errors="replace").split("\0")
            if "--port" in words and port in words:
                lines.append(" ".join(words))
    return lines


def test_a_server_that_refuses_to_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    server = VLLMServer(server_options("--no-such-option"), log_path=tmp_path / "vllm.log")
    with pytest.raises(ConfigError, match="the vLLM server did not start") as error:
        asyncio.run(server.start(LOADER.model().config, never))
    assert "unrecognized arguments: --no-such-option" in str(error.value)
    assert str(tmp_path / "vllm.log") in str(error.value)
    asyncio.run(server.stop())


def test_a_server_that_is_not_up_in_time_is_ended(tmp_path: Path) -> None:
    server = VLLMServer(
        server_options(start_timeout_s=1.0), log_path=tmp_path / "logs" / "vllm.log"
    )
    started = time.monotonic()
    with pytest.raises(InferenceError, match=r"not up after \d+ s \(engine\.start_timeout_s = 1\)"):
        asyncio.run(server.start(LOADER.model().config, never))
    assert time.monotonic() - started < 60
    assert listeners(server.url.rpartition(":")[2]) == []
