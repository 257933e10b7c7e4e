"""`rung list`, `rung show`, `rung best`: tables for people, JSON for scripts."""

import re
import webbrowser
from typing import Any

import click
import pytest

from cli.conftest import EXPERIMENT, Result, Rung, stream
from rung.cli.connection_options import experiment_ids
from rung.cli.group import rung as group
from support import recorded_answers
from support.scripted_server import TOKEN, Scripted, json_answer, problem

_SHOWN_TRIALS = json_answer(
    {"items": recorded_answers.experiment()["trials"], "next_cursor": None}
)


def test_list(server: Scripted, rung: Rung) -> None:
    """The list shows what counts, user text as it is; --json is the API's page."""
    page = {
        "items": [recorded_answers.summary(), recorded_answers.summary("active")],
        "next_cursor": "c1",
    }
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


def test_a_list_is_filtered(server: Scripted, rung: Rung) -> None:
    """Terms are sent as they are, one or several; those with a minus stand in quotes."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    assert rung("list", "state:errored", "best<0.1 -label:keep").out == "No such experiments.\n"
    query = {"filter": "state:errored best<0.1 -label:keep", "limit": "50"}
    assert server.requests[0].query == query


def test_an_empty_list_says_what_to_do(server: Scripted, rung: Rung) -> None:
    """A newcomer is told how to begin."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    assert "rung submit" in rung("list").out


def test_show(server: Scripted, rung: Rung) -> None:
    """An experiment is shown with trials, hyperparameters and checkpoints."""
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment()))
    page = {"items": [recorded_answers.checkpoint()], "next_cursor": None}
    server.on(f"{EXPERIMENT}/checkpoints", json_answer(page))
    server.on(f"{EXPERIMENT}/trials", _SHOWN_TRIALS)
    result = rung("show", "k3v9x2ab")
    assert result.code == 0
    for words in (
        "k3v9x2ab.1",
        f"{server.url}/#/x/k3v9x2ab\n",
        "62% of all in full",
        "1 stored",
        "bracket",
    ):
        assert words in result.out
    shown = rung("show", "k3v9x2ab", "--json").json
    assert shown == recorded_answers.experiment() | {
        "checkpoints": [recorded_answers.checkpoint()]
    }


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("errored", 1)])
def test_show_and_follow(state: str, code: int, server: Scripted, rung: Rung) -> None:
    """With -f it is watched until it ended, and the exit code says how; a trial is refused."""
    running, ended = (json_answer(recorded_answers.experiment(each)) for each in ("active", state))
    server.on(EXPERIMENT, running, running, ended)
    server.on(f"{EXPERIMENT}/trials", _SHOWN_TRIALS)
    server.on(f"{EXPERIMENT}/events", stream({"type": "x"}))
    result = rung("show", "k3v9x2ab", "-f")
    assert result.code == code
    shown, _, end = result.out.partition(f"k3v9x2ab {state} after")
    assert "62% of all in full" in shown
    assert end
    server.on(EXPERIMENT, running, ended)
    followed = rung("show", "k3v9x2ab", "-f", "--json")
    assert (followed.code, followed.json["state"]) == (code, state)
    server.on("/trials/k3v9x2ab.0", json_answer(recorded_answers.trial()))
    assert rung("show", "k3v9x2ab.0", "-f").code == 2


def _trials(server: Scripted, *, smaller: bool = True) -> None:
    """Have an experiment with four trials, one of which has no validation."""
    trials = [
        recorded_answers.trial(
            index,
            best=None if value is None else {"value": value, "steps": 100},
            hparams={"lr": lr, "width": 32, "opt": {"name": "[bold]adam" if index else "sgd"}},
        )
        for index, (value, lr) in enumerate([(0.3, 0.1), (None, 0.01), (0.1, 1), (0.2, 0.001)])
    ]
    config = {"name": "digits", "searcher": {"smaller_is_better": smaller}}
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment(trials=trials, config=config)))
    sign = 1 if smaller else -1
    ranked = sorted(
        trials, key=lambda it: sign * it["best"]["value"] if it["best"] else float("inf")
    )
    server.on(f"{EXPERIMENT}/trials", json_answer({"items": ranked, "next_cursor": None}))
    server.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": [], "next_cursor": None}))


def _order(result: Result) -> list[str]:
    """Return the trials of an answer's table, in its order."""
    rows = [line.split()[0] for line in result.out.splitlines() if line.startswith("k3v9x2ab.")]
    return [row.rpartition(".")[2] for row in rows]


def test_the_best_trials_come_first(server: Scripted, rung: Rung) -> None:
    """By the metric, whichever way it is to go; trials without a value are the last."""
    _trials(server)
    assert _order(rung("show", "k3v9x2ab")) == ["2", "3", "0", "1"]
    assert _order(rung("show", "k3v9x2ab", "--sort", "-best")) == ["0", "3", "2", "1"]
    assert _order(rung("show", "k3v9x2ab", "--sort", "trial")) == ["0", "1", "2", "3"]
    assert _order(rung("show", "k3v9x2ab", "--sort", "-lr")) == ["2", "0", "1", "3"]
    assert _order(rung("show", "k3v9x2ab", "--sort", "opt.name")) == ["1", "2", "3", "0"]
    _trials(server, smaller=False)
    assert _order(rung("show", "k3v9x2ab")) == ["0", "3", "2", "1"]


def test_fewer_trials(server: Scripted, rung: Rung) -> None:
    """The best so many; how many more there are is said on standard error."""
    _trials(server)
    result = rung("show", "k3v9x2ab", "--limit", "3")
    assert _order(result) == ["2", "3", "0"]
    assert result.err == "1 more trial is not shown; --all shows it\n"
    assert _order(rung("show", "k3v9x2ab", "--limit", "1", "--all")) == ["2", "3", "0", "1"]


def test_hyperparameters_that_differ_are_columns(server: Scripted, rung: Rung) -> None:
    """One that all trials share is left out; --columns takes any."""
    _trials(server)
    lines = rung("show", "k3v9x2ab").out.splitlines()
    heads = next(line.split() for line in lines if line.startswith("trial "))
    first = ["trial", "state", "bracket", "rung", "trained", "best", "restarts"]
    assert heads == [*first, "lr", "opt.name", "why"]

    result = rung("show", "k3v9x2ab", "--columns", "trial, width,hyperparameters")
    assert "k3v9x2ab.0     32  lr=0.1 width=32 opt.name=sgd" in result.out
    assert "trial       width  hyperparameters" in result.out


def test_a_search_without_rungs_shows_none(server: Scripted, rung: Rung) -> None:
    """Where trials train for one length, the column would be the same in each line."""
    plan = recorded_answers.experiment()["plan"]
    plan["brackets"] = [it | {"lengths": [16]} for it in plan["brackets"][:1]]
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment(plan=plan)))
    server.on(f"{EXPERIMENT}/trials", _SHOWN_TRIALS)
    server.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": [], "next_cursor": None}))
    shown = rung("show", "k3v9x2ab").out.splitlines()
    heading = next(line for line in shown if line.startswith("trial "))
    assert "rung" not in heading.split()
    assert "rung" in rung("show", "k3v9x2ab", "--columns", "trial,rung").out


def test_unknown_columns(server: Scripted, rung: Rung) -> None:
    """What there is is said; exit code 2."""
    _trials(server)
    server.on(
        "/experiments", json_answer({"items": [recorded_answers.summary()], "next_cursor": None})
    )
    for arguments in (
        ("show", "k3v9x2ab", "--sort", "loss"),
        ("show", "k3v9x2ab", "--columns", "trial,loss"),
        ("list", "--columns", "loss"),
    ):
        result = rung(*arguments)
        assert result.code == 2
        assert "no column 'loss'; there are " in result.err


def test_a_narrow_terminal(server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns no line is broken: columns are left out, unless they are named."""
    monkeypatch.setattr("rung.cli.output._PIPE_WIDTH", 80)
    page = {"items": [recorded_answers.summary(name="a search")] * 3}
    server.on("/experiments", json_answer(page | {"next_cursor": None}))
    listed = rung("list").out.splitlines()
    assert len(listed) == 4
    assert listed[0].split() == ["id", "name", "state", "done", "trials", "best", "took"]
    assert all(len(line) <= 80 for line in listed)
    named = rung("list", "--columns", "id,submitted,method").out.splitlines()
    assert named[0].split() == ["id", "submitted", "method"]

    _trials(server)
    shown = rung("show", "k3v9x2ab")
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert _order(shown) == ["2", "3", "0", "1"]
    table = next(line for line in shown.out.splitlines() if line.startswith("trial "))
    assert table.split()[-2:] == ["lr", "opt.name"]


def test_open_without_a_browser(
    server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints an address that lets in: of the list, an experiment, a trial."""
    monkeypatch.setattr("webbrowser._tryorder", [])
    monkeypatch.setattr("webbrowser._browsers", {})
    monkeypatch.delenv("BROWSER", raising=False)
    _trials(server)
    server.on("/trials/k3v9x2ab.0", json_answer(recorded_answers.trial() | {"checkpoints": []}))
    assert rung("open").out == f"{server.url}/#token={TOKEN}\n"
    assert rung("open", "k3v9x2ab").out == f"{server.url}/#/x/k3v9x2ab&token={TOKEN}\n"
    trial = f"{server.url}/#/x/k3v9x2ab/search?trial=0&token={TOKEN}"
    assert rung("open", "k3v9x2ab.0").out == f"{trial}\n"
    assert rung("open", "k3v9x2ab.0", "--json").json == {"id": "k3v9x2ab.0", "url": trial}


def test_open_in_a_browser(server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser gets the address with the token; the terminal does not."""
    _trials(server)
    opened: list[str] = []

    class Fake(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:  # noqa: FBT001, FBT002 - as in the base
            opened.append(url)
            return True

    monkeypatch.setattr(webbrowser, "get", Fake)
    assert rung("open", "k3v9x2ab").out == f"Opened {server.url}/#/x/k3v9x2ab\n"
    assert opened == [f"{server.url}/#/x/k3v9x2ab&token={TOKEN}"]


def test_what_errored_is_shown(server: Scripted, rung: Rung) -> None:
    """The list counts it; `show` has the causes, the commonest first, and names a log to read."""
    failures = [recorded_answers.failure(), recorded_answers.failure("OSError: no", 1, 7)]
    page = {"items": [recorded_answers.summary(failures=failures)], "next_cursor": None}
    server.on("/experiments", json_answer(page))
    assert "2 (4 errored)" in rung("list").out

    server.on(EXPERIMENT, json_answer(recorded_answers.experiment(failures=failures)))
    server.on(f"{EXPERIMENT}/trials", _SHOWN_TRIALS)
    server.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": [], "next_cursor": None}))
    out = " ".join(rung("show", "k3v9x2ab").out.split())
    assert "3 errored KeyError: 'x' (k3v9x2ab.4) 1 errored OSError: no (k3v9x2ab.7)" in out
    assert "log `rung logs k3v9x2ab.4` shows the first of them" in out

    many = [recorded_answers.failure(f"OSError: {letter}", 5, 1) for letter in "abcde"]
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment(failures=many)))
    assert "10 errored for other causes" in " ".join(rung("show", "k3v9x2ab").out.split())


def test_why_a_trial_is_as_it_is(server: Scripted, rung: Rung) -> None:
    """With the value that was compared, where the best is another; what it waits after."""
    metrics = {"error": 0.5, "epochs": 4}
    placed: dict[str, Any] = {
        "state": "stopped",
        "length": 4,
        "reason": "place 5 of 5 at length 4; 1 train on",
    }
    trials = [
        recorded_answers.trial(0, **placed, validations=[{"steps": 400, "metrics": metrics}]),
        recorded_answers.trial(1, **placed),
        recorded_answers.trial(2, state="waiting", reason=None, message="killed by signal 9"),
    ]
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment()))
    server.on(f"{EXPERIMENT}/trials", json_answer({"items": trials, "next_cursor": None}))
    lack = "pool default cannot give a trial 4 slots"
    server.on("/trials/k3v9x2ab.2", json_answer(trials[2] | {"checkpoints": []}))
    unplaced = recorded_answers.experiment("active", unplaced=lack)
    server.on(EXPERIMENT, json_answer(unplaced))
    assert re.search(rf"^waiting +{lack}$", rung("show", "k3v9x2ab.2").out, re.MULTILINE)
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment()))
    lines = rung("show", "k3v9x2ab", "--columns", "trial,why").out.splitlines()[-3:]
    assert lines == [
        "k3v9x2ab.0  0.5: place 5 of 5 at length 4; 1 train on",
        "k3v9x2ab.1  place 5 of 5 at length 4; 1 train on",
        "k3v9x2ab.2  killed by signal 9",
    ]


def test_show_a_trial(server: Scripted, rung: Rung) -> None:
    """A name with a dot is a trial."""
    trial = recorded_answers.trial(parent="k3v9x2ab.3") | {
        "checkpoints": [recorded_answers.checkpoint()],
        "best_checkpoint_id": "k3v9x2ab.0.1.1600",
        "best_checkpoint_note": None,
    }
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    result = rung("show", "k3v9x2ab.0")
    assert ["started", "from", "k3v9x2ab.3"] in [line.split() for line in result.out.splitlines()]
    assert "error=0.125" in result.out
    assert "16 of 16" in result.out
    assert rung("show", "k3v9x2ab.0", "--json").json == trial


@pytest.mark.parametrize(
    ("fixed", "shown"),
    [
        (None, "every 1 min 00 s; one holds training for 0.25 s"),
        ({"epochs": 1}, "every 1 epoch"),
        ({"batches": 0}, "no period"),
    ],
)
def test_show_how_often_a_trial_checkpoints(
    fixed: dict[str, int] | None, shown: str, server: Scripted, rung: Rung
) -> None:
    """By its file, or as its newest run chose; a server without metrics keeps no trial back."""
    server.on("/trials/k3v9x2ab.0", json_answer(recorded_answers.trial() | {"checkpoints": []}))
    assert "checkpoints" not in rung("show", "k3v9x2ab.0").out
    config = {"searcher": {"metric": "error"}, "min_checkpoint_period": fixed}
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment(config=config)))
    curve = {"trial_id": "k3v9x2ab.0", "kind": "system", "name": "x", "names": []}
    server.on(
        "/trials/k3v9x2ab.0/metrics",
        json_answer({**curve, "points": []}),
        json_answer({**curve, "points": []}),
        json_answer({**curve, "points": [[1, 90.0, 1], [2, 60.0, 2]]}),
        json_answer({**curve, "points": [[2, 0.25, 2]]}),
    )
    if fixed is None:  # nothing is chosen yet
        assert "checkpoints" not in rung("show", "k3v9x2ab.0").out
    assert f"checkpoints  {shown}\n" in rung("show", "k3v9x2ab.0").out


def test_show_by_a_name_with_dots(server: Scripted, rung: Rung) -> None:
    """The server is asked what it means; one that means nothing is exit code 4, with near ones."""
    server.on("/find", json_answer({"kind": "trial", "id": "x", "experiment_id": "y"}))
    server.on("/trials/net v1.2.0", json_answer(recorded_answers.trial() | {"checkpoints": []}))
    assert rung("show", "net v1.2.0").code == 0
    assert server.requested("/find")[0].query == {"name": "net v1.2.0"}
    server.on("/find", problem(404, "there is no trial 'net v1.3.0'; did you mean net v1.2?"))
    result = rung("show", "net v1.3.0")
    assert (result.code, "did you mean" in result.err) == (4, True)


def test_ids_and_names_are_completed(server: Scripted) -> None:
    """By their beginnings; a name that several have is not proposed, for it is refused."""
    named = [
        recorded_answers.summary() | {"id": number, "name": name}
        for number, name in (("a1", "mnist"), ("b2", "twice"), ("c3", "twice"), ("m4", "x"))
    ]
    server.on("/experiments", json_answer({"items": named, "next_cursor": None}))
    context = click.Context(group)

    def proposed(text: str) -> list[str]:
        return [item.value for item in experiment_ids(context, click.Argument(["x"]), text)]

    assert proposed("m") == ["m4", "mnist"]
    assert proposed("twi") == []
    assert proposed("") == ["a1", "b2", "c3", "m4"]


def test_one_of_a_unit(server: Scripted, rung: Rung) -> None:
    """Units are in the singular where there is one."""
    one = {"value": 0.125, "steps": 1}
    trial = recorded_answers.trial(best=one) | {"checkpoints": []}
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    assert "0.125 at 1 batch\n" in rung("show", "k3v9x2ab.0").out
    server.on(
        EXPERIMENT, json_answer(recorded_answers.experiment(units_trained=1, units_full=None))
    )
    server.on(f"{EXPERIMENT}/trials", _SHOWN_TRIALS)
    server.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": [], "next_cursor": None}))
    assert "trained      1 epoch\n" in rung("show", "k3v9x2ab").out


def test_best_says_which_value_its_checkpoint_has(server: Scripted, rung: Rung) -> None:
    """Where the one of the best value is gone, the other one's value and step are said."""
    note = "the best that is left, of step 1, with error 0.5; there is none of step 1600"
    other = recorded_answers.checkpoint("k3v9x2ab.0.1.1", steps_completed=1)
    server.on(
        f"{EXPERIMENT}/best",
        json_answer(
            recorded_answers.best(checkpoint=other, checkpoint_value=0.5, checkpoint_note=note)
        ),
    )
    shown = rung("best", "k3v9x2ab").out
    of_checkpoint = ("checkpoint", "which is")
    assert [line for line in shown.splitlines() if line.startswith(of_checkpoint)] == [
        "checkpoint  k3v9x2ab.0.1.1 (2.0 KiB)",
        f"which is    {note}",
    ]
    server.on(
        f"{EXPERIMENT}/best",
        json_answer(recorded_answers.best(checkpoint=None, checkpoint_value=None)),
    )
    shown = rung("best", "k3v9x2ab").out
    assert shown.count("checkpoint") == 1
    assert "none of this trial is stored" in shown


def test_best(server: Scripted, rung: Rung) -> None:
    """The best trial comes with its hyperparameters and the way to its checkpoint."""
    server.on(f"{EXPERIMENT}/best", json_answer(recorded_answers.best()))
    result = rung("best", "k3v9x2ab")
    assert "0.125" in result.out
    assert "opt.wd" in result.out
    assert result.out.count("checkpoint") == 1
    assert "rung download k3v9x2ab.0.1.1600" in result.out
    assert rung("best", "k3v9x2ab", "--json").json == recorded_answers.best()


def test_best_of_a_trial_names_the_commands_for_one(server: Scripted, rung: Rung) -> None:
    """It is no unknown experiment."""
    server.on("/experiments/k3v9x2ab.0/best", problem(404, "no such experiment"))
    result = rung("best", "k3v9x2ab.0")
    assert (result.code, "`rung show` shows a trial's best value" in result.err) == (2, True)


def test_best_before_there_is_one(server: Scripted, rung: Rung) -> None:
    """Before the first validation, the gateway's words are shown; exit code 6."""
    server.on(f"{EXPERIMENT}/best", problem(409, "no trial has reported a finite 'error' yet"))
    result = rung("best", "k3v9x2ab")
    assert (result.code, result.out) == (6, "")
    assert result.err == "Error: no trial has reported a finite 'error' yet\n"
