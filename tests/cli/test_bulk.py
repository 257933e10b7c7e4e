"""Verbs for several experiments: asked about once, done each by itself, reported for each."""

import json
from typing import Any

import pytest

from cli.conftest import Rung
from support import recorded_answers
from support.scripted_server import Answer, Scripted, json_answer

BATCH = "/experiments:batch"
NAMES = ("k3v9x2ab", "m4w8x2ab")
VERBS: dict[str, tuple[dict[str, Any], str]] = {
    "pause": ({"action": "pause"}, "asked to pause"),
    "resume": ({"action": "resume"}, "asked to go on"),
    "cancel": ({"action": "cancel"}, "asked to end"),
    "kill": ({"action": "kill"}, "asked to end at once"),
    "archive": ({"action": "describe", "description": {"archived": True}}, "archived"),
    "unarchive": ({"action": "describe", "description": {"archived": False}}, "in lists again"),
    "edit --label x": ({"action": "describe", "description": {"add_labels": ["x"]}}, "changed"),
    "set --max-slots 4": ({"action": "set", "resources": {"max_slots": 4}}, "changed"),
    "retention --save-trial-best 2": (
        {"action": "retain", "retention": {"save_trial_best": 2}},
        "changed",
    ),
    "delete --force": ({"action": "delete", "force": True}, "deleted"),
}
"""Command → what is sent besides ids, and what is said."""


def _item(name: str, /, **more: Any) -> dict[str, Any]:
    return {"experiment_id": name, "name": "digits [red]", "outcome": "done"} | more


def _refused(name: str) -> dict[str, Any]:
    return _item(name, name=None, outcome="refused", kind="ended", reason="it has ended")


def _answer(*items: dict[str, Any], dry_run: bool = False) -> Answer:
    done = sum(it["outcome"] == "done" for it in items)
    counts = {"done": done, "refused": len(items) - done}
    return json_answer({"action": "pause", "dry_run": dry_run, "items": items} | counts)


def _listed(server: Scripted, *names: str) -> None:
    """Have a filter select these, in two pages."""
    items = [recorded_answers.summary() | {"id": name} for name in names]
    pages = [
        {"items": items[:1], "next_cursor": "c1"},
        {"items": items[1:], "next_cursor": None},
    ]
    server.on("/experiments", *map(json_answer, pages))


def _sent(server: Scripted) -> list[dict[str, Any]]:
    """Return what was sent in batches, without defaults."""
    found = [json.loads(it.body) for it in server.requests if it.path.endswith(":batch")]
    return [_without_defaults(each) for each in found]


def _without_defaults(given: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in given.items():
        is_flag = name in {"dry_run", "force", "now"} and value is False
        if value is not None and value != [] and not is_flag:
            kept[name] = _without_defaults(value) if isinstance(value, dict) else value
    return kept


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_for_those_of_a_filter(server: Scripted, rung: Rung, verb: str) -> None:
    """One request; each outcome is printed, and one that is refused shows in the exit code."""
    wanted, done = VERBS[verb]
    _listed(server, *NAMES)
    server.on(BATCH, _answer(_item(NAMES[0]), _refused(NAMES[1])))
    result = rung(*verb.split(), "--where", "older:30d", "--yes")
    assert result.code == 1
    assert f"Experiment k3v9x2ab (digits [red]) is {done}." in result.out
    assert f"1 experiment {done}; 1 refused." in result.out
    assert result.err == "m4w8x2ab: it has ended\n"
    assert _sent(server) == [{**wanted, "ids": [*NAMES]}]
    assert server.requests[0].query["filter"].startswith("older:30d")


def test_it_asks_before_it_changes_more_than_one(
    server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal; without one it needs --yes. One of a filter is not asked about."""
    server.on(BATCH, _answer(_item(NAMES[0]), _item(NAMES[1])))
    result = rung("pause", *NAMES)
    assert result.code == 2
    assert "2 experiments would be asked to pause" in result.err
    says = [False, True]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: says.pop(0))
    assert rung("pause", *NAMES).code == 1
    assert _sent(server) == []
    assert rung("pause", *NAMES).code == 0
    _listed(server, NAMES[0])
    server.on(BATCH, _answer(_item(NAMES[0])))
    assert rung("pause", "--where", "x").code == 0
    assert [it["ids"] for it in _sent(server)] == [[*NAMES], [NAMES[0]]]


def test_many_are_sent_in_parts(server: Scripted, rung: Rung) -> None:
    """A hundred at a time; with --json all are in one document."""
    names = [f"m{number:07}" for number in range(150)]
    parts = [names[:100], names[100:]]
    server.on(BATCH, *(_answer(*map(_item, part)) for part in parts))
    result = rung("archive", *names, "--yes", "--json")
    assert result.code == 0
    assert [it["experiment_id"] for it in json.loads(result.out)["items"]] == names
    assert [it["ids"] for it in _sent(server)] == parts


def test_nothing_is_selected(server: Scripted, rung: Rung) -> None:
    """Nothing is asked and nothing is sent; without names and a filter it is wrong usage."""
    _listed(server)
    result = rung("kill", "--where", "label:x")
    assert (result.code, result.out) == (0, "0 experiments asked to end at once.\n")
    assert _sent(server) == []
    for verb in ("pause", "archive", "set --priority 1", "delete"):
        assert rung(*verb.split()).code == 2


def test_gc_says_what_a_policy_frees(server: Scripted, rung: Rung) -> None:
    """By experiment, the largest first, and in all; nothing is asked then."""
    _listed(server, *NAMES)
    items = [
        _item(NAMES[0], checkpoint_count=1, checkpoint_bytes=1024),
        _item(NAMES[1], checkpoint_count=2, checkpoint_bytes=4096),
    ]
    server.on(BATCH, _answer(*items, dry_run=True))
    result = rung("gc", "checkpoints", "--save-trial-best", "0", "--dry-run")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[1:3]] == [*reversed(NAMES)]
    assert result.out.endswith("3 checkpoints (5.0 KiB) would be deleted.\n")
    assert server.requests[0].query["filter"] == "archived:any"
    (sent,) = _sent(server)
    assert sent == {
        "action": "retain",
        "retention": {"save_trial_best": 0},
        "dry_run": True,
        "ids": [*NAMES],
    }
