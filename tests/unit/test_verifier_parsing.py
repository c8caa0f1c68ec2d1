"""Rewards are read strictly: faults V01, V02, V07, V09 and V11."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.environments.verifier import parse_reward, verify
from arise.errors import VerifierError
from arise.types import Task


def text(data: bytes) -> float:
    return parse_reward({"reward.json": None, "reward.txt": data})


def in_json(data: bytes) -> float:
    return parse_reward({"reward.json": data, "reward.txt": None})


def test_V01_no_file_is_an_error() -> None:
    with pytest.raises(VerifierError, match="neither"):
        parse_reward({"reward.json": None, "reward.txt": None})
    with pytest.raises(VerifierError, match="neither"):
        parse_reward({})


@pytest.mark.parametrize(
    ("data", "reward"),
    [
        (b"1\n", 1.0),
        (b" 1.0 ", 1.0),
        (b"1e0", 1.0),
        (b"0", 0.0),
        (b"\t.25\r\n", 0.25),
        (b"1.", 1.0),
        (b"+5E-1", 0.5),
        (b"-0", 0.0),
    ],
)
def test_V02_whole_number_is_read(data: bytes, reward: float) -> None:
    assert text(data) == reward


@pytest.mark.parametrize("data", [b"10", b"100", b"1abc", b"1.5", b"1 1", b"0x1", b"1,0", b"1%"])
def test_V02_prefix_is_not_enough(data: bytes) -> None:
    with pytest.raises(VerifierError):
        text(data)


@pytest.mark.parametrize("data", [b"0\n0", b"Traceback (most recent call last)\n0", b"", b"   "])
def test_V07_shell_idioms(data: bytes) -> None:
    with pytest.raises(VerifierError, match=r"reward\.txt must hold one number"):
        text(data)


@pytest.mark.parametrize(
    "data",
    [
        *(b"nan", b"inf", b"-inf", b"Infinity", b"-1", b"1.0000001", b"1_0", b"1e400", b"0.1_5"),
        *("١".encode(), "１".encode(), "\u00a01".encode(), b"\xff1", b"1\x00", b"\xef\xbb\xbf1"),
    ],
)
def test_V09_not_a_finite_number_in_range(data: bytes) -> None:
    with pytest.raises(VerifierError):
        text(data)


def test_V11_large_file_is_an_error() -> None:
    with pytest.raises(VerifierError, match="larger than 65536"):
        text(b" " * 65_536 + b"1")
    assert text(b" " * 65_535 + b"1") == 1.0


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        ({"reward": 0.5, "speed": 7}, 0.5),
        ({"score": 1}, 1.0),
        ({"reward": 0}, 0.0),
        ({"speed": -3.5, "reward": 1.0}, 1.0),
    ],
)
def test_json_reward(value: object, reward: float) -> None:
    assert in_json(json.dumps(value).encode()) == reward


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"1", b"[1]", b"{}", b"null", b'{"a": 1, "b": 0}', b'{"reward": true}', b"{"),
        *(b'{"reward": "1"}', b'{"reward": NaN}', b'{"reward": 1e999}', b'{"reward": 2}'),
        *(b'{"reward": {"reward": 1}}', b'{"reward": 1, "x": null}', b'{"reward": 0, "reward": 1}'),
        *(b'{"reward": 1} 0', b"[" * 60_000, b'{"reward": 1' + b"0" * 400 + b"}", b"\xff"),
    ],
)
def test_json_that_is_unclear_raises(data: bytes) -> None:
    with pytest.raises(VerifierError):
        in_json(data)


def test_json_wins_even_if_broken() -> None:
    files = {"reward.json": b'{"reward": 0.25}', "reward.txt": b"1"}
    assert parse_reward(files) == 0.25
    with pytest.raises(VerifierError):
        parse_reward({"reward.json": b"oops", "reward.txt": b"1"})


@given(st.binary(max_size=40))
def test_any_bytes_give_a_reward_in_range_or_an_error(data: bytes) -> None:
    for read in (text, in_json):
        try:
            reward = read(data)
        except VerifierError:
            continue
        assert math.isfinite(reward)
        assert 0.0 <= reward <= 1.0


@given(st.floats(min_value=0.0, max_value=1.0))
def test_python_floats_round_trip(value: float) -> None:
    assert text(f"{value!r}\n".encode()) == value
    assert in_json(json.dumps({"reward": value}).encode()) == value


def test_V01_error_ends_with_the_tests_output() -> None:
    class Finished:
        async def grade(self, tests, *, env, timeout_s):
            assert (tests, env, timeout_s) == (Path("/t"), {"A": "1"}, 600.0)
            return {"reward.json": None, "reward.txt": None, "output": b"no such module\xff\n"}

    task = Task(id="a", instruction="", path=Path("/"), tests=Path("/t"), verifier_env={"A": "1"})
    with pytest.raises(VerifierError, match=r"output ends: no such module\ufffd$"):
        asyncio.run(verify(Finished(), task))
