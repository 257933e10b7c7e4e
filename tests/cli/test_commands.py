"""Every command that asks the gateway: tables for people, JSON for scripts, exit codes."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.conftest import Rung
from client import recorded
from client.scripted import TOKEN, Answer, Scripted, json_answer, problem

STREAM = {"Content-Type": "text/event-stream"}
LINE = {"rank": 0, "stream": "stdout", "level": "info", "time_ms": 1_769_860_800_123, "text": "hi"}
EXPERIMENT = "/experiments/k3v9x2ab"


def stream(*events: Any) -> Answer:
    """Return a stream of events that then ends."""
    body = b"".join(
        b"id: %d\ndata: %s\n\n" % (number, msgspec.json.encode(event))
        for number, event in enumerate(events)
    )
    return Answer(200, body, STREAM)


def test_list(server: Scripted, rung: Rung) -> None:
    """The list shows what counts, user text as it is; --json is the API's page."""
    page = {"items": [recorded.summary(), recorded.summary("active")], "next_cursor": "c1"}
    server.on("/experiments", json_answer(page))
    result = rung("list", "--state", "active", "--label", "x")
    assert result.code == 0
    assert "digits [red]" in result.out
    assert "error 0.125" in result.out
    assert "1 min 05 s" in result.out
    assert "--cursor c1" in result.err
    assert server.requests[0].query == {"state": "active", "label": "x", "limit": "50"}
    assert rung("list", "--json").json == page


def test_an_empty_list_says_what_to_do(server: Scripted, rung: Rung) -> None:
    """A newcomer is told how to begin."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    assert "rung submit" in rung("list").out


def test_show(server: Scripted, rung: Rung) -> None:
    """An experiment is shown with trials, hyperparameters and checkpoints."""
    server.on(EXPERIMENT, json_answer(recorded.experiment()))
    page = {"items": [recorded.checkpoint()], "next_cursor": None}
    server.on(f"{EXPERIMENT}/checkpoints", json_answer(page))
    result = rung("show", "k3v9x2ab")
    assert result.code == 0
    for words in (
        "k3v9x2ab.1",
        "opt.name=[bold]adam",
        "62% of all in full",
        "1 stored",
        "bracket",
    ):
        assert words in result.out
    shown = rung("show", "k3v9x2ab", "--json").json
    assert shown == recorded.experiment() | {"checkpoints": [recorded.checkpoint()]}


def test_show_a_trial(server: Scripted, rung: Rung) -> None:
    """A name with a dot is a trial."""
    trial = recorded.trial() | {"checkpoints": [recorded.checkpoint()]}
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    result = rung("show", "k3v9x2ab.0")
    assert "error=0.125" in result.out
    assert "16 of 16" in result.out
    assert rung("show", "k3v9x2ab.0", "--json").json == trial


def test_best(server: Scripted, rung: Rung) -> None:
    """The best trial comes with its hyperparameters and the way to its checkpoint."""
    server.on(f"{EXPERIMENT}/best", json_answer(recorded.best()))
    result = rung("best", "k3v9x2ab")
    assert "0.125" in result.out
    assert "opt.wd" in result.out
    assert "rung download k3v9x2ab.0.1.1600" in result.out
    assert rung("best", "k3v9x2ab", "--json").json == recorded.best()


def test_best_before_there_is_one(server: Scripted, rung: Rung) -> None:
    """Before the first validation, the gateway's words are shown; exit code 1."""
    server.on(f"{EXPERIMENT}/best", problem(409, "no trial has reported a finite 'error' yet"))
    result = rung("best", "k3v9x2ab")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Error: no trial has reported a finite 'error' yet\n"


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "kill"])
def test_control(action: str, server: Scripted, rung: Rung) -> None:
    """What is asked for is sent once, with a key, and confirmed."""
    answer = {"experiment_id": "k3v9x2ab", "requested": action}
    server.on(f"POST {EXPERIMENT}/{action}", json_answer(answer, 202))
    result = rung(action, "k3v9x2ab")
    assert result.code == 0
    assert "k3v9x2ab" in result.out
    assert server.requests[0].headers["Idempotency-Key"]
    assert rung(action, "k3v9x2ab", "--json").json == answer


def test_canceling_and_waiting(server: Scripted, rung: Rung) -> None:
    """With --wait, the end is waited for, and being canceled is what was wanted."""
    server.on(
        f"POST {EXPERIMENT}/cancel",
        json_answer({"experiment_id": "k3v9x2ab", "requested": "cancel"}, 202),
    )
    server.on(EXPERIMENT, json_answer(recorded.experiment("canceled")))
    result = rung("cancel", "k3v9x2ab", "--wait")
    assert result.code == 0
    assert "canceled after" in result.out


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("errored", 1), ("canceled", 5)])
def test_wait(state: str, code: int, server: Scripted, rung: Rung) -> None:
    """The exit code says how it ended; progress goes to standard error."""
    server.on(
        EXPERIMENT,
        json_answer(recorded.experiment("active")),
        json_answer(recorded.experiment(state)),
    )
    server.on(f"{EXPERIMENT}/events", stream({"type": "x"}))
    result = rung("wait", "k3v9x2ab")
    assert result.code == code
    assert result.out.startswith(f"k3v9x2ab {state} after 1 min 05 s: 2 trials\n")
    assert "k3v9x2ab active 50%" in result.err
    assert "best error 0.125 by k3v9x2ab.0 (lr=0.01 " in result.err
    assert "rungs 1@4 1@16 epochs" in result.err
    assert "about 1 min 15 s left" in result.err
    quiet = rung("wait", "k3v9x2ab", "--json")
    assert (quiet.code, quiet.json["state"], quiet.err) == (code, state, "")


def test_wait_survives_the_server(server: Scripted, rung: Rung) -> None:
    """A server that is away for a moment is waited for."""
    server.on(
        EXPERIMENT,
        json_answer(recorded.experiment("active")),
        Answer(drop=True, body=b""),
        problem(503, "starting"),
        json_answer(recorded.experiment()),
    )
    server.on(f"{EXPERIMENT}/events", stream({"type": "x"}))
    assert rung("wait", "k3v9x2ab", "-q").code == 0


def test_submit(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """The file goes as it is, the folder packed; warnings go to standard error."""
    file, folder = tmp_path / "x.yaml", tmp_path / "code"
    file.write_bytes("name: Grün # as it is\n".encode())
    folder.mkdir()
    (folder / "train.py").write_text("print()")
    answer = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": ["slurm has no effect here"]}
    server.on("POST /experiments", json_answer(answer, 201))
    result = rung("submit", str(file), str(folder))
    assert (result.code, result.out) == (0, "Submitted experiment k3v9x2ab\n")
    assert result.err == "Warning: slurm has no effect here\n"
    assert "name: Grün # as it is\n".encode() in server.requests[0].body
    assert b"\x1f\x8b" in server.requests[0].body
    assert rung("submit", str(file), "--json").json == answer
    assert b"\x1f\x8b" not in server.requests[1].body


def test_submit_and_follow(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """With -f, the exit code is the experiment's; with --json, two lines are printed."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    answer = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": []}
    server.on("POST /experiments", json_answer(answer, 201))
    server.on(EXPERIMENT, json_answer(recorded.experiment("errored")))
    result = rung("submit", str(file), "-f", "--json")
    first, second = result.out.splitlines()
    assert msgspec.json.decode(first) == answer
    assert msgspec.json.decode(second)["state"] == "errored"
    assert result.code == 1


def test_a_file_that_is_refused(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """Every problem is printed with path and line; exit code 2."""
    file = tmp_path / "x.yaml"
    file.write_text("serch: 1\n")
    errors = [
        {"path": "serch", "message": "did you mean `searcher`?", "line": 1},
        {"path": "entrypoint", "message": "is required"},
    ]
    server.on("POST /experiments", problem(422, "two problems", errors=errors))
    result = rung("submit", str(file))
    assert result.code == 2
    assert result.err == (
        "Error: refused, with 2 problems:\n"
        "  serch (line 1): did you mean `searcher`?\n"
        "  entrypoint: is required\n"
    )


def test_code_that_is_refused(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """A code folder that cannot be packed is exit code 2, and nothing is sent."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    folder = tmp_path / "code"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    result = rung("submit", str(file), str(folder))
    assert result.code == 2
    assert "pipe is a device, pipe or socket" in result.err
    assert server.requests == []


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
    assert server.requests[0].query == {"level": "info", "rank": "0", "text": "h", "limit": "500"}
    assert server.requests[1].query["after"] == "a1"
    server.on("/trials/k3v9x2ab.0/logs", json_answer({"items": [line], "next_cursor": "a1"}))
    assert rung("logs", "k3v9x2ab.0", "--limit", "3", "--json").out.count("\n") == 3


def test_following_logs(server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """With -f, lines come from the stream, filtered here where it cannot, until the end."""
    monkeypatch.setattr("rung.cli.logs._LOOK_S", 0.05)
    lines = [LINE, LINE | {"text": "other"}, LINE | {"text": "high", "time_ms": 5}]
    server.on(EXPERIMENT, json_answer(recorded.experiment()))
    event = {"trial_id": "k3v9x2ab.1", "run": 1, "lines": lines}
    server.on(f"{EXPERIMENT}/logs/stream", stream(event))
    result = rung("logs", "k3v9x2ab", "-f", "--text", "hi", "--since", "10", "--level", "info")
    assert result.code == 0
    assert [line.rpartition(" ")[2] for line in result.out.splitlines()] == ["hi"]
    query = server.requested(f"{EXPERIMENT}/logs/stream")[0].query
    assert query == {"from": "start", "level": "info"}
    assert rung("logs", "k3v9x2ab", "-f", "--since", "soon").code == 1


def test_checkpoints(server: Scripted, rung: Rung) -> None:
    """Deleted ones are listed when asked for; --json lists all."""
    items = [recorded.checkpoint(), recorded.checkpoint("gone", state="deleted")]
    answer = json_answer({"items": items, "next_cursor": None})
    server.on(f"{EXPERIMENT}/checkpoints", answer)
    assert "gone" not in rung("checkpoints", "k3v9x2ab").out
    assert "2.0 KiB" in rung("checkpoints", "k3v9x2ab").out
    assert "gone" in rung("checkpoints", "k3v9x2ab", "--all").out
    assert rung("checkpoints", "k3v9x2ab", "--json").json == {"items": items}


def test_download_chooses(server: Scripted, rung: Rung) -> None:
    """An experiment means its best checkpoint, a trial its best one that is left."""
    trial = recorded.trial() | {
        "checkpoints": [
            recorded.checkpoint("a", steps_completed=1600),
            recorded.checkpoint("b", steps_completed=1700),
            recorded.checkpoint("c", steps_completed=1800, state="deleted"),
        ]
    }
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    server.on(f"{EXPERIMENT}/best", json_answer(recorded.best()))
    assert rung("download", "k3v9x2ab.0").code == 4
    assert server.requests[-1].path == "/checkpoints/a"
    assert rung("download", "k3v9x2ab").code == 4
    assert server.requests[-1].path == "/checkpoints/k3v9x2ab.0.1.1600"
    server.on(f"{EXPERIMENT}/best", json_answer(recorded.best(checkpoint=None)))
    result = rung("download", "k3v9x2ab")
    assert result.code == 1
    assert "rung checkpoints k3v9x2ab" in result.err


def test_status(server: Scripted, rung: Rung) -> None:
    """Slots, what holds them, and what waits."""
    facts = {
        "version": "0.1.0",
        "ledger_id": "l1",
        "experiments": {"active": 1},
        "pools": [],
        "dead_letters": 2,
    }
    slot = {"id": 0, "kind": "cpu", "name": "CPU slot 0", "allocation_id": "k3v9x2ab.0.1"}
    agent = {
        "id": "vm",
        "pool": "default",
        "hostname": "vm",
        "incarnation": 1,
        "state": "joined",
        "since": "2026-01-31T12:00:00Z",
        "slots": [slot],
    }
    server.on("/status", json_answer(facts))
    server.on("/agents", json_answer({"items": [agent]}))
    server.on("/queue", json_answer({"items": [], "next_cursor": None}))
    result = rung("status")
    assert result.code == 0
    assert "k3v9x2ab.0.1" in result.out
    assert rung("status", "--json").json == {
        "url": server.url,
        **facts,
        "agents": [agent],
        "queue": [],
    }


def test_audit_over_http(server: Scripted, rung: Rung) -> None:
    """Without a ledger here, the gateway audits; what differs is exit code 1."""
    difference = {
        "key": "k3v9x2ab",
        "position": 7,
        "index": 0,
        "recorded": {"type": "rung.trial.stopped.v1", "data": {"a": {"b": 1}, "c": 2}},
        "decided": {"type": "rung.trial.stopped.v1", "data": {"a": {"b": 3}, "c": 2}},
    }
    verdict = {
        "process": "searcher",
        "facts": 9,
        "decisions": 5,
        "pending": 0,
        "differences": [difference],
        "unreadable": [],
    }
    answer = {"same": False, "decisions": 5, "verdicts": [verdict]}
    server.on(f"{EXPERIMENT}/audit", json_answer(answer))
    result = rung("audit", "k3v9x2ab")
    assert result.code == 1
    assert "position 7, decision 0" in result.out
    assert "a.b is 1 on record, and 3 as decided today" in result.out
    assert rung("audit", "k3v9x2ab", "--json").json == answer
    server.on(f"{EXPERIMENT}/audit", json_answer({"same": True, "decisions": 5}))
    assert rung("audit", "k3v9x2ab").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "nope"],
        ["wait", "nope"],
        ["logs", "nope"],
        ["logs", "nope", "-f"],
        ["pause", "nope"],
        ["best", "nope"],
        ["checkpoints", "nope"],
        ["download", "nope"],
        ["audit", "nope"],
    ],
    ids=" ".join,
)
def test_nothing_has_that_id(arguments: list[str], server: Scripted, rung: Rung) -> None:
    """An id that nothing has is exit code 4 and one line."""
    result = rung(*arguments)
    assert result.code == 4
    assert result.err.startswith("Error: there is nothing at ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("command", ["list", "status", "show x", "pause x", "wait x", "logs x"])
def test_nobody_answers(
    command: str, rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no Rung runs, that is said at once, with how to start one; exit code 3."""
    monkeypatch.setenv("RUNG_DATA", str(tmp_path / "none"))
    monkeypatch.delenv("RUNG_URL", raising=False)
    result = rung(*command.split())
    assert result.code == 3
    assert "rung up --data" in result.err
    assert result.err.count("\n") == 1


def test_a_wrong_token(server: Scripted, rung: Rung) -> None:
    """A token that is refused is exit code 3, with where it comes from."""
    result = rung("list", "--token", "wrong")
    assert result.code == 3
    assert "RUNG_TOKEN" in result.err


def test_which_rung_is_meant(
    server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """--url goes before RUNG_URL and the data folder; --data on the line before RUNG_URL."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    data = os.environ["RUNG_DATA"]
    monkeypatch.setenv("RUNG_URL", "http://127.0.0.1:9")
    assert rung("list", "--data", data).code == 0
    assert rung("list", "--url", server.url).code == 0
    monkeypatch.setenv("RUNG_URL", server.url)
    monkeypatch.setenv("RUNG_DATA", str(tmp_path / "none"))
    assert rung("list").code == 3
    monkeypatch.setenv("RUNG_TOKEN", TOKEN)
    assert rung("list").code == 0
