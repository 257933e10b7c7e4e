"""`rung edit`, `rung archive`, `rung unarchive`."""

import json
from typing import Any

from cli.conftest import Rung
from support.scripted_server import Scripted, json_answer

PATH = "/experiments/k3v9x2ab/description"


def _description(**more: Any) -> dict[str, Any]:
    return {
        "experiment_id": "k3v9x2ab",
        "name": "digits [red]",
        "description": "",
        "labels": ["keep"],
        "notes": "a\nb",
        "archived": False,
        "version": 3,
    } | more


def test_edit_sends_what_is_given(server: Scripted, rung: Rung) -> None:
    """Several labels; an empty text is a text. What is not given is not sent."""
    server.on(PATH, json_answer(_description()))
    labels = ("--label", "a b", "--label", "c", "--remove-label", "d")
    result = rung("edit", "k3v9x2ab", "--notes", "", *labels)
    assert result.code == 0
    sent = json.loads(server.requests[0].body)
    assert sent == {"notes": "", "add_labels": ["a b", "c"], "remove_labels": ["d"]}
    assert server.requests[0].method == "POST"
    assert "digits [red]" in result.out


def test_edit_without_a_change_shows(server: Scripted, rung: Rung) -> None:
    """Nothing is sent then; --json is the API's record."""
    server.on(PATH, json_answer(_description()))
    assert "keep" in rung("edit", "k3v9x2ab").out
    assert rung("edit", "k3v9x2ab", "--json").json == _description()
    assert {it.method for it in server.requests} == {"GET"}


def test_archive_one(server: Scripted, rung: Rung) -> None:
    """Without asking."""
    server.on(PATH, json_answer(_description(archived=True)))
    result = rung("archive", "k3v9x2ab")
    assert (result.code, result.out) == (
        0,
        "Experiment k3v9x2ab (digits [red]) is archived.\n",
    )
    assert json.loads(server.requests[0].body) == {"archived": True}


def test_unarchive_looks_among_archived_ones(server: Scripted, rung: Rung) -> None:
    """A filter that names others would select nothing that can come back."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    assert rung("unarchive", "--where", "label:x").out == "0 experiments in lists again.\n"
    assert server.requests[0].query["filter"] == "label:x archived:true"
    assert rung("archive").code == 2
