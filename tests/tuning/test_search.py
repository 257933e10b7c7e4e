"""The experiment that `rung.tune` submits, and what it refuses."""

import json
from typing import Any

import msgspec
import pytest

import rung
from rung.api import Experiment
from rung.client import Client, Conflict, ExperimentFailed, ExperimentHandle
from rung.config import load
from rung.events import RungError
from support import recorded_answers

pytestmark = pytest.mark.processes


class Submitted(Exception):
    """Ends `rung.tune` at its submission."""

    def __init__(self, sent: dict[str, Any]) -> None:
        self.sent = sent
        super().__init__()


class Refusing(Client):
    """Takes what is submitted, and does not go on."""

    def submit(self, config: Any, *_: Any, **__: Any) -> Any:
        """Raise it."""
        raise Submitted(config)


class EndsFirst(Client):
    """Its experiment ends by itself between its third failed trial and the request to kill it."""

    def submit(self, *_: Any, **__: Any) -> ExperimentHandle:
        """Return it."""
        return ExperimentHandle(self, "k3v9x2ab", [])

    def wait(self, experiment_id: str, *, note: Any = None, **_: Any) -> Experiment:
        """Return it as it ended; `note` gets it as it was before."""
        trials = [recorded_answers.trial(index, "errored", best=None) for index in range(3)]
        if note is not None:
            note(self._answered("active", trials))
        return self._answered("errored", trials)

    def ask(self, *_: Any, **__: Any) -> Any:
        """Raise what the gateway answers once an experiment has ended."""
        raise Conflict("experiment k3v9x2ab has ended (errored); it cannot be killed")

    def failure(self, experiment: Experiment) -> ExperimentFailed:
        """Return it without a traceback."""
        return ExperimentFailed(experiment, "")

    def _answered(self, state: str, trials: list[dict[str, Any]]) -> Experiment:
        fields = recorded_answers.experiment(state, best=None, trials=trials)
        return msgspec.convert(fields, Experiment)


def plain(params: Any) -> Any:
    """Return the metric."""
    return params["x"]


def reporting(params: Any, run: Any) -> None:
    """Report the metric."""
    for step in run:
        run.report(loss=params["x"] * step)


def _submitted(function: Any, **options: Any) -> dict[str, Any]:
    """Return the whole configuration that a call submits."""
    return load(json.dumps(_sent(function, **options)), today_seed=1).expanded()


def _sent(function: Any, **options: Any) -> dict[str, Any]:
    """Return the fields that a call submits."""
    with Refusing("http://127.0.0.1:9") as client, pytest.raises(Submitted) as caught:
        rung.tune(function, {"x": rung.uniform(0, 1, count=3)}, client=client, **options)
    return caught.value.sent


def test_a_plain_function_is_searched_at_random() -> None:
    """With one step, the metric's name and side, and no restarts of what raises."""
    config = _submitted(plain, metric="accuracy", mode="max", trials=7, seed=5, slots=2)
    searcher = config["searcher"]
    assert (config["name"], config["entrypoint"]) == ("plain", "python3 -m rung.function")
    assert (searcher["name"], searcher["max_trials"], searcher["max_time"]) == ("random", 7, 1)
    assert (searcher["metric"], searcher["smaller_is_better"]) == ("accuracy", False)
    assert config["reproducibility"]["experiment_seed"] == 5
    assert config["resources"]["slots_per_trial"] == 2
    assert config["max_restarts"] == 0


def test_the_side_of_the_metric_is_sent_if_it_was_given() -> None:
    """So that an accuracy whose side was not given is warned of."""
    assert "smaller_is_better" not in _sent(plain, metric="accuracy")["searcher"]
    assert _sent(plain, metric="accuracy", mode="min")["searcher"]["smaller_is_better"] is True
    assert _submitted(plain)["searcher"]["smaller_is_better"] is True


def test_a_function_that_reports_is_stopped_early() -> None:
    """By ASHA, as soon as there is a length; without one by nothing."""
    searcher = _submitted(reporting, length=30)["searcher"]
    assert (searcher["name"], searcher["stop_once"]) == ("async_halving", True)
    assert (searcher["time_metric"], searcher["max_time"]) == ("steps", 30)
    assert searcher["num_rungs"] == 3
    unbounded = _submitted(reporting)["searcher"]
    assert (unbounded["name"], unbounded["max_time"]) == ("random", None)


@pytest.mark.parametrize(
    "method",
    [
        "random",
        "asha",
        "adaptive_asha",
        "hyperband",
        "grid",
        {"name": "asha", "divisor": 3, "stop_once": False},
        {"name": "random", "max_length": {"epochs": 9}},
    ],
    ids=str,
)
def test_each_method_is_accepted(method: Any) -> None:
    """With no more than a length, by its name or as a section of an experiment file."""
    searcher = _submitted(reporting, length=9, method=method)["searcher"]
    assert searcher["max_time"] == 9


def test_further_fields_go_into_their_sections() -> None:
    """`config` has any field of an experiment file, beside those of the arguments."""
    more = {"resources": {"priority": 3}, "labels": ["a"], "max_restarts": 2}
    config = _submitted(plain, slots=2, config=more, concurrent=4, name="other")
    assert (config["resources"]["slots_per_trial"], config["resources"]["priority"]) == (2, 3)
    assert (config["labels"], config["max_restarts"], config["name"]) == (["a"], 2, "other")
    assert config["searcher"]["max_concurrent_trials"] == 4


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (plain, {"length": 5}, "reports nothing on its way; write `def train(params, run)`"),
        (plain, {"method": "asha"}, "compares trials on their way"),
        (reporting, {"method": "hyperband"}, "and give a length"),
        (plain, {"mode": "maximize"}, "write 'min' if a smaller value is better, or 'max'"),
        (5, {}, "5 is no function"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    function: Any, options: dict[str, Any], says: str
) -> None:
    """Before anything is sent or started, with what to write."""
    with Refusing("http://127.0.0.1:9") as client, pytest.raises(RungError) as refused:
        rung.tune(function, {"x": [1]}, client=client, **options)
    assert says in str(refused.value)


def test_a_lambda_has_a_name() -> None:
    """One that an experiment may have."""
    assert _submitted(lambda params: params["x"])["name"] == "function"


def test_a_search_that_ends_before_it_is_killed_is_explained() -> None:
    """Every trial fails; that the experiment is over already is no error of the caller's."""
    with EndsFirst("http://127.0.0.1:9") as client, pytest.raises(ExperimentFailed) as caught:
        rung.tune(plain, {"x": rung.uniform(0, 1)}, client=client, quiet=True)
    assert caught.value.experiment.state == "errored"
