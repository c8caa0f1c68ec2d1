"""The chat client against a real HTTP server that plays an endpoint's faults."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from arise.aio import EventLoopThread
from arise.errors import ConfigError, JudgeError
from arise.llm.chat import ChatRequest, ChatResponse, Purpose
from arise.llm.openai_client import OpenAIChatModel, retry_after_s

KEY = "sk-test-123"
REQUEST = ChatRequest(
    purpose=Purpose.RUBRIC_EVALUATION, messages=({"role": "user", "content": "judge this"},)
)


class Endpoint:
    """A server; `play(number)` gives (status, headers, body) for each chat call, from 1."""

    def __init__(self, play: Callable[[int], tuple[int, dict, Any]]) -> None:
        self.play = play
        self.models_status = 200
        self.calls: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.authorization: list[str | None] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                endpoint.authorization.append(self.headers.get("Authorization"))
                status = endpoint.models_status
                error = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
                self.answer(status, {}, {"data": []} if status == 200 else error)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with endpoint.lock:
                    endpoint.calls.append(json.loads(body))
                    endpoint.times.append(time.monotonic())
                    number = len(endpoint.calls)
                    endpoint.in_flight += 1
                    endpoint.most_in_flight = max(endpoint.most_in_flight, endpoint.in_flight)
                try:
                    status, headers, answer = endpoint.play(number)
                finally:
                    with endpoint.lock:
                        endpoint.in_flight -= 1
                self.answer(status, headers, answer)

            def answer(self, status: int, headers: dict, body: Any) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                headers = {"Content-Length": str(len(data)), **headers}
                drip_s = headers.pop("drip", None)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for start in range(0, len(data), 1 if drip_s else len(data) or 1):
                        self.wfile.write(data[start : start + (1 if drip_s else len(data))])
                        self.wfile.flush()
                        time.sleep(drip_s or 0)
                except OSError:
                    pass
                if int(headers["Content-Length"]) != len(data):
                    self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def endpoint(play: Callable[[int], tuple[int, dict, Any]]) -> Iterator[Endpoint]:
    server = Endpoint(play)
    try:
        yield server
    finally:
        server.close()


def chat(content: Any, **message: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": content, **message},
    }
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def good(number: int) -> tuple[int, dict, Any]:
    return 200, {}, chat(f"answer {number}")


def model_for(url: str, **options: Any) -> OpenAIChatModel:
    values: dict[str, Any] = {
        "model": "m",
        "base_url": url,
        "api_key_env": "ARISE_TEST_KEY",
        "temperature": 0.0,
        "max_tokens": 512,
        "timeout_s": 5.0,
        "max_tries": 4,
        "max_concurrency": 8,
        "backoff_s": 0.01,
        "max_wait_s": 1.0,
    }
    return OpenAIChatModel(**{**values, **options})


def ask(url: str, request: ChatRequest = REQUEST, **options: Any) -> ChatResponse:
    async def run() -> ChatResponse:
        model = model_for(url, **options)
        try:
            return await model.complete(request)
        finally:
            await model.stop()

    return asyncio.run(run())


def start(url: str, **options: Any) -> None:
    async def run() -> None:
        model = model_for(url, **options)
        try:
            await model.start()
        finally:
            await model.stop()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARISE_TEST_KEY", KEY)


def test_answer_tokens_and_request() -> None:
    with endpoint(good) as server:
        response = ask(server.url, response_format="json_object")
        assert (response.text, response.prompt_tokens, response.completion_tokens) == (
            "answer 1",
            11,
            7,
        )
        assert server.calls == [
            {
                "model": "m",
                "messages": [{"role": "user", "content": "judge this"}],
                "temperature": 0.0,
                "max_tokens": 512,
                "response_format": {"type": "json_object"},
            }
        ]


def test_J08_calls_equal_the_configured_maximum_and_wait_as_told() -> None:
    with endpoint(lambda n: (429, {"Retry-After": "0.15"}, {"error": "slow down"})) as server:
        with pytest.raises(JudgeError, match=r"no answer from m after 4 of 4 tries: RateLimit"):
            ask(server.url)
        assert len(server.calls) == 4
        gaps = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
        assert all(gap >= 0.15 for gap in gaps)


def test_a_wait_that_is_too_long_ends_the_request_early() -> None:
    with endpoint(lambda n: (429, {"Retry-After": "3600"}, {})) as server:
        with pytest.raises(JudgeError, match="after 1 of 4 tries"):
            ask(server.url)
        assert len(server.calls) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_passing_faults_are_tried_again(status: int) -> None:
    def play(number: int) -> tuple[int, dict, Any]:
        return (status, {}, {"error": "x"}) if number < 3 else good(number)

    with endpoint(play) as server:
        response = ask(server.url)
        assert (response.text, response.meta["num_tries"]) == ("answer 3", 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_lasting_faults_are_not(status: int) -> None:
    with endpoint(lambda n: (status, {}, {"error": {"message": f"no {KEY}"}})) as server:
        with pytest.raises(JudgeError, match="m refuses") as caught:
            ask(server.url)
        assert len(server.calls) == 1
        assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        chat(None),
        chat(None, refusal="I will not"),
        chat(""),
        chat([{"type": "text", "text": "x"}]),
        {**chat("x"), "choices": []},
        {**chat("x"), "choices": None},
        {**chat("x"), "choices": [{"index": 0, "finish_reason": "length"}]},
        {"object": "nothing"},
        [],
    ],
)
def test_J07_an_answer_without_content_is_an_error_after_one_call(body: Any) -> None:
    with endpoint(lambda n: (200, {}, body)) as server:
        with pytest.raises(JudgeError, match=r"no content|no choices"):
            ask(server.url)
        assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Length": "4000"}, b'{"id": "x", "choi'),
        ({}, b'{"id": "x", "choi'),
        ({"drip": 0.05}, chat("x" * 200)),
    ],
    ids=["cut stream", "broken json", "slow drip"],
)
def test_broken_and_slow_answers_are_tried_again_within_the_time(headers: dict, body: Any) -> None:
    def play(number: int) -> tuple[int, dict, Any]:
        return (200, dict(headers), body) if number == 1 else good(number)

    with endpoint(play) as server:
        started = time.monotonic()
        assert ask(server.url, timeout_s=0.5).text == "answer 2"
        assert time.monotonic() - started < 3.0


def test_X07_lone_surrogates_go_out_and_come_back_as_replacement() -> None:
    request = ChatRequest(
        purpose=Purpose.GENERATION,
        messages=({"role": "user", "content": "out: \udcff\udcfehi"},),
        max_tokens=9,
    )
    body = json.dumps(chat("back: ~")).replace("~", "\\ud83d").encode()
    with endpoint(lambda n: (200, {}, body)) as server:
        assert ask(server.url, request).text == "back: \ufffd"
        assert server.calls[0]["messages"][0]["content"] == "out: \ufffd\ufffdhi"
        assert server.calls[0]["max_tokens"] == 9


def test_a_refused_response_format_is_given_up_for_good() -> None:
    def play(number: int) -> tuple[int, dict, Any]:
        if number == 1:
            return 400, {}, {"error": {"message": "response_format is not supported"}}
        return good(number)

    async def run(url: str) -> list[str]:
        model = model_for(url, response_format="json_object")
        texts = [(await model.complete(REQUEST)).text for _ in range(2)]
        await model.stop()
        return texts

    with endpoint(play) as server:
        assert asyncio.run(run(server.url)) == ["answer 2", "answer 3"]
        assert ["response_format" in call for call in server.calls] == [True, False, False]


def test_concurrency_is_bounded() -> None:
    def play(number: int) -> tuple[int, dict, Any]:
        time.sleep(0.03)
        return good(number)

    async def run(url: str) -> None:
        model = model_for(url, max_concurrency=3)
        await asyncio.gather(*(model.complete(REQUEST) for _ in range(12)))
        await model.stop()

    with endpoint(play) as server:
        asyncio.run(run(server.url))
        assert (len(server.calls), server.most_in_flight) == (12, 3)


def test_J09_one_client_serves_all_steps_on_the_run_loop() -> None:
    with endpoint(good) as server:
        loop = EventLoopThread()
        model = model_for(server.url)
        loop.run(model.start())
        for step in (1, 2):
            assert loop.run(model.complete(REQUEST)).text == f"answer {step}"
        with pytest.raises(RuntimeError, match="used from two event loops"):
            asyncio.run(model.complete(REQUEST))
        loop.run(model.stop())
        loop.run(model.stop())
        loop.close()


def test_start_reaches_the_endpoint_with_the_key() -> None:
    with endpoint(good) as server:
        start(server.url)
        assert server.authorization == [f"Bearer {KEY}"]
        server.models_status = 404
        start(server.url)


def test_start_without_a_key_names_variable_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARISE_TEST_KEY")
    with pytest.raises(ConfigError, match=r"judge.api_key_env=ARISE_TEST_KEY: this environment"):
        start("http://127.0.0.1:9/v1")
    with endpoint(good) as server:
        start(server.url, api_key_env=None)
        assert KEY not in str(server.authorization)


def test_start_with_an_unreachable_endpoint_names_base_url() -> None:
    with endpoint(good) as server:
        url = server.url
    with pytest.raises(ConfigError, match=r"reflection.base_url=http://127.*cannot be reached"):
        start(url, config_key="reflection")


def test_C04_the_key_is_in_no_message_repr_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with endpoint(lambda n: (500, {}, {"error": {"message": f"key {KEY}"}})) as server:
        server.models_status = 401
        with pytest.raises(ConfigError, match=r"judge.base_url.*judge.api_key_env") as caught:
            start(server.url)
        with pytest.raises(JudgeError) as failed:
            ask(server.url, max_tries=2)
        model = model_for(server.url)
    texts = [str(caught.value), str(failed.value), repr(model), str(vars(model)), caplog.text]
    assert [KEY in text for text in texts] == [False] * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": ""}, "judge.base_url must be an http or https address"),
        ({"base_url": "localhost:8000"}, "judge.base_url must be an http or https address"),
        ({"base_url": "http://u:p@h/v1"}, "judge.base_url must not contain credentials"),
        ({"max_tries": 0}, "judge.max_tries must be >= 1, got 0"),
        ({"timeout_s": 0.0}, "judge.timeout_s must be >= 0.001, got 0.0"),
        ({"model": ""}, "judge.model must name a model"),
    ],
)
def test_ranges(options: dict, message: str) -> None:
    url = options.pop("base_url", "http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match=message):
        model_for(url, **options)


def test_retry_after_forms() -> None:
    now_s = 1_700_000_000.0
    date = formatdate(now_s + 30, usegmt=True)
    assert retry_after_s({"retry-after": "2"}, now_s=now_s) == 2.0
    assert retry_after_s({"retry-after": date}, now_s=now_s) == 30.0
    assert retry_after_s({"retry-after": date}, now_s=now_s + 60) == 0.0
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}, now_s=now_s) == 0.25
    assert retry_after_s({"retry-after": "soon"}, now_s=now_s) is None
    assert retry_after_s({"retry-after": "nan"}, now_s=now_s) is None
    assert retry_after_s({}, now_s=now_s) is None
