"""`rung set`."""

import json
from typing import Any

from cli.conftest import Rung
from support.scripted_server import Scripted, json_answer

PATH = "/experiments/k3v9x2ab/resources"


def _resources(**more: Any) -> dict[str, Any]:
    return {
        "experiment_id": "k3v9x2ab",
        "pool": "default",
        "priority": 42,
        "weight": 1.0,
        "max_slots": None,
        "max_slot_hours": None,
        "slots_per_trial": 2,
        "version": 0,
    } | more


def test_what_is_given_is_sent(server: Scripted, rung: Rung) -> None:
    """And nothing else; `none` is no limit."""
    server.on(PATH, json_answer(_resources(priority=7)))
    result = rung("set", "k3v9x2ab", "--priority", "7", "--max-slots", "none", "--pool", "west")
    assert result.code == 0
    assert json.loads(server.requests[0].body) == {"priority": 7, "max_slots": 0, "pool": "west"}
    assert server.requests[0].method == "POST"
    assert [line.split() for line in result.out.splitlines()][2] == ["priority", "7"]


def test_slot_hours(server: Scripted, rung: Rung) -> None:
    """A number, or `none`; what there is is shown."""
    server.on(PATH, json_answer(_resources(max_slot_hours=12.5)))
    result = rung("set", "k3v9x2ab", "--max-slot-hours", "12.5")
    assert json.loads(server.requests[0].body) == {"max_slot_hours": 12.5}
    assert ["max", "slot-hours", "12.5"] in [line.split() for line in result.out.splitlines()]
    rung("set", "k3v9x2ab", "--max-slot-hours", "none")
    assert json.loads(server.requests[1].body) == {"max_slot_hours": 0.0}


def test_without_an_option_it_shows(server: Scripted, rung: Rung) -> None:
    """Nothing is sent then; --json is the API's record."""
    server.on(PATH, json_answer(_resources(max_slots=4)))
    assert "slots per trial" in rung("set", "k3v9x2ab").out
    found = json.loads(rung("set", "k3v9x2ab", "--json").out)
    assert found == _resources(max_slots=4)
    assert {request.method for request in server.requests} == {"GET"}


def test_what_is_no_number_is_refused(rung: Rung) -> None:
    """Before anything is sent."""
    wrong = [("--max-slot-hours", value) for value in ("0", "-1", "inf", "nan", "x")]
    for given in (("--max-slots", "0"), ("--priority", "100"), ("--weight", "0"), *wrong):
        assert rung("set", "k3v9x2ab", *given).code == 2
    assert rung("set", "a", "b").code == 2
