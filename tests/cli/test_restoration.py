"""`rung restore`, `rung list --deleted`, and what `rung delete` says of the way back."""

from typing import Any

from cli.conftest import EXPERIMENT, Rung
from support import recorded_answers
from support.scripted_server import Scripted, json_answer, problem

_BATCH = "/experiments:batch"
_UNTIL = "2026-02-03T12:00:00Z"
_DELETION: dict[str, Any] = {
    "experiment_id": "k3v9x2ab",
    "name": "digits",
    "state": "completed",
    "dry_run": True,
    "trial_count": 2,
    "checkpoint_count": 1,
    "checkpoint_bytes": 2048,
    "log_lines": 1,
    "log_bytes": 1500,
    "code_shared": False,
    "dependents": [],
    "restorable_until": _UNTIL,
}


def _item(**more: Any) -> dict[str, Any]:
    return {"experiment_id": "k3v9x2ab", "name": "digits", "outcome": "done"} | more


def _answer(action: str, *items: dict[str, Any]) -> Any:
    done = sum(it["outcome"] == "done" for it in items)
    counts = {"done": done, "refused": len(items) - done}
    return json_answer({"action": action, "dry_run": False, "items": items} | counts)


def test_delete_says_how_to_take_it_back(server: Scripted, rung: Rung) -> None:
    """Until when, and by which command; `--now` is sent as it is."""
    server.on(f"{EXPERIMENT}/delete", json_answer(_DELETION, 202))
    hidden = problem(410, "it is deleted", type="urn:rung:problem:restorable")
    server.on(f"{EXPERIMENT}/trials", hidden)
    result = rung("delete", "k3v9x2ab", "--yes")
    assert result.code == 0
    assert "restorable   until 2026-02-03" in result.out
    assert "`rung restore k3v9x2ab` takes that back." in result.out

    server.on(f"{EXPERIMENT}/delete", json_answer(_DELETION | {"restorable_until": None}, 202))
    at_once = rung("delete", "k3v9x2ab", "--yes", "--now")
    assert "no: it is deleted at once" in at_once.out
    assert "rung restore" not in at_once.out
    assert server.requested(f"{EXPERIMENT}/delete")[-1].query == {"now": "true"}


def test_restored(server: Scripted, rung: Rung) -> None:
    """It returns once they are there; what is refused is reported."""
    server.on(_BATCH, _answer("restore", _item()))
    server.on(f"{EXPERIMENT}/trials", json_answer({"items": [], "next_cursor": None}))
    result = rung("restore", "k3v9x2ab")
    assert result.code == 0
    assert "Experiment k3v9x2ab (digits) is restored." in result.out
    assert b'"action":"restore"' in server.requested(_BATCH)[0].body
    refused = _item(name=None, outcome="refused", reason="it is not deleted")
    server.on(_BATCH, _answer("restore", refused))
    again = rung("restore", "k3v9x2ab")
    assert (again.code, again.err) == (1, "k3v9x2ab: it is not deleted\n")


def test_a_filter_selects_among_deleted_ones(server: Scripted, rung: Rung) -> None:
    """`--where` looks at what can be restored, and so does `rung list --deleted`."""
    shown = recorded_answers.summary() | {"restorable_until": _UNTIL}
    server.on("/experiments", json_answer({"items": [shown], "next_cursor": None}))
    server.on(_BATCH, _answer("restore", _item()))
    server.on(f"{EXPERIMENT}/trials", json_answer({"items": [], "next_cursor": None}))
    assert rung("restore", "--where", "owner:me", "--yes").code == 0
    listed = rung("list", "--deleted")
    assert "2026-02-03" in listed.out
    queries = [request.query for request in server.requested("/experiments")]
    assert [query["deleted"] for query in queries] == ["true", "true"]
    assert "deleted" not in (rung("list"), server.requested("/experiments")[-1].query)[1]
