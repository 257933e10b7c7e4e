"""Cutting output into lines, and telling their severity."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.agent.logs.line_splitter import PIECE_BYTES_MAX, Level, Severity, Splitter


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the data in chunks, cut at these places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    edges = [0, *places, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def _split(chunks: list[bytes], step_s: float = 0.0) -> list[str]:
    splitter = Splitter()
    lines = []
    for i, chunk in enumerate(chunks):
        lines += splitter.feed(chunk, i * step_s)
    return lines + splitter.end()


@given(text=st.text(st.characters(exclude_characters="\r")), cuts=st.lists(st.integers(0)))
def test_chunks_do_not_matter(text: str, cuts: list[int]) -> None:
    """Wherever the reads cut the stream, the lines are those of the text."""
    data = text.encode("utf-8", "surrogatepass")
    expected = data.decode("utf-8", "replace").split("\n")
    if not expected[-1]:
        expected.pop()
    assert expected == _split(_cut(data, cuts))


@given(
    size=st.integers(PIECE_BYTES_MAX - 3, 3 * PIECE_BYTES_MAX),
    letter=st.sampled_from(["x", "é", "€", "😀"]),
    cuts=st.lists(st.integers(0), max_size=5),
)
def test_long_lines_lose_nothing(size: int, letter: str, cuts: list[int]) -> None:
    """A line beyond the bound comes in pieces that end where characters end."""
    text = letter * (size // len(letter.encode()))
    lines = _split(_cut(text.encode() + b"\nnext", cuts))
    assert "".join(lines) == text + "next"
    assert lines[-1] == "next"
    assert all(len(line.encode()) <= PIECE_BYTES_MAX for line in lines)


@given(st.binary(max_size=500), st.lists(st.integers(0)))
def test_any_bytes(data: bytes, cuts: list[int]) -> None:
    """Whatever a process prints, no line is longer than the bound and none holds a line end."""
    for line in _split(_cut(data, cuts)):
        assert "\n" not in line
        assert len(line) <= PIECE_BYTES_MAX


def test_undecodable() -> None:
    """Bytes that are no UTF-8 are replaced, the rest of the line stays."""
    assert _split([b"a\xff\xfeb\n"]) == ["a\ufffd\ufffdb"]


@pytest.mark.parametrize("chunks", [[b"a\r\nb\r\n"], [b"a\r", b"\nb", b"\r\n"]])
def test_dos_line_ends(chunks: list[bytes]) -> None:
    """A carriage return before a newline is part of the line end."""
    assert _split(chunks) == ["a", "b"]


def test_progress_is_throttled() -> None:
    """Of a progress bar's states one a second is kept, and the last."""
    chunks = [f"\r{percent}%".encode() for percent in range(101)] + [b"\ndone\n"]
    lines = _split(chunks, step_s=0.1)
    assert lines[-2:] == ["100%", "done"]
    assert len(lines) < 16


def test_progress_shows_while_the_process_is_silent() -> None:
    """A state that was held back comes when nothing follows."""
    splitter = Splitter()
    assert splitter.feed(b"1%\r2%\r3%\r4%", 0.0) == ["1%"]
    assert splitter.holding
    assert splitter.pause() == ["3%"]
    assert splitter.end() == ["4%"]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("plain words", "info"),
        ("ERROR: cannot", "error"),
        ("WARNING:root:careful", "warning"),
        ("[DEBUG] x", "debug"),
        ("2026-01-01 10:00:00,123 - app.core - WARN - slow", "warning"),
        ("2026-01-01T10:00:00.123Z | CRITICAL | stop", "critical"),
        ("12:30:01 FATAL out of cheese", "critical"),
        ("\x1b[31mERROR\x1b[0m red", "error"),
        ("train.py:3: UserWarning: old", "warning"),
        ("[W1201 10:00:00.123456 ProcessGroupNCCL.cpp:1] slow", "warning"),
        ("E0102 10:00:00.123456 77 main.cc:3] bad", "error"),
        ("2026-01-01 10:00:00.123456: W tensorflow/core/x.cc:1] old", "warning"),
        ("W1201 is a part", "info"),
        ("no ERROR was found", "info"),
        ("ERRORS: 0", "info"),
        ("INFORMATION", "info"),
        ("", "info"),
    ],
)
def test_levels(line: str, level: Level) -> None:
    """Common prefixes tell the level; a word in the text does not."""
    assert Severity().of(line) == level


@given(st.text(max_size=400))
def test_levels_of_anything(line: str) -> None:
    """Any text has a level, quickly."""
    assert Severity().of(line)


@pytest.mark.parametrize(
    "line", ["1" * 160, "12345 " + "x" * 200, "[1] " * 50, "1.1 a" * 40, "\x1b[1" * 50]
)
def test_levels_take_no_time(line: str) -> None:
    """Lines that almost begin like a logger's cost about as much as any other."""
    severity = Severity()
    started = time.process_time()
    for _ in range(1000):
        severity.of(line)
    assert time.process_time() - started < 1.0


def test_tracebacks() -> None:
    """The lines of a traceback are errors, and its last line is remembered."""
    severity = Severity()
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "    ^^^",
        "ValueError: bad",
        "",
        "afterwards",
    ]
    levels = [severity.of(line) for line in lines]
    assert levels == ["error"] * 4 + ["info"] * 2
    assert severity.exception == "ValueError: bad"
    assert severity.last == "afterwards"
