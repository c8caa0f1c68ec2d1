"""A local OpenAI-compatible server that judges and reflects in a fixed way, over real HTTP."""

from __future__ import annotations

import json
import re
import sys
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_CRITERION_ID = re.compile(r'^\{"id": ?(\d+)', re.MULTILINE)


def answer(system: str, user: str) -> str:
    """What a model would answer to one of the method's prompts."""
    findings = [
        {"kind": "gap", "behaviour": "does not look at the files first", "signal": "step 1"},
        {"kind": "strategy", "behaviour": "keeps commands short", "signal": "step 1"},
    ]
    diagnostics = json.dumps({"diagnostics": findings})
    if "Criteria that need a verdict" in user:
        block = user.split("Criteria that need a verdict", 1)[1].split("```")[1]
        verdicts = [
            json.dumps({"id": int(pair_id), "reason": "step 1 shows it", "verdict": "fail"})
            for pair_id in _CRITERION_ID.findall(block)
        ]
        return "\n".join([*verdicts, diagnostics])
    if '"pairs"' in system:
        pair = {
            "title": "Look before acting",
            "capability": "understanding",
            "applicability": "any task with files",
            "fail_condition": "the first command changes something",
            "pass_condition": "the first command looks at files",
            "skill": "Look at the files before you change anything.",
            "issue_records": [1],
            "contrast_records": [2],
        }
        return json.dumps({"pairs": [pair]})
    if '{"skill"' in system:
        return json.dumps({"skill": "List the folder with ls before any other command."})
    return diagnostics


def varied_answer(system: str, user: str) -> str:
    """Like `answer`, but verdicts and pairs differ with what is asked, so that the pool lives.

    Of three pairs one nearly always fails, one passes half of the time and one nearly always.
    """

    def number(text: str) -> int:
        return zlib.crc32((user + text).encode())

    if "Criteria that need a verdict" in user:
        lines = []
        for line in answer(system, user).split("\n")[:-1]:
            verdict = json.loads(line)
            percent = number(str(verdict["id"])) % 100
            pass_percent = (5, 50, 95)[verdict["id"] % 3]
            verdict["verdict"] = "pass" if percent < pass_percent else "fail"
            lines.append(json.dumps(verdict))
        return "\n".join([*lines, answer(system, user).split("\n")[-1]])
    if '"pairs"' in system:
        pair = json.loads(answer(system, user))["pairs"][0]
        capabilities = ("understanding", "execution", "verification", "debugging", "efficiency")
        pairs = [
            {**pair, "title": f"Look {number(k)}", "capability": capabilities[number(k) % 5]}
            for k in "ab"
        ]
        return json.dumps({"pairs": pairs})
    if '{"skill"' in system:
        return json.dumps({"skill": f"List the folder with ls, variant {number('')}."})
    return answer(system, user)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error; anything else is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class StubJudge:
    """The server; use as a context manager. Remembers each request's headers and body.

    Args:
        reply: Answer to system and user message.
        port: Where to listen; 0 takes a free one.
    """

    def __init__(self, reply: Callable[[str, str], str] = answer, *, port: int = 0) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send({"object": "list", "data": [{"id": "stub", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                stub.requests.append((headers, body))
                system, user = (message["content"] for message in body["messages"])
                message = {"role": "assistant", "content": reply(system, user)}
                self._send(
                    {
                        "id": "1",
                        "object": "chat.completion",
                        "created": 0,
                        "model": "stub",
                        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
                    }
                )

            def _send(self, content: dict[str, Any]) -> None:
                data = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                """Tests stay quiet."""

        self._server = _Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> StubJudge:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
