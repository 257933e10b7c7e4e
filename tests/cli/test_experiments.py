"""`rung list`, `rung show`, `rung best`: tables for people, JSON for scripts."""

from cli.conftest import EXPERIMENT, Rung
from client import recorded
from client.scripted import Scripted, json_answer, problem


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


def test_a_list_is_searched_and_sorted(server: Scripted, rung: Rung) -> None:
    """What is asked for is sent; an empty answer is no reason to submit anything."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    asked = ("--search", "digits 0.1", "--sort", "-name", "--name", "d*", "--actor", "ann")
    result = rung("list", *asked)
    assert result.out == "No such experiments.\n"
    query = {"q": "digits 0.1", "sort": "-name", "name": "d*", "actor": "ann", "limit": "50"}
    assert server.requests[0].query == query


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
    trial = recorded.trial(parent="k3v9x2ab.3") | {"checkpoints": [recorded.checkpoint()]}
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    result = rung("show", "k3v9x2ab.0")
    assert ["started", "from", "k3v9x2ab.3"] in [line.split() for line in result.out.splitlines()]
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
    """Before the first validation, the gateway's words are shown; exit code 6."""
    server.on(f"{EXPERIMENT}/best", problem(409, "no trial has reported a finite 'error' yet"))
    result = rung("best", "k3v9x2ab")
    assert (result.code, result.out) == (6, "")
    assert result.err == "Error: no trial has reported a finite 'error' yet\n"
