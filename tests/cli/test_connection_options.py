"""Which Rung is meant, and what is said when there is none; status and audit over HTTP."""

import os
import re
from pathlib import Path

import pytest

from cli.conftest import EXPERIMENT, Rung
from rung.cli.connection_options import PATIENCE_S
from rung.events import LedgerUnavailable, RungError
from rung.events.errors import ObjectUnavailable
from rung.gateway.problem import RETRY_AFTER_S
from rung.gateway.settings import Settings
from support.scripted_server import TOKEN, Scripted, json_answer, problem


def test_patience_outlasts_a_gateway_that_is_behind() -> None:
    """It says 503 after a while, and asks for another: then it is asked again."""
    assert Settings().seen_timeout + RETRY_AFTER_S < PATIENCE_S


def test_status(server: Scripted, rung: Rung) -> None:
    """Slots, what holds them, and what waits."""
    facts = {
        "version": "0.1.0",
        "ledger_id": "l1",
        "experiments": {"active": 1},
        "pools": [],
        "dead_letters": 2,
        "problems": ["series.damaged-1 was set aside\x1b]0;x"],
        "checkpoint_count": 0,
        "checkpoint_bytes": 0,
        "disk": None,
    }
    slot = {
        "id": 0,
        "kind": "cpu",
        "name": "CPU slot 0",
        "allocation_id": "k3v9x2ab.0.1",
        "busy": True,
    }
    agent = {
        "id": "vm",
        "pool": "default",
        "hostname": "vm",
        "incarnation": 1,
        "state": "joined",
        "since": "2026-01-31T12:00:00Z",
        "slots": [slot],
        "reason": None,
        "isolation": "namespaces",
    }
    server.on("/status", json_answer(facts))
    server.on("/agents", json_answer({"items": [agent]}))
    letter = {
        "at": "2026-01-31T12:00:00Z",
        "topic": "logs",
        "partition": 3,
        "position": 7,
        "key": "k3v9x2ab.0",
        "reader": "metrics",
        "reason": "not an event",
        "value": "{",
        "id": "metrics/logs/3/7",
        "state": "open",
        "reader_kind": None,
    }
    letters = {"items": [letter], "next_cursor": "x", "count": 2}
    server.on("/deadletters", json_answer(letters))
    server.on("/queue", json_answer({"items": [], "next_cursor": None}))
    result = rung("status")
    assert result.code == 0
    assert "k3v9x2ab.0.1" in result.out
    assert re.search(r"^isolation +namespaces$", result.out, re.MULTILINE)
    assert "Problem: series.damaged-1 was set aside\\x1b]0;x\n" in result.out
    assert "metrics/logs/3/7" in result.out
    assert "and 1 older" in result.out
    assert rung("status", "--json").json == {
        "url": server.url,
        **facts,
        "agents": [agent],
        "queue": [],
        "letters": [letter],
    }


def test_status_names_agents_that_are_drained(server: Scripted, rung: Rung) -> None:
    """With the reason; one that left is not there any more, and none may be left to train on."""
    agent = {
        "id": "vm-1",
        "pool": "default",
        "hostname": "vm",
        "incarnation": 1,
        "state": "draining",
        "since": "2026-01-31T12:00:00Z",
        "slots": [],
        "reason": "the cloud preempts it",
    }
    facts = {"version": "0", "ledger_id": "l", "experiments": {}, "pools": [], "dead_letters": 0}
    server.on("/status", json_answer(facts))
    server.on("/queue", json_answer({"items": [], "next_cursor": None}))
    there = agent | {"id": "vm-2", "state": "joined", "reason": None}
    gone = agent | {"id": "vm-3", "state": "left"}
    server.on("/agents", json_answer({"items": [agent, there, gone]}))
    out = rung("status").out
    assert "draining: the cloud preempts it" in out
    assert "joined" in out
    assert "vm-3" not in out
    assert "No agent offers slots." not in out
    server.on("/agents", json_answer({"items": [agent]}))
    out = rung("status").out
    assert "No agent offers slots." in out
    assert "draining: the cloud preempts it" in out
    server.on("/agents", json_answer({"items": [there]}))
    assert "joined" not in rung("status").out


def test_status_says_why_something_is_never_placed(server: Scripted, rung: Rung) -> None:
    """Once for all that wait for the same reason; an older server gives none."""
    item = {
        "allocation_id": "k3v9x2ab.0.1",
        "pool": "compute-pool",
        "experiment_id": "k3v9x2ab",
        "trial_id": "k3v9x2ab.0",
        "run": 1,
        "slots": 1,
        "priority": 42,
        "requested_at": "2026-01-31T12:00:00Z",
        "withdrawn": False,
    }
    facts = {"version": "0", "ledger_id": "l", "experiments": {}, "pools": [], "dead_letters": 0}
    server.on("/status", json_answer(facts))
    server.on("/agents", json_answer({"items": []}))
    items = [item | {"reason": "pool compute-pool has no agent"}] * 2 + [item]
    server.on("/queue", json_answer({"items": items, "next_cursor": None}))
    out = rung("status").out
    assert out.count("Cannot be placed: pool compute-pool has no agent\n") == 1
    assert out.count("Cannot be placed") == 1


def test_audit_over_http(server: Scripted, rung: Rung) -> None:
    """Without a ledger here, the gateway audits; what differs is exit code 1."""
    difference = {
        "process": "searcher",
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
        "differences": 1,
        "unreadable": [],
    }
    answer = {
        "same": False,
        "decisions": 5,
        "differences": [difference],
        "verdicts": [verdict],
        "imports": [],
        "deleted": {},
        "seals": None,
    }
    server.on(f"{EXPERIMENT}/audit", json_answer(answer))
    result = rung("audit", "k3v9x2ab")
    assert result.code == 1
    assert "position 7, decision 0" in result.out
    assert "a.b is 1 on record, and 3 as decided today" in result.out
    assert rung("audit", "k3v9x2ab", "--json").json == answer
    same = {"same": True, "decisions": 5, "differences": [], "verdicts": []}
    server.on(f"{EXPERIMENT}/audit", json_answer(same))
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


@pytest.mark.parametrize("kind", [LedgerUnavailable, ObjectUnavailable])
def test_a_ledger_that_is_away_is_no_verdict(
    kind: type[RungError], rung: Rung, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever audits tells what differs, 1, from what could not be read, 3."""
    (tmp_path / "x.jsonl").touch()

    async def away(*_: object) -> None:
        raise kind("nobody answers")

    monkeypatch.setattr("rung.cli.operations.ledger.audit.verify_source", away)
    result = rung("audit", "--ledger", str(tmp_path / "x.jsonl"))
    assert (result.code, result.err) == (3, "Error: nobody answers\n")


@pytest.mark.parametrize("status", [409, 500])
def test_what_cannot_be_done_is_no_verdict(status: int, server: Scripted, rung: Rung) -> None:
    """An id that is ambiguous, a server that fails: neither is an experiment that errored."""
    server.on(EXPERIMENT, problem(status, "it may be any of these"))
    assert rung("wait", "k3v9x2ab").code == 6


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
