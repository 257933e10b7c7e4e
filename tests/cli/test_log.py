"""`rung log`: who asked for what, for people and for scripts."""

import json

from cli.conftest import Rung, stream
from rung.client import Act
from support.scripted_server import Scripted, json_answer, problem


def _act(number: int, **more: object) -> dict[str, object]:
    return {
        "id": f"client/{number}#1",
        "at": f"2026-01-01T00:00:0{number}.000Z",
        "actor": "anna",
        "on_behalf_of": None,
        "actor_name": None,
        "on_behalf_of_name": None,
        "type": "rung.trial.kill_requested.v1",
        "subject": "k3f9x2ma.17",
        "experiment_id": "k3f9x2ma",
        "did": "killed trial k3f9x2ma.17",
    } | more


def test_log(server: Scripted, rung: Rung) -> None:
    """A line for each act, page by page; what is asked for is sent as it is."""
    first = {"items": [_act(2), _act(1, actor=None)], "next_cursor": "c", "last_event_id": "1"}
    last = {"items": [_act(0, on_behalf_of="u1")], "next_cursor": None, "last_event_id": "1"}
    server.on("/log", json_answer(first), json_answer(last))
    result = rung(
        "log", "--who", "anna", "--since", "7d", "--experiment", "k3f9", "--what", "trial"
    )
    assert [line.split("  ", 1)[1] for line in result.out.splitlines()] == [
        "anna killed trial k3f9x2ma.17",
        "unknown user killed trial k3f9x2ma.17",
        "anna (for u1) killed trial k3f9x2ma.17",
    ]
    query = {"who": "anna", "since": "7d", "experiment": "k3f9", "what": "trial", "limit": "1000"}
    assert [it.query for it in server.requests] == [query, query | {"cursor": "c"}]


def test_log_for_scripts(server: Scripted, rung: Rung) -> None:
    """With --json one record a line; --limit ends it."""
    page = {"items": [_act(2), _act(1)], "next_cursor": "c", "last_event_id": "1"}
    server.on("/log", json_answer(page))
    result = rung("log", "--json", "--limit", "2")
    assert [json.loads(line) for line in result.out.splitlines()] == page["items"]
    assert {**json.loads(result.out.splitlines()[0])} == _act(2)
    assert server.requests[0].query == {"limit": "2"}
    assert Act.__struct_fields__ == tuple(_act(1))


def test_following_has_no_end(rung: Rung) -> None:
    """What names an end cannot be followed."""
    for more in (("--until", "1h"), ("--limit", "3")):
        assert rung("log", "-f", *more).code == 2


def test_following(server: Scripted, rung: Rung) -> None:
    """The last acts, the oldest first, and then the stream, from where the list ended."""
    page = {"items": [_act(2), _act(1)], "next_cursor": "c", "last_event_id": "4.7"}
    server.on("/log", json_answer(page))
    server.on("/log/stream", stream(_act(3)), problem(404, "that is all"))
    result = rung("log", "-f", "--json", "--what", "trial")
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == [
        "client/1#1",
        "client/2#1",
        "client/3#1",
    ]
    (followed, _) = server.requested("/log/stream")
    assert followed.query == {"from": "start", "what": "trial"}
    assert followed.headers["Last-Event-ID"] == "4.7"
