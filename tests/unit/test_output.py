"""The cap of captured output: faults X04 to X07."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arise.environments.output import CappedOutput


def captured(max_bytes: int, *chunks: bytes) -> tuple[str, int]:
    output = CappedOutput(max_bytes)
    for chunk in chunks:
        output.write(chunk)
    return output.text()


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], ("", 0)),
        ([b"abcdef"], ("abcdef", 0)),
        ([b"abc", b"", b"defg"], ("abc\n[... 1 bytes dropped ...]\nefg", 1)),
        ([b"a" * 1000, b"z" * 3], ("aaa\n[... 997 bytes dropped ...]\nzzz", 997)),
        # Two characters of three bytes fit; the cut one is dropped as a whole at both ends.
        (["ab☕☕☕cd".encode()], ("ab\n[... 9 bytes dropped ...]\ncd", 9)),
        ([b"\xff\x00\xed\xa0\x80"], ("\ufffd" * 5, 0)),
    ],
)
def test_X04_head_tail_and_dropped(chunks: list[bytes], expected: tuple[str, int]) -> None:
    assert captured(6, *chunks) == expected


@given(st.text(max_size=60), st.integers(2, 40), st.integers(1, 7))
def test_X05_chunks_and_caps_never_split_a_character(
    text: str, max_bytes: int, chunk_bytes: int
) -> None:
    data = text.encode()
    chunks = [data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)]
    output, dropped = captured(max_bytes, *chunks)
    clean = text.replace("\0", "\ufffd")
    if len(data) <= max_bytes:
        assert (output, dropped) == (clean, 0)
    else:
        head, tail = output.split(f"\n[... {dropped} bytes dropped ...]\n")
        assert clean.startswith(head)
        assert clean.endswith(tail)
        kept = len(data) - dropped
        assert max_bytes - 6 <= kept <= max_bytes


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(2, 40))
def test_X06_X07_any_bytes_give_valid_text(chunks: list[bytes], max_bytes: int) -> None:
    output, _ = captured(max_bytes, *chunks)
    assert output.encode("utf-8").decode("utf-8") == output
    assert "\0" not in output
