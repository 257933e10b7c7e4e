"""`rung extend`: how much more is asked for, and what came of it."""

from typing import Any

import pytest

from cli.conftest import EXPERIMENT, Rung
from support import recorded_answers
from support.scripted_server import Scripted, json_answer, problem


def _shown(trials: int, length: int = 16, **more: Any) -> dict[str, Any]:
    brackets = [{"bracket": 0, "lengths": [length], "trials": trials}]
    plan = {"method": "random", "time_metric": "epochs", "brackets": brackets}
    return recorded_answers.experiment("active", plan=plan, **more)


def _accepted(**more: Any) -> dict[str, Any]:
    return {"experiment_id": "k3v9x2ab", "parent": None, "trials": None, "max_time": None} | more


@pytest.mark.parametrize(
    ("arguments", "query", "said"),
    [
        (["--trials", "+20"], {"trials": "30"}, "goes on to 30 trials in all"),
        (["--trials", "30"], {"trials": "30"}, "goes on to 30 trials in all"),
        (["--length", "+8"], {"max_time": "24"}, "goes on to 24 epochs"),
    ],
)
def test_more_is_asked_for_in_all(
    server: Scripted, rung: Rung, arguments: list[str], query: dict[str, str], said: str
) -> None:
    """What is more is added to the plan; the command returns once the search has the new one."""
    server.on(EXPERIMENT, *map(json_answer, (_shown(10), _shown(10), _shown(30, 24))))
    asked = {name: int(value) for name, value in query.items()}
    server.on(f"POST {EXPERIMENT}/extend", json_answer(_accepted(**asked), 202))
    result = rung("extend", "k3v9x2ab", *arguments)
    assert (result.code, result.out) == (0, f"Experiment k3v9x2ab {said}\n")
    assert server.requested(f"{EXPERIMENT}/extend")[0].query == query
    assert len(server.requested(EXPERIMENT)) == 3


def test_an_ended_search_is_a_new_one(server: Scripted, rung: Rung) -> None:
    """Its id is printed, and with --json the API's answer."""
    server.on(EXPERIMENT, json_answer(_shown(10)))
    answer = _accepted(experiment_id="m4w8y2zz", parent="k3v9x2ab", trials=12)
    server.on(f"POST {EXPERIMENT}/extend", json_answer(answer, 202))
    assert rung("extend", "k3v9x2ab", "--trials", "12").out == (
        "Submitted experiment m4w8y2zz, which goes on from k3v9x2ab to 12 trials in all\n"
    )
    assert rung("extend", "k3v9x2ab", "--trials", "12", "--json").json == answer


def test_a_search_that_ended_first(server: Scripted, rung: Rung) -> None:
    """Nothing came of the request, and the message says what to do; exit code 6."""
    ended = _shown(10, ended_at="2026-01-31T12:00:00Z")
    server.on(EXPERIMENT, json_answer(_shown(10)), json_answer(ended))
    server.on(f"POST {EXPERIMENT}/extend", json_answer(_accepted(trials=12), 202))
    result = rung("extend", "k3v9x2ab", "--trials", "12")
    assert (result.code, "the same command makes a new experiment" in result.err) == (6, True)


def test_what_is_refused(server: Scripted, rung: Rung) -> None:
    """By the method, with its reason; and what is no number, before anything is asked."""
    server.on(EXPERIMENT, json_answer(_shown(10)))
    server.on(f"POST {EXPERIMENT}/extend", problem(409, "its rungs follow from max_time"))
    result = rung("extend", "k3v9x2ab", "--length", "+1")
    assert (result.code, "its rungs follow" in result.err) == (6, True)
    for wrong in ([], ["--trials", "1", "--length", "1"], ["--trials", "many"], ["--length", "+"]):
        assert rung("extend", "k3v9x2ab", *wrong).code == 2
