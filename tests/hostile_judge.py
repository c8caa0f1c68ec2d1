"""A local OpenAI-compatible server that plays every fault, and knows what it said."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from typing import Any

from stub_judge import answer

_ID = re.compile(r'^\{"id": ?(\d+)', re.MULTILINE)
_TRANSPORT = ("429", "429", "429", "500", "503", "529", "drip", "cut", "html", "429", "no choices")
_CONTENT = (
    "plain",
    "null",
    "refusal",
    "contradiction",
    "fenced",
    "wrong ids",
    "half",
    "empty",
    "thinking",
    "cut text",
    "agreeing duplicates",
)


class HostileJudge:
    """The server; use as a context manager.

    Every second call has a fault of transport; the others are answered with status 200 and, in
    turn, with content of every kind. After `dies_after` calls nothing but 503 comes.

    Args:
        dies_after: Calls that are answered at all; `None` for all.

    Attributes:
        calls: Calls by purpose: `verdicts`, `analysis`, `generation`, `refinement`.
        said: Verdicts that were delivered and can mean only one thing, by outcome.
        faults: How often each fault was played.
    """

    def __init__(self, dies_after: int | None = None) -> None:
        self.calls: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._dies_after = dies_after
        self._transport = cycle(_TRANSPORT)
        self._content = cycle(_CONTENT)
        self._outcomes = cycle(("pass", "fail", "not_applicable", "fail"))
        self._lock = threading.Lock()
        judge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(200, {"object": "list", "data": []})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                system, user = (message["content"] for message in body["messages"])
                try:
                    judge.play(self, system, user)
                except OSError:
                    self.close_connection = True

            def _send(
                self,
                status: int,
                content: Any,
                *,
                headers: dict[str, str] | None = None,
                pause_s: float = 0.0,
                keep: float = 1.0,
            ) -> None:
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                data = data[: int(len(data) * keep)]
                step = 4 if pause_s else len(data) or 1
                for start in range(0, len(data), step):
                    self.wfile.write(data[start : start + step])
                    self.wfile.flush()
                    time.sleep(pause_s)
                self.close_connection = keep < 1.0

            def log_message(self, *args: object) -> None:
                """Tests stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> HostileJudge:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def play(self, handler: Any, system: str, user: str) -> None:
        """One call: a fault of transport, or an answer of some kind."""
        with self._lock:
            self.calls[_purpose(system, user)] += 1
            number = self.calls.total()
            is_dead = self._dies_after is not None and number > self._dies_after
            fault = "dead" if is_dead else next(self._transport if number % 2 else self._content)
            self.faults[fault] += 1
            text, said = self._reply(fault, system, user)
        if fault == "dead" or fault.isdecimal():
            status = 503 if fault == "dead" else int(fault)
            headers = {"Retry-After": "0.02"} if status == 429 else {}
            handler._send(status, {"error": {"message": fault}}, headers=headers)
            return
        if fault == "html":
            handler._send(200, b"<html>Bad gateway</html>")
            return
        body = _completion(None if fault == "null" else text)
        if fault == "no choices":
            body["choices"] = []
        if fault == "drip":
            handler._send(200, body, pause_s=0.1)
            return
        handler._send(200, body, keep=0.5 if fault == "cut" else 1.0)
        with self._lock:
            self.said.update(said)

    def _reply(self, fault: str, system: str, user: str) -> tuple[str, Counter[str]]:
        """The answer's text, and the verdicts in it that mean one thing."""
        if _purpose(system, user) != "verdicts":
            return (
                "I am not sure." if fault in ("refusal", "empty") else answer(system, user)
            ), Counter()
        block = user.split("Criteria that need a verdict", 1)[1].split("```")[1]
        chosen = {int(pair_id): next(self._outcomes) for pair_id in _ID.findall(block)}
        lines = [_line(pair_id, outcome) for pair_id, outcome in chosen.items()]
        findings = answer(system, user).split("\n")[-1]
        other = {"pass": "fail", "fail": "pass", "not_applicable": "fail"}
        opposite = [_line(pair_id, other[outcome]) for pair_id, outcome in chosen.items()]
        said = Counter(chosen.values())
        if fault in ("refusal", "empty", "null", "no choices", "cut", "drip", "html"):
            return ("" if fault == "empty" else "I cannot evaluate this transcript."), Counter()
        if fault == "contradiction":
            return "\n".join([*lines, *opposite, findings]), Counter()
        if fault == "agreeing duplicates":
            return "\n".join([*lines, *lines, findings]), said
        if fault == "fenced":
            return f"Sure, here it is:\n```jsonl\n{chr(10).join(lines)}\n```\n{findings}", said
        if fault == "thinking":
            return "\n".join(["<think>", *opposite, "</think>", *lines, findings]), said
        if fault == "wrong ids":
            return "\n".join([_line(900 + n, "fail") for n in range(3)] + [findings]), Counter()
        if fault == "half":
            first = next(iter(chosen))
            broken = [line.replace('"reason"', 'reason"') for line in lines[1:]]
            return "\n".join([lines[0], *broken, findings]), Counter([chosen[first]])
        if fault == "cut text":
            kept = list(chosen.values())[:-1]
            return "\n".join(lines)[:-6], Counter(kept)
        return "\n".join([*lines, findings]), said


def _purpose(system: str, user: str) -> str:
    if "Criteria that need a verdict" in user:
        return "verdicts"
    if '"pairs"' in system:
        return "generation"
    return "refinement" if '{"skill"' in system else "analysis"


def _line(pair_id: int, outcome: str) -> str:
    return json.dumps({"id": pair_id, "reason": "because", "verdict": outcome})


def _completion(content: str | None) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "hostile",
        "choices": [
            {
                "index": 0,
                "finish_reason": "length" if content is None else "stop",
                "message": {"role": "assistant", "content": content},
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
