"""A server that speaks vLLM's endpoints and answers at once.

It holds the tensors it is given, so versions, checksums and their differences are real; what it
generates is not: each reply repeats the prompt's last token. It is given the facts that
`arise_describe` reports, and `faults` that make it misbehave; `python tests/stub_vllm.py PORT JSON`
runs it in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from arise.aio import EventLoopThread


class StubState:
    """What the server knows and was asked."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.faults = set(facts.pop("faults", ()))
        self.delay_s = float(facts.pop("delay_s", 0.0))
        self.facts = facts
        self.calls: list[str] = []
        self.sessions = 0
        self.stamp = "default"
        self.version = -1
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.tensors: dict[str, Any] = {}
        self.dtypes: dict[str, Any] = {}

    def rpc(self, method: str, arguments: list[str]) -> dict[str, Any]:
        return getattr(self, f"_{method.removeprefix('arise_')}")(*arguments)

    def _describe(self) -> dict[str, Any]:
        return {**self.facts, "version": self.version}

    def _sees(self, path: str) -> dict[str, Any]:
        return {"sees": Path(path).exists() and "blind" not in self.faults}

    def _learn(self, tensors: str) -> dict[str, Any]:
        names = [name for name, _, _ in json.loads(tensors)]
        unused = [name for name in names if name == "lm_head.weight"]
        uncovered = ["model.extra.weight"] if "extra" in self.faults else []
        return {
            "unused": unused,
            "uncovered": uncovered,
            "num_tensors": len(names) - len(unused),
            "num_parameters": len(names) - len(unused),
        }

    def _load(self, folder: str) -> dict[str, Any]:
        from arise.inference.vllm.worker import read_folder

        pairs = dict(read_folder(Path(folder)))
        skipped = (
            {"model.layers.0.mlp.down_proj.weight"}
            if "stale" in self.faults and self.tensors
            else set()
        )
        self.tensors |= {name: t for name, t in pairs.items() if name not in skipped}
        return {"num_tensors": len(pairs)}

    def _finish(self, version: str) -> dict[str, Any]:
        self.version = int(version) + ("ahead" in self.faults)
        return {"version": self.version}

    def _report(self) -> dict[str, Any]:
        from arise.inference.weights import fingerprint

        shares = {n: [["0", t.numel(), *fingerprint(t)]] for n, t in self.tensors.items()}
        return {"version": self.version, "shares": shares, "derived": {}}


def make_app(state: StubState) -> web.Application:
    routes = web.RouteTableDef()

    @routes.get("/health")
    async def health(_: web.Request) -> web.Response:
        return web.Response()

    @routes.get("/v1/models")
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    @routes.get("/weight_info")
    async def weight_info(_: web.Request) -> web.Response:
        return web.json_response({"weight_version": state.stamp})

    @routes.get("/calls")
    async def calls(_: web.Request) -> web.Response:
        return web.json_response({"calls": state.calls})

    @routes.post("/collective_rpc")
    async def collective_rpc(request: web.Request) -> web.Response:
        body = await request.json()
        state.calls.append(body["method"])
        if "no_extension" in state.faults:
            text = f"'Worker' object has no attribute '{body['method']}'"
            return web.json_response({"error": text}, status=500)
        return web.json_response({"results": [state.rpc(body["method"], body["args"])]})

    @routes.post("/{name:init_weight_transfer_engine|(start|finish)_weight_update|update_weights}")
    async def transfer(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        state.calls.append(f"{request.match_info['name']} {json.dumps(body, sort_keys=True)}")
        return web.json_response({})

    @routes.post("/update_weight_version")
    async def update_weight_version(request: web.Request) -> web.Response:
        state.stamp = (await request.json())["new_version"]
        return web.json_response({})

    @routes.post("/{name:pause|resume|reset_prefix_cache|sleep|wake_up}")
    async def control(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        state.calls.append(f"{name}?{request.query_string}".rstrip("?"))
        (state.resumed.clear if name == "pause" else lambda: None)()
        (state.resumed.set if name == "resume" else lambda: None)()
        return web.json_response({})

    @routes.post("/inference/v1/generate")
    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        state.calls.append("generate")
        await asyncio.sleep(state.delay_s)
        await state.resumed.wait()
        count = body["sampling_params"]["max_tokens"]
        token_ids = [body["token_ids"][-1]] * count
        content = [{"token_id": token_id, "logprob": -0.5} for token_id in token_ids]
        if "short" in state.faults:
            content = content[:-1]
        choice = {
            "index": 0,
            "finish_reason": "length",
            "token_ids": token_ids,
            "weight_versions": [{"version": state.stamp, "start": 0, "end": count}],
            "logprobs": {"content": content},
        }
        return web.json_response({"choices": [choice]})

    @web.middleware
    async def missing(request: web.Request, handler: Any) -> web.StreamResponse:
        if "silent" in state.faults:
            await asyncio.sleep(3600)
        if f"without {request.path}" in state.faults:
            raise web.HTTPNotFound
        return await handler(request)

    app = web.Application(middlewares=[missing])
    app.add_routes(routes)
    return app


class StubServer:
    """Runs the stub on a loop of its own; `kill` and `start` again use the same port."""

    def __init__(self, facts: dict[str, Any]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.facts = facts
        self.state: StubState | None = None
        self._runner: web.AppRunner | None = None
        self._loop = EventLoopThread()
        self.start()

    @property
    def calls(self) -> list[str]:
        """What was asked since the last start."""
        assert self.state is not None
        return self.state.calls

    def start(self) -> None:
        self._loop.run(self._start())

    async def _start(self) -> None:
        self.state = StubState(dict(self.facts))
        self._runner = web.AppRunner(make_app(self.state), access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    def kill(self) -> None:
        """Close every connection, whatever is in flight."""
        if self._runner is not None:
            self._loop.run(self._stop(self._runner))
            self._runner = None

    async def _stop(self, runner: web.AppRunner) -> None:
        assert runner.server is not None
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    def close(self) -> None:
        self.kill()
        self._loop.close()


if __name__ == "__main__":
    web.run_app(
        make_app(StubState(json.loads(sys.argv[2]))),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        print=None,
        access_log=None,
    )
