"""Fixtures of tests with real parts."""

from collections.abc import Iterator
from typing import Any

import pytest

from integration.sandboxes import need_docker
from vllm_session import vllm_url  # noqa: F401 - a fixture of the whole session


@pytest.fixture
def api() -> Iterator[Any]:
    need_docker()
    import docker

    client = docker.from_env()
    yield client.api
    client.close()
