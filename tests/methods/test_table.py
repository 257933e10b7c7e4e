"""The table of methods, and what runs read of their method's options."""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from rung.events.errors import InvalidConfig
from rung.methods.table import METHODS, read_options, rungs_passed
from support.searcher.scenario import config

ASHA: dict[str, Any] = {"name": "async_halving", "max_time": 16, "max_trials": 48, "num_rungs": 3}
ADAPTIVE: dict[str, Any] = {"name": "adaptive_asha", "max_time": 16, "max_trials": 48}


def test_methods_and_examples_have_names_of_their_own() -> None:
    """No two methods share a name, an alias, a machine's tag or an example's name."""
    names = [name for key, it in METHODS.items() for name in (key, *it.ALIASES)]
    tags = [state.__struct_config__.tag for it in METHODS.values() for state in it.STATES]
    examples = [name for it in METHODS.values() for name in it.EXAMPLES]
    for each in (names, tags, examples):
        assert len(each) == len(set(each))


@pytest.mark.parametrize(
    ("name", "fields", "path"),
    [
        ("pbt", {}, "searcher.name"),
        ("random", {}, "searcher.max_trials"),
        ("async_halving", {"max_trials": 3}, "searcher.num_rungs"),
        ("adaptive_asha", {"max_trials": 3, "max_time": None}, "searcher.max_time"),
        ("hyperband", {"max_time": None}, "searcher.max_time"),
        ("random", {"max_trials": "3"}, "searcher.max_trials"),
    ],
)
def test_what_cannot_be_searched_is_refused(name: str, fields: dict[str, Any], path: str) -> None:
    """A configuration that lacks what its method needs is refused by the field's path."""
    with pytest.raises(InvalidConfig) as caught:
        read_options(config(name, **fields)["searcher"])
    assert caught.value.problems[0][0] == path


def test_options_cost_a_trial_no_pydantic() -> None:
    """A run reads its rungs without the models of the experiment file."""
    script = "import sys, rung.methods.table; sys.exit('pydantic' in sys.modules)"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": path}, check=True)


def test_an_alias_is_the_method() -> None:
    """Null is not given, and `asha` means `async_halving`."""
    options = read_options(config("asha", max_trials=3, num_rungs=2, divisor=None)["searcher"])
    assert type(options) is METHODS["async_halving"]
    assert msgspec.structs.asdict(options)["divisor"] == 4.0


@pytest.mark.parametrize(
    ("searcher", "passed"),
    [
        (ASHA, [1, 4, 16]),
        (ASHA | {"name": "asha", "divisor": 2.0}, [4, 8, 16]),
        (ASHA | {"num_rungs": 5}, [1, 4, 16]),
        (ADAPTIVE, [1, 4, 16]),
        (ADAPTIVE | {"divisor": 2.0, "max_rungs": None}, [1, 2, 4, 8, 16]),
        (ADAPTIVE | {"divisor": 2.0, "max_rungs": 3}, [4, 8, 16]),
        (ADAPTIVE | {"max_trials": 3}, [16]),
        (ADAPTIVE | {"bracket_rungs": [1, 2]}, [4, 16]),
    ],
)
def test_a_run_of_asha_goes_past_rungs(searcher: dict[str, Any], passed: list[int]) -> None:
    """Those of the largest bracket; the last is the length."""
    assert rungs_passed(searcher) == passed


@pytest.mark.parametrize(
    "searcher",
    [
        ASHA | {"stop_once": False},
        ADAPTIVE | {"stop_once": False},
        {"name": "hyperband", "max_time": 81},
        {"name": "random", "max_time": 16, "max_trials": 4},
        {"name": "async_halving", "max_time": 16},
        {"name": "adaptive_asha"},
        {},
    ],
)
def test_other_runs_go_past_none(searcher: dict[str, Any]) -> None:
    """Where trials rest at each rung, or are not compared on their way, or nothing is known."""
    assert rungs_passed(searcher) == []
