"""Nothing that was written elsewhere reaches the terminal as a command."""

import contextlib
import io
import json
import sys
import time
import unicodedata

import pytest

from cli.conftest import EXPERIMENT, Rung
from rung.cli.terminal import (
    RESET,
    escape,
    escape_json,
    escape_lines,
    escaped_output,
    raw_stream,
)
from support import recorded_answers
from support.scripted_server import Scripted, json_answer, problem

CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x07"
HYPERLINK = "\x1b]8;;https://elsewhere.example\x1b\\here\x1b]8;;\x1b\\"
HOSTILE = (
    CLIPBOARD,
    HYPERLINK,
    "\x1b[2J\x1b[H",
    "\x9b2J\x9d0;title\x9c",
    "\u202egnp.exe\u2066\u2069",
    "pass\u200bword\ufeff\u2060\u00ad",
    "\U000e0041\U000e0042",
    "back\b\b\b\bover\rwritten\x7f\x00",
    "\u2028\u2029\u0085",
)
LINE = {"rank": 0, "stream": "stdout", "level": "info", "time_ms": 1_769_860_800_123, "run": 1}


def dangerous(text: str) -> list[str]:
    """Return what of a text a terminal obeys or does not show."""
    return [
        letter
        for letter in text
        if letter not in "\n\t" and unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp", "Cf"}
    ]


class Terminal(io.TextIOWrapper):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_obeys_is_shown(text: str) -> None:
    """Escape sequences, C1 controls, bidirectional marks and what is invisible become escapes."""
    for shown in (escape(text), escape(text, colors=True), *escape_lines([text])):
        assert not dangerous(shown)


def test_every_control_and_format_character_is_escaped() -> None:
    """All of Unicode is looked through: controls, surrogates, separators, format characters."""
    visible = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
    visible += "\U000110bd\U000110cd" + "".join(map(chr, range(0x13430, 0x13440)))
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if dangerous(letter) and letter not in visible:
            assert escape(letter) != letter, hex(code)
            assert escape(letter).isascii()


@pytest.mark.parametrize(
    "text", ["loss 0.1\n\tstep", "größer €", "学習 🙂 ❤️", "C:\\new\\x", "\ue0b0 powerline", ""]
)
def test_honest_text_stays(text: str) -> None:
    """Newlines, tabs, every script, emoji, backslashes and private symbols are as they were."""
    assert escape(text) == text
    assert escape_json(json.dumps(text, ensure_ascii=False).encode()).decode() == json.dumps(
        text, ensure_ascii=False
    )


def test_colors_pass_only_where_they_are_wanted() -> None:
    """Colours stay on a terminal and are left out elsewhere; nothing else passes as a colour."""
    red = "\x1b[1;31mred\x1b[0m"
    assert escape(red, colors=True) == red
    assert escape(red) == "red"
    for other in ("\x1b[6n", "\x1b[?25l", "\x1b[>4;2m", "\x1b[31 m", f"\x1b[{'1;' * 40}m"):
        assert escape(other, colors=True).startswith("\\x1b[")
    assert escape("\x9b31m", colors=True) == "\\x9b31m"


def test_a_line_stays_one_line() -> None:
    """A newline within a text cannot forge another line, nor can a colour run into the next."""
    forged = "ok\n12:00:00.000 k3v9x2ab.0 all is well"
    assert escape_lines(["a", forged, "b"]) == ["a", forged.replace("\n", "\\n"), "b"]
    assert escape_lines(["\x1b[31mred", "plain"], colors=True) == [f"\x1b[31mred{RESET}", "plain"]
    assert escape_lines([]) == []
    assert escape_lines([""]) == [""]
    assert escape_lines(["a\nb"]) == ["a\\nb"]


def test_json_says_the_same() -> None:
    """What JSON leaves as it is is escaped, and decodes to the same."""
    value = {"names": [*HOSTILE, "größer 🙂"]}
    encoded = json.dumps(value, ensure_ascii=False).encode()
    shown = escape_json(encoded)
    assert not dangerous(shown.decode())
    assert json.loads(shown) == value


@pytest.mark.parametrize("text", ["accuracy", "Genauigkeit höher €", "\x1b[32maccuracy\x1b[0m"])
def test_blocks_take_no_time_to_speak_of(text: str) -> None:
    """100,000 lines of logs are looked through in a fraction of a second."""
    lines = [f"epoch {n} loss 0.123456 {text} 0.98765 {'x' * 50}" for n in range(100_000)]
    best = min(_seconds(lines) for _ in range(3))
    assert best < 0.7


def _seconds(lines: list[str]) -> float:
    began = time.process_time()
    escape_lines(lines, colors=True)
    return time.process_time() - began


def test_the_streams_are_guarded() -> None:
    """Whatever is printed passes, colours on a terminal; drawing may go round it; then it ends."""
    out, err = Terminal(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with escaped_output():
            print(f"\x1b[31m{CLIPBOARD}\x1b[0m", "\udcff")  # noqa: T201 - what is tried
            sys.stderr.writelines(["\x1b[31m", CLIPBOARD])
            raw_stream(sys.stdout).write("\x1b[?25l")
        assert sys.stdout is out
    out.flush()
    escaped = "\\x1b]52;c;cm0gLXJmIC8=\\x07"
    assert out.buffer.getvalue() == f"\x1b[31m{escaped}\x1b[0m \\udcff\n\x1b[?25l".encode()  # type: ignore[attr-defined]
    assert err.getvalue() == escaped


@pytest.mark.parametrize("text", HOSTILE)
def test_no_command_passes_them_on(server: Scripted, rung: Rung, text: str) -> None:
    """Names, labels, reasons, hyperparameters, metric names, log lines and errors are escaped."""
    trial = recorded_answers.trial(hparams={text: text}, reason=text, message=text) | {
        "validations": [{"steps": 1, "metrics": {text: 0.5}}],
        "checkpoints": [],
    }
    page = {"items": [recorded_answers.summary(name=text, labels=[text])], "next_cursor": None}
    experiment = recorded_answers.experiment() | {"name": text, "labels": [text], "reason": text}
    line = LINE | {"trial_id": "k3v9x2ab.0", "text": text}
    server.on("/experiments", json_answer(page))
    server.on(EXPERIMENT, json_answer(experiment))
    server.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": [], "next_cursor": None}))
    server.on(f"{EXPERIMENT}/logs", json_answer({"items": [line], "next_cursor": None}))
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    for command in (
        ["list"],
        ["show", "k3v9x2ab"],
        ["show", "k3v9x2ab.0"],
        ["logs", "k3v9x2ab"],
        ["wait", "k3v9x2ab"],
    ):
        for arguments in (command, [*command, "--json"]):
            result = rung(*arguments)
            assert not dangerous(result.out + result.err), arguments
    assert rung("logs", "k3v9x2ab", "--json").json["text"] == text
    server.on("/trials/k3v9x2ab.0", problem(409, text))
    result = rung("show", "k3v9x2ab.0")
    assert result.err
    assert not dangerous(result.out + result.err)
