"""The recording proxy: an OpenAI-compatible endpoint that plays and records the policy.

Any agent program that speaks to such an endpoint can be trained. A call belongs to a trajectory by
its API key, which nobody can guess; it is answered by the run's own engine, token ids in and token
ids out, on the run's event loop. It listens on a socket file, which a sandbox without a network
can be given, and on a port of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from arise.agents import anthropic_calls, chat_calls
from arise.agents.chat_calls import ChatAnswer, ChatCall, RefusedCall
from arise.agents.endpoint import ForwardedEpisode
from arise.agents.proxied import ProxiedEpisode

log = logging.getLogger(__name__)

MODEL_NAME = "policy"
SOCKET_NAME = "model.sock"
_MAX_BODY_BYTES = 64 << 20
# Before this an error still gets its status; after it a stream is kept alive by comments.
_STREAM_AFTER_S = 5.0
# Connections that may wait to be taken: with too few, a burst of agents waits a second each.
_BACKLOG = 4096

Episode = ProxiedEpisode | ForwardedEpisode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """How one kind of request is read and answered."""

    read: Callable[[Mapping[str, Any]], ChatCall]
    whole: Callable[..., dict[str, Any]]
    chunks: Callable[..., Iterable[tuple[str, Mapping[str, Any]] | Mapping[str, Any]]]
    error: Callable[[RefusedCall], dict[str, Any]]
    ends_with_done: bool


def _openai_error(error: RefusedCall) -> dict[str, Any]:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "code": error.code, "param": None}}


_CHAT = _Route(
    read=chat_calls.read_chat,
    whole=chat_calls.chat_body,
    chunks=chat_calls.chat_chunks,
    error=_openai_error,
    ends_with_done=True,
)
_COMPLETION = _Route(
    read=chat_calls.read_completion,
    whole=chat_calls.completion_body,
    chunks=chat_calls.completion_chunks,
    error=_openai_error,
    ends_with_done=True,
)
_MESSAGES = _Route(
    read=anthropic_calls.read_messages,
    whole=anthropic_calls.message_body,
    chunks=anthropic_calls.message_events,
    error=anthropic_calls.error_body,
    ends_with_done=False,
)


class RecordingProxy:
    """Serves `/v1/chat/completions`, `/v1/completions`, `/v1/messages` and `/v1/models`.

    Attributes:
        folder: Folder of the socket file, once started.
        port: Port on 127.0.0.1, once started.

    Example:
        >>> proxy = RecordingProxy()
        >>> await proxy.start()
        >>> with proxy.serving(episode) as key:
        ...     await client.post(f"http://127.0.0.1:{proxy.port}/v1/models", api_key=key)
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.port = 0
        self._episodes: dict[str, Episode] = {}
        self._runner: web.AppRunner | None = None
        self._start_lock = asyncio.Lock()

    async def start(self) -> None:
        """Listen; safe to call by every episode."""
        async with self._start_lock:
            if self._runner is not None:
                return
            app = web.Application(client_max_size=_MAX_BODY_BYTES)
            app.add_routes(
                [
                    web.post("/v1/chat/completions", self._handler(_CHAT)),
                    web.post("/v1/completions", self._handler(_COMPLETION)),
                    web.post("/v1/messages", self._handler(_MESSAGES)),
                    web.get("/v1/models", self._models),
                    web.get("/v1/models/{name}", self._models),
                ]
            )
            # A client that goes away cancels its handler, and so its generation.
            runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
            await runner.setup()
            folder = Path(tempfile.mkdtemp(prefix="arise-proxy-"))
            # The user of a sandbox has to reach the socket; what protects it are the keys.
            folder.chmod(0o755)
            socket = folder / SOCKET_NAME
            await web.UnixSite(runner, str(socket), backlog=_BACKLOG).start()
            os.chmod(socket, 0o666)
            site = web.TCPSite(runner, "127.0.0.1", 0, backlog=_BACKLOG)
            await site.start()
            self.port = runner.addresses[1][1]
            self.folder, self._runner = folder, runner

    async def stop(self) -> None:
        """Stop listening and remove the socket; safe to call more than once."""
        runner, self._runner = self._runner, None
        folder, self.folder = self.folder, None
        if runner is not None:
            await runner.cleanup()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def serving(self, episode: Episode) -> Any:
        """Answer the calls of one episode while the context is open; its API key.

        Afterwards the key is worth nothing, and calls that still wait are refused.
        """
        key = secrets.token_urlsafe(32)
        self._episodes[key] = episode
        try:
            yield key
        finally:
            del self._episodes[key]
            episode.over.set()

    def _episode(self, request: web.Request) -> Episode:
        key = request.headers.get("x-api-key") or ""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            key = token.strip()
        episode = self._episodes.get(key)
        if episode is None:
            raise RefusedCall("the API key belongs to no episode", status=401, code="invalid_key")
        return episode

    async def _models(self, request: web.Request) -> web.Response:
        try:
            episode = self._episode(request)
        except RefusedCall as error:
            return web.json_response(_openai_error(error), status=error.status)
        model = {
            "id": MODEL_NAME,
            "object": "model",
            "owned_by": "arise",
            "max_model_len": episode.session.context_tokens,
        }
        one = "name" in request.match_info
        return web.json_response(model if one else {"object": "list", "data": [model]})

    def _handler(self, route: _Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                episode = self._episode(request)
                body = await _body(request)
                call = route.read(body)
                if body.get("stream"):
                    return await self._stream(request, route, episode, call, body)
                answer = await episode.answer(call)
            except RefusedCall as error:
                return web.json_response(route.error(error), status=error.status)
            name = str(body.get("model") or MODEL_NAME)
            return web.json_response(route.whole(answer, model=name, body=body))

        return handle

    async def _stream(
        self,
        request: web.Request,
        route: _Route,
        episode: Episode,
        call: ChatCall,
        body: Mapping[str, Any],
    ) -> web.StreamResponse:
        """The answer as server-sent events. The engine answers at once, so the text comes last."""
        task = asyncio.ensure_future(episode.answer(call))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        try:
            done, _ = await asyncio.wait([task], timeout=_STREAM_AFTER_S)
            if done:
                task.result()  # a refusal is raised while it can still have its status
            await response.prepare(request)
            while not (await asyncio.wait([task], timeout=_STREAM_AFTER_S))[0]:
                await response.write(b": waiting\n\n")
            await response.write(_events(route, task, body))
            await response.write_eof()
        finally:
            task.cancel()
        return response


def _events(route: _Route, task: asyncio.Future[ChatAnswer], body: Mapping[str, Any]) -> bytes:
    """All events of an answer, or of the error that came too late for a status."""
    error = task.exception()
    if isinstance(error, RefusedCall):
        events: Iterable[Any] = [route.error(error)]
    elif error is not None:
        raise error
    else:
        name = str(body.get("model") or MODEL_NAME)
        events = route.chunks(task.result(), model=name, body=body)
    lines = []
    for event in events:
        name, data = event if isinstance(event, tuple) else ("", event)
        head = f"event: {name}\n" if name else ""
        lines.append(f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n")
    if route.ends_with_done:
        lines.append("data: [DONE]\n\n")
    return "".join(lines).encode("utf-8", errors="replace")


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except web.HTTPException:
        raise
    except ValueError:
        raise RefusedCall("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise RefusedCall("the body must be a JSON object")
    return body
