"""`rung search`, and `rung list --saved`."""

from typing import Any

import msgspec

from cli.conftest import Rung
from support import recorded_answers
from support.scripted_server import Scripted, json_answer

_SEARCH: dict[str, Any] = {
    "id": "s1",
    "name": "broken",
    "version": 1,
    "created_at": "2026-01-31T12:00:00Z",
    "changed_at": "2026-01-31T12:00:00Z",
    "query": "state:errored owner:me",
    "workspace_id": None,
    "workspace": None,
    "user": "anna",
    "editable": True,
}
_SHARED = _SEARCH | {
    "id": "s2",
    "query": "label:x",
    "workspace_id": "default",
    "workspace": "default",
}


def _page(*items: Any) -> Any:
    return json_answer({"items": items, "next_cursor": None})


def test_saved_listed_and_removed(server: Scripted, rung: Rung) -> None:
    """Each says what it did."""
    server.on("POST /searches", json_answer(_SEARCH, 201))
    saved = rung("search", "save", "broken", "state:errored", "owner:me")
    assert saved.out == "Search broken is saved: `rung list --saved broken`.\n"
    sent = msgspec.json.decode(server.requested("/searches")[-1].body)
    assert (sent["name"], sent["query"]) == ("broken", "state:errored owner:me")
    server.on("GET /searches", _page(_SEARCH, _SHARED))
    assert "state:errored owner:me" in rung("search", "list").out
    assert rung("search", "list", "--json").json == [_SEARCH, _SHARED]
    server.on("/searches/broken/delete", json_answer({"id": "s1"}))
    assert rung("search", "remove", "broken").out == "Search broken is removed.\n"
    server.on("GET /searches", _page())
    assert "rung search save" in rung("search", "list").out


def test_a_list_by_a_saved_search(server: Scripted, rung: Rung) -> None:
    """One's own comes before a shared one of its name; more terms narrow it."""
    server.on("GET /searches", _page(_SHARED, _SEARCH))
    server.on("/experiments", _page(recorded_answers.summary()))
    assert rung("list", "--saved", "broken", "newer:7d").code == 0
    assert rung("list", "--saved", "s2").code == 0
    filters = [request.query["filter"] for request in server.requested("/experiments")]
    assert filters == ["state:errored owner:me newer:7d", "label:x"]
    missing = rung("list", "--saved", "none")
    assert "there is no saved search none; `rung search list` lists them" in missing.err
    server.on("GET /searches", _page(_SHARED, _SHARED | {"id": "s3"}))
    assert "s2, s3" in rung("list", "--saved", "broken").err
