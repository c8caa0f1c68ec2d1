"""The policy on vLLM: one server of our own, or any number that are running somewhere."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
from transformers import PreTrainedModel

from arise.errors import AriseError, ConfigError, InferenceError
from arise.inference.base import (
    Completion,
    Engine,
    GenerationRequest,
    WeightReport,
    prompt_problem,
)
from arise.inference.slot_support import check_model
from arise.inference.vllm.checks import Wanted, check_server, check_servers
from arise.inference.vllm.client import ServerClient
from arise.inference.vllm.pool import Patience, ServerLostError, ServerPool
from arise.inference.vllm.server import ServerOptions, VLLMServer
from arise.inference.vllm.sync import WeightSync, make_sync
from arise.inference.vllm.updates import WeightUpdates
from arise.inference.vllm.wire import check_sampling, to_body, to_completion
from arise.inference.vllm.worker import CONFIG_KEYS, plain

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SYNCS = ("auto", "disk", "nccl", "ipc")


class VLLMEngine(Engine):
    """Plays the policy on vLLM servers: token ids in, token ids and log-probabilities out.

    Without `urls` it starts a server as a child of this process, which ends with it, however that
    dies. Requests go to the servers one by one as they come; vLLM batches them. Two runs therefore
    never batch alike: tokens repeat by their seeds, log-probabilities only to rounding.

    Args:
        model: Builds a model of the policy's architecture; only its configuration is used.
        max_context_tokens: Prompt and answer together never exceed it.
        log_path: Log of a server of our own.
        urls: Running servers; a trajectory stays on one of them.
        num_servers: How many of them there must be; `None` is as many as are named.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`: of the servers' weights and cache.
        sync: How weights get there: see `make_sync`.
        sync_dir: Folder for `disk`; servers on other machines must share it.
        devices: CUDA devices of a server of our own; `None` is all.
        kv_cache_gib: Memory of its key-value cache; `None` leaves it to vLLM.
        enforce_eager: Whether it skips compiling.
        args: Further arguments of vLLM's command line for it.
        start_timeout_s: Limit on its start, in seconds.
        request_timeout_s: Limit on one call, in seconds.
        health_interval_s: How often every server is looked at, in seconds.
        dead_after_s: A server that gives no answer for so long is dead, in seconds.
        max_outage_s: How long requests wait while there is no server, in seconds.
        max_restarts: How often a server of our own that died is started again.
        api_key_env: Environment variable with the servers' key; `None` sends none.

    Raises:
        ConfigError: A value is out of range (keys `engine.*`).
    """

    is_concurrent = True

    def __init__(
        self,
        *,
        model: Callable[[], PreTrainedModel],
        max_context_tokens: int,
        log_path: Path,
        urls: Sequence[str],
        num_servers: int | None,
        dtype: str,
        sync: str,
        sync_dir: str | None,
        devices: Sequence[int] | None,
        kv_cache_gib: float | None,
        enforce_eager: bool,
        args: Sequence[str],
        start_timeout_s: float,
        request_timeout_s: float,
        health_interval_s: float,
        dead_after_s: float,
        max_outage_s: float,
        max_restarts: int,
        api_key_env: str | None,
    ) -> None:
        _refuse(dtype, sync, max_context_tokens, urls, num_servers)
        self.max_context_tokens = max_context_tokens
        self._build = model
        self._log_path = log_path
        self._urls = list(urls)
        self._dtype = dtype
        self._sync_kind, self._sync_dir = sync, sync_dir
        self._devices = tuple(devices) if devices is not None else None
        self._server_options: dict[str, Any] = {
            "kv_cache_gib": kv_cache_gib,
            "enforce_eager": enforce_eager,
            "args": tuple(args),
            "start_timeout_s": start_timeout_s,
        }
        self._request_timeout_s = request_timeout_s
        self._patience = Patience(
            health_interval_s=health_interval_s,
            dead_after_s=dead_after_s,
            max_outage_s=max_outage_s,
        )
        self._max_restarts, self._num_restarts = max_restarts, 0
        self._api_key = os.environ.get(api_key_env) if api_key_env else None
        self._vocabulary = 0
        self._http: aiohttp.ClientSession | None = None
        self._server: VLLMServer | None = None
        self._sync: WeightSync | None = None
        self._pool: ServerPool | None = None
        self._updates: WeightUpdates | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What the servers hold weights in; fingerprints to compare with must be made in it."""
        return _DTYPES[self._dtype]

    @property
    def urls(self) -> list[str]:
        """The servers in use; empty before `start`."""
        return [client.url for client in self._pool.alive] if self._pool else []

    @property
    def found(self) -> list[tuple[str, str]]:
        """Address and facts of every server in use, for people."""
        return [(client.url, client.facts) for client in (self._pool.alive if self._pool else ())]

    def require_alive(self) -> None:
        """Make sure that requests can be answered, now or soon.

        Raises:
            InferenceError: The last server was lost for good, or for longer than is waited.
        """
        if self._pool is not None:
            self._pool.require_alive()

    async def start(self) -> None:
        """Start or find the servers and check that they can play the policy; safe to repeat.

        Raises:
            ConfigError: A server cannot be reached, lacks an endpoint, plays another model, or has
                a shorter context or another type; or vLLM refused to start.
            InferenceError: A server of our own was not up in time.
        """
        if self._pool is not None:
            return
        with torch.device("meta"):
            skeleton = self._build()
        check_model(skeleton, self.max_context_tokens)
        config = skeleton.config
        self._vocabulary = config.get_text_config().vocab_size
        try:
            await self._connect(config)
        except BaseException:
            await self.stop()
            raise

    async def _connect(self, config: Any) -> None:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._sync = make_sync(
            self._sync_kind, sync_dir=self._sync_dir, has_own_devices=self._devices is not None
        )
        transfer = self._sync.backend
        wanted = Wanted(
            config={
                key: plain(getattr(config.get_text_config(), key, None)) for key in CONFIG_KEYS
            },
            dtype=self._dtype,
            max_context_tokens=self.max_context_tokens,
            transfer=transfer,
            sync_dir=self._sync.folder,
        )
        urls = self._urls or [await self._start_server(config, transfer)]
        clients = [self._client(url) for url in urls]
        await check_servers(clients, wanted)

        async def welcome(client: ServerClient) -> None:
            await check_server(client, wanted)
            assert self._updates is not None
            await self._updates.welcome(client)

        async def revive(client: ServerClient) -> None:
            await self._restart(config)

        self._pool = ServerPool(
            clients,
            patience=self._patience,
            welcome=welcome,
            revive=None if self._urls else revive,
        )
        self._updates = WeightUpdates(self._pool, self._sync, self.dtype)
        self._pool.start()

    async def _start_server(self, config: Any, transfer: str | None) -> str:
        options = ServerOptions(
            dtype=self._dtype,
            max_context_tokens=self.max_context_tokens,
            devices=self._devices,
            transfer=transfer,
            **self._server_options,
        )
        self._server = VLLMServer(options, log_path=self._log_path)
        return await self._server.start(config, self._is_up)

    async def _is_up(self, url: str) -> bool:
        return await self._client(url).is_healthy(timeout_s=self._patience.dead_after_s)

    async def _restart(self, config: Any) -> None:
        """Bring a server of our own that died up again, if it is worth while.

        Raises:
            ServerLostError: It died too often, or could not be given the weights that it lost.
        """
        assert self._server is not None
        assert self._sync is not None
        died = f"the vLLM server of this run died {self._num_restarts + 1} times"
        if not self._sync.can_repeat:
            raise ServerLostError(
                f"the vLLM server of this run died, and engine.sync = {self._sync.backend} gives "
                f"weights only once; go on with ckpt_path=last. {self._server.explain()}"
            )
        if self._num_restarts >= self._max_restarts:
            raise ServerLostError(
                f"{died} (engine.max_restarts = {self._max_restarts}). {self._server.explain()}"
            )
        self._num_restarts += 1
        logger.warning("starting the vLLM server again, for the %d. time", self._num_restarts)
        await self._server.stop()
        try:
            await self._server.start(config, self._is_up)
        except AriseError as error:
            raise ServerLostError(f"{died} and does not start again: {error}") from error

    def _client(self, url: str) -> ServerClient:
        assert self._http is not None
        return ServerClient(
            url,
            http=self._http,
            request_timeout_s=self._request_timeout_s,
            api_key=self._api_key,
        )

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[Completion | InferenceError]:
        """Answer all requests at the same time; one that cannot be answered gives its error.

        Raises:
            ConfigError: Sampling parameters are out of range.
        """
        for request in requests:
            check_sampling(request.sampling)
        return list(await asyncio.gather(*map(self._answer, requests)))

    async def _answer(self, request: GenerationRequest) -> Completion | InferenceError:
        try:
            if self._pool is None:
                raise InferenceError("the engine is not running: call start() first")
            prompt = request.prompt_token_ids
            problem = prompt_problem(
                prompt, context=self.max_context_tokens, vocabulary=self._vocabulary
            )
            if problem:
                raise InferenceError(f"{problem} (session {request.session})")
            limit = min(request.sampling.max_tokens, self.max_context_tokens - len(prompt))
            payload = await self._pool.generate(request.session, to_body(request, limit=limit))
            return to_completion(payload, request, limit=limit)
        except InferenceError as error:
            return error

    async def release(self, session: tuple[int, int]) -> None:
        """Forget where a finished trajectory was played."""
        if self._pool is not None:
            self._pool.release(session)

    async def load_weights(self, weights: Mapping[str, Any], *, version: int) -> WeightReport:
        """Bring all servers to a version and report what they then hold.

        Raises:
            WeightSyncError: The tensors do not fit the servers' model one for one, servers differ,
                or the transport failed.
            InferenceError: The engine is not running, or no server is left.
        """
        if self._updates is None:
            raise InferenceError("the engine is not running: call start() first")
        return await self._updates.push(weights, version=version)

    async def rest(self) -> None:
        """Let a server on the trainer's device sleep until the next weights."""
        if self._updates is not None:
            await self._updates.rest()

    async def stop(self) -> None:
        """End a server of our own and leave others alone; safe to repeat."""
        pool, self._pool = self._pool, None
        sync, self._sync = self._sync, None
        server, self._server = self._server, None
        http, self._http = self._http, None
        self._updates = None
        if pool is not None:
            await pool.close()
        if sync is not None:
            await asyncio.to_thread(sync.close)
        if server is not None:
            await server.stop()
        if http is not None:
            await http.close()


def _refuse(
    dtype: str, sync: str, max_context_tokens: int, urls: Sequence[str], num_servers: int | None
) -> None:
    """Settings that cannot be."""
    if dtype not in _DTYPES:
        raise ConfigError(f"engine.dtype must be one of {sorted(_DTYPES)}, got {dtype!r}")
    if sync not in _SYNCS:
        raise ConfigError(f"engine.sync must be one of {', '.join(_SYNCS)}, got {sync!r}")
    if max_context_tokens < 1:
        raise ConfigError(f"engine.max_context_tokens must be >= 1, got {max_context_tokens}")
    if sync == "ipc" and urls:
        raise ConfigError(
            "engine.sync = ipc shares one device with a server of our own; with engine.urls "
            "use nccl or disk"
        )
    # Without addresses one is started.
    if num_servers is not None and len(urls or [""]) < num_servers:
        raise ConfigError(
            f"engine.num_servers = {num_servers}, but engine.urls names {len(urls)}: "
            f"{', '.join(urls) or 'none'}"
        )
