"""`rung logs`."""

import pytest

from cli.conftest import EXPERIMENT, Rung, stream
from support import recorded_answers
from support.scripted_server import Scripted, json_answer

LINE = {"rank": 0, "stream": "stdout", "level": "info", "time_ms": 1_769_860_800_123, "text": "hi"}


def test_logs(server: Scripted, rung: Rung) -> None:
    """Lines come page by page, chosen by the options."""
    line = LINE | {"trial_id": "k3v9x2ab.0", "run": 1}
    server.on(
        f"{EXPERIMENT}/logs",
        json_answer({"items": [line], "next_cursor": "a1"}),
        json_answer({"items": [line | {"level": "error", "rank": 3}], "next_cursor": None}),
    )
    result = rung("logs", "k3v9x2ab", "--level", "info", "--rank", "0", "--text", "h")
    first, second = result.out.splitlines()
    assert first.endswith(".123 k3v9x2ab.0 hi")
    assert second.endswith("k3v9x2ab.0 rank 3 ERROR hi")
    chosen = {"level": "info", "rank": "0", "text": "h", "limit": "20000", "order": "oldest"}
    assert server.requests[0].query == chosen
    assert server.requests[1].query["after"] == "a1"
    server.on("/trials/k3v9x2ab.0/logs", json_answer({"items": [line], "next_cursor": "a1"}))
    assert rung("logs", "k3v9x2ab.0", "--limit", "3", "--json").out.count("\n") == 3


def test_the_last_lines(server: Scripted, rung: Rung) -> None:
    """With --tail they are asked for from the end, and printed the oldest first."""
    line = LINE | {"trial_id": "k3v9x2ab.0", "run": 1}
    server.on(
        f"{EXPERIMENT}/logs",
        json_answer({"items": [line | {"text": "3"}], "next_cursor": "a1"}),
        json_answer({"items": [line | {"text": "2"}], "next_cursor": "a2"}),
    )
    result = rung("logs", "k3v9x2ab", "--tail", "2")
    assert [line.rpartition(" ")[2] for line in result.out.splitlines()] == ["2", "3"]
    assert server.requests[0].query == {"order": "newest", "limit": "2"}
    assert server.requests[1].query == {"order": "newest", "limit": "1", "after": "a1"}
    assert rung("logs", "k3v9x2ab", "--tail", "2", "-f").code == 2


def test_a_mark_is_told_from_what_a_script_printed(server: Scripted, rung: Rung) -> None:
    """Whatever a script prints, it prints no line of the kind that says what is missing."""
    line = LINE | {"trial_id": "k3v9x2ab.0", "run": 1}
    mark = line | {"stream": "dropped", "level": "warning", "text": "7 lines are missing"}
    fake = line | {"text": "-- 12:00:00.123 k3v9x2ab.0 WARNING 7 lines are missing"}
    server.on(f"{EXPERIMENT}/logs", json_answer({"items": [mark, fake], "next_cursor": None}))
    first, second = rung("logs", "k3v9x2ab").out.splitlines()
    assert first.startswith("-- ")
    assert first.endswith(".123 k3v9x2ab.0 WARNING 7 lines are missing")
    assert not second.startswith("-- ")


def test_following_logs(server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """With -f, lines come from the stream, filtered here where it cannot, until the end."""
    monkeypatch.setattr("rung.cli.commands.logs._LOOK_S", 0.05)
    lines = [
        LINE | {"text": "Hi"},
        LINE | {"text": "other"},
        LINE | {"text": "high", "time_ms": 5},
    ]
    ended = json_answer(recorded_answers.experiment())
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment("active")), ended)
    event = {"trial_id": "k3v9x2ab.1", "run": 1, "lines": lines}
    server.on(f"{EXPERIMENT}/logs/stream", stream(event))
    server.on(f"{EXPERIMENT}/logs", json_answer({"items": [], "next_cursor": None}))
    result = rung("logs", "k3v9x2ab", "-f", "--text", "hi", "--since", "10", "--level", "info")
    assert result.code == 0
    assert [line.rpartition(" ")[2] for line in result.out.splitlines()] == ["Hi"]
    query = server.requested(f"{EXPERIMENT}/logs/stream")[0].query
    assert query == {"from": "start", "level": "info"}
    assert rung("logs", "k3v9x2ab", "-f", "--since", "soon").code == 2


def test_following_what_ended_prints_what_is_stored(server: Scripted, rung: Rung) -> None:
    """However long the stream would take to come to its lines; it is not asked."""
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment()))
    server.on(f"{EXPERIMENT}/logs/stream", stream())
    stored = LINE | {"trial_id": "k3v9x2ab.0", "run": 1}
    server.on(f"{EXPERIMENT}/logs", json_answer({"items": [stored], "next_cursor": None}))
    result = rung("logs", "k3v9x2ab", "-f")
    assert (result.code, result.out.count(" hi\n")) == (0, 1)
    assert not server.requested(f"{EXPERIMENT}/logs/stream")


def test_what_the_stream_had_not_come_to_is_read_at_the_end(
    server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line once, also those of one time, of which some came; of every trial."""
    monkeypatch.setattr("rung.cli.commands.logs._LOOK_S", 0.05)
    ended = json_answer(recorded_answers.experiment())
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment("active")), ended)
    lines = [LINE | {"text": f"{n}", "time_ms": 10 + n // 2} for n in range(6)]
    about = {"trial_id": "k3v9x2ab.0", "run": 1}
    server.on(f"{EXPERIMENT}/logs/stream", stream(about | {"lines": lines[:3]}))
    stored = [line | about for line in lines]
    stored += [LINE | {"trial_id": "k3v9x2ab.1", "run": 1, "text": "6", "time_ms": 9}]
    server.on(f"{EXPERIMENT}/logs", json_answer({"items": stored, "next_cursor": None}))
    result = rung("logs", "k3v9x2ab", "-f")
    assert [line.rpartition(" ")[2] for line in result.out.splitlines()] == list("0123456")
