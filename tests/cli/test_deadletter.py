"""`rung deadletter`: what there is, what it says, and what is asked."""

import io
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Rung
from rung.checkpoint_gc.service import components as checkpoint_gc
from rung.cli.operations.components import READERS
from rung.gateway.service import components as gateway
from rung.runtime.relay import Relay
from rung.runtime.service import Decider
from rung.runtime.sink.sink import Sink
from rung.scheduler.service import components as scheduler
from rung.searcher.service import components as searcher
from rung.storage import FolderStore
from rung.webhooks.service import components as webhooks
from support.scripted_server import Scripted, json_answer, problem

_ID = "searcher/experiments/3/7"
_PATH = f"/deadletters/{_ID}"


def _letter(**more: object) -> dict[str, Any]:
    return {
        "id": _ID,
        "at": "2026-01-31T12:00:00Z",
        "topic": "experiments",
        "partition": 3,
        "position": 7,
        "key": "k3v9x2ab",
        "reader": "searcher",
        "reason": "ValueError: cannot fold",
        "value": '{"a":\n"\x1b]0;x"}',
        "state": "open",
        "reader_kind": "processor",
        **more,
    }


def _asked(what: str) -> dict[str, str]:
    return {"id": _ID, "requested": what}


def test_readers_are_those_of_the_services(tmp_path: Path) -> None:
    """Every component of a service that can be asked; of the gateway, its projections."""
    found = {}
    store = FolderStore(tmp_path)
    services = searcher(), scheduler(), checkpoint_gc(store), webhooks(store)
    for it in (*gateway(store), *chain.from_iterable(services)):
        match it:
            case Decider():
                found[it.processor.name, it.processor.facts] = "processor"
            case Relay():
                found[it.name, it.topic] = "relay"
            case Sink():
                found[it.name, it.topic] = "sink"
            case _:
                pass
    found |= {("metrics", name): "sink" for name in ("metrics", "logs")}
    of_experiments = "experiments", "searches", "retirements"
    shown = (*of_experiments, "pools", "placements", "requests", "directory")
    more = "deliveries", "deadletter"
    found |= {("gateway", name): "projection" for name in (*shown, *more)}

    assert found == READERS


def test_open_ones_are_listed(rung: Rung, server: Scripted) -> None:
    """With --all the others, too; JSON is the answer."""
    answer = {"items": [_letter()], "next_cursor": "x", "count": 3}
    server.on("/deadletters", json_answer(answer))
    listed = rung("deadletter", "list", "--limit", "1")
    everything = rung("deadletter", "list", "--all", "--json")

    first, second = server.requested("/deadletters")
    assert (first.query.get("state"), second.query.get("state")) == ("open", None)
    for text in (_ID, "open", "k3v9x2ab", "ValueError: cannot fold", "--limit lists more"):
        assert text in listed.out
    assert everything.json == answer
    server.on("/deadletters", json_answer({"items": [], "next_cursor": None, "count": 0}))
    assert rung("deadletter", "list").out == "None is open.\n"


@pytest.mark.parametrize(
    ("letter", "said", "unsaid"),
    [
        (_letter(), ["stands still", "and then all of k3v9x2ab", "audits skip it, too"], []),
        (_letter(reader_kind="relay"), ["went on with the next", "processes the message now"], []),
        (_letter(reader_kind="projection"), ["except the contents", "in another release"], []),
        (_letter(reader_kind=None), ["takes no requests"], ["retry", "drop"]),
        (_letter(state="dropped"), ["dropped"], ["retry", "stands still"]),
    ],
)
def test_a_letter_is_shown(
    rung: Rung, server: Scripted, letter: dict[str, Any], said: list[str], unsaid: list[str]
) -> None:
    """The message commands no terminal; what can be done is said where something can."""
    server.on(_PATH, json_answer(letter))
    result = rung("deadletter", "show", _ID)

    assert result.code == 0
    assert '{"a":\n"\\x1b]0;x"}' in result.out
    for text in (*said, "ValueError: cannot fold"):
        assert text in result.out
    for text in unsaid:
        assert text not in result.out
    assert rung("deadletter", "show", _ID, "--json").json == letter


def test_a_retry_is_asked_for(rung: Rung, server: Scripted) -> None:
    """It says where to look for what came of it."""
    server.on(f"{_PATH}/retry", json_answer(_asked("retry"), 202))
    result = rung("deadletter", "retry", _ID)

    assert f"`rung deadletter show {_ID}`" in result.out
    assert server.requested(f"{_PATH}/retry")[0].headers["Idempotency-Key"]
    assert rung("deadletter", "retry", _ID, "--json").json == _asked("retry")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 6), ("", 130)])
def test_a_drop_is_confirmed(
    rung: Rung,
    server: Scripted,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
) -> None:
    """What it means is said before; without a yes nothing is dropped."""
    server.on(_PATH, json_answer(_letter()))
    server.on(f"{_PATH}/drop", json_answer(_asked("drop"), 202))
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    result = rung("deadletter", "drop", _ID)

    assert result.code == code
    assert "skips the message for ever" in result.err
    assert len(server.requested(f"{_PATH}/drop")) == (code == 0)


def test_a_drop_in_a_script_asks_nothing(rung: Rung, server: Scripted) -> None:
    """With --yes the answer is all that is printed."""
    server.on(f"{_PATH}/drop", json_answer(_asked("drop"), 202))
    assert rung("deadletter", "drop", _ID, "--yes", "--json").json == _asked("drop")
    refused = problem(409, "gateway takes no requests about messages of logs")
    server.on(f"{_PATH}/drop", refused)
    result = rung("deadletter", "drop", _ID, "--yes")
    assert result.code == 6
    assert "gateway takes no requests" in result.err


@pytest.mark.parametrize("name", ["7", "a/b/c", "a/b/../3", "a/b//3", "a/b/c/d/e"])
def test_an_id_has_four_parts(rung: Rung, server: Scripted, name: str) -> None:
    """Anything else is wrong usage, and nothing is asked."""
    result = rung("deadletter", "show", name)

    assert result.code == 2
    assert "READER/TOPIC/PARTITION/POSITION" in result.err
    assert server.requested(f"/deadletters/{name}") == []
