"""What users do to searches: name them, kill a trial, give them more, fork and compare them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installation import Installation
from support.user import CURVE, config, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

UNSET = Path(__file__).parent / "unset"
SPACE = {"limit": {"type": "double", "minval": 0.0, "maxval": 1.0}, "pause_s": 0.02}


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """Return a file; while it exists, trials of searches that name it take ten steps at most."""
    path = tmp_path / "hold"
    path.touch()
    return path


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A `rung up` for all tests of this module."""
    item = Installation(tmp_path_factory.mktemp("changes") / "data")
    item.up()
    yield item
    item.down()


def _random(name: str, trials: int, hold: Path | None = None) -> dict[str, Any]:
    searcher = {"name": "random", "max_trials": trials, "max_concurrent_trials": 2}
    length = {"max_length": {"batches": 12}}
    return config(name, searcher | length, hyperparameters=SPACE, **_held(hold))


def _single(name: str, length: int, hold: Path | None = None) -> dict[str, Any]:
    searcher = {"name": "single", "max_length": {"batches": length}}
    space = {"limit": 0.5, "pause_s": 0.02}
    return config(name, searcher, hyperparameters=space, **_held(hold))


def _held(hold: Path | None) -> dict[str, Any]:
    return {} if hold is None else {"environment": {"environment_variables": [f"HOLD={hold}"]}}


def _ended(installation: Installation, name: str) -> dict[str, Any]:
    assert installation.rung("wait", name, "-q", check=False).returncode == 0
    assert installation.rung("audit", name).returncode == 0
    found: dict[str, Any] = json.loads(installation.rung("show", name, "--json").stdout)
    return found


def _drawn(trials: list[dict[str, Any]]) -> list[Any]:
    return [(trial["hparams"], trial["seed"], trial["best"]) for trial in trials]


def _curve(trial: dict[str, Any]) -> dict[int, float]:
    return {each["steps"]: each["metrics"]["loss"] for each in trial["validations"]}


def test_more_trials_are_those_of_a_longer_search(installation: Installation, hold: Path) -> None:
    """While it runs and after its end, whatever became of a trial: 3 + 2 and 2 are 7."""
    whole = installation.submit(_random("whole", 7), CURVE)
    part = installation.submit(_random("part", 3, hold), CURVE)
    wait_for(
        lambda: installation.rung("trial", "kill", "part.0", check=False).returncode == 0,
        "its first trial is there",
    )
    said = installation.rung("extend", "part", "--trials", "+2").stdout
    assert said == f"Experiment {part} goes on to 5 trials in all\n"
    hold.unlink()
    ours, theirs = _ended(installation, "part"), _ended(installation, "whole")
    assert [trial["state"] for trial in ours["trials"]] == ["canceled", *["completed"] * 4]
    assert _drawn(ours["trials"])[1:] == _drawn(theirs["trials"])[1:5]
    made = installation.rung("extend", "part", "--trials", "7").stdout.split()[2].rstrip(",")
    rest = _ended(installation, made)
    assert rest["parent"] == part
    assert _drawn(rest["trials"]) == _drawn(theirs["trials"])[5:]
    refused = installation.rung("extend", whole, "--length", "20", check=False)
    assert (refused.returncode, "cannot have a longer length" in refused.stderr) == (6, True)


def test_a_longer_length_is_the_curve_of_a_longer_trial(
    installation: Installation, hold: Path
) -> None:
    """Extended while it runs and after its end: bit for bit."""
    whole = installation.submit(_single("long", 40), CURVE)
    part = installation.submit(_single("short", 20, hold), CURVE)
    wait_for(lambda: installation.get_or_none(f"/trials/{part}.0"), "the trial is there")
    installation.rung("extend", "short", "--length", "+10")
    hold.unlink()
    ours, theirs = _ended(installation, part), _ended(installation, whole)
    [trial], [longer] = ours["trials"], theirs["trials"]
    assert max(_curve(trial)) == 30
    assert _curve(trial).items() <= _curve(longer).items()
    made = installation.rung("extend", part, "--length", "40").stdout.split()[2].rstrip(",")
    [rest] = _ended(installation, made)["trials"]
    assert sorted(_curve(rest)) == list(range(31, 41))
    assert _curve(rest).items() <= _curve(longer).items()


def test_a_longer_training_of_torch_resumes_whole(installation: Installation) -> None:
    """No step is trained twice: the order of the data and the weights are those of one search."""

    def submit(length: int) -> str:
        searcher = {"name": "single", "max_length": {"batches": length}}
        often = {"min_validation_period": {"batches": 4}}
        return installation.submit(config(f"of {length}", searcher, **often), UNSET)

    whole, part = submit(20), submit(12)
    [longer], [first] = _ended(installation, whole)["trials"], _ended(installation, part)["trials"]
    made = installation.rung("extend", part, "--length", "+8").stdout.split()[2].rstrip(",")
    [rest] = _ended(installation, made)["trials"]
    assert (sorted(_curve(first)), sorted(_curve(rest))) == ([4, 8, 12], [16, 20])
    assert _curve(first) | _curve(rest) == _curve(longer)


def test_fork_and_diff(installation: Installation) -> None:
    """A fork has the same code and the changed field; the difference is what was changed."""
    first = installation.submit(_single("origin", 5), CURVE)
    said = installation.rung("fork", first[:5], "--set", "hyperparameters.limit=0.25").stdout
    second = said.split()[-1]
    differs = installation.rung("diff", first, second, "--json", check=False)
    assert differs.returncode == 1
    assert json.loads(differs.stdout) == {
        "a": first,
        "b": second,
        "same": False,
        "config": [{"path": "hyperparameters.limit.val", "a": 0.5, "b": 0.25}],
        "code": [],
    }
    assert installation.rung("diff", second, second).returncode == 0
    source = (CURVE / "train.py").read_text()
    assert installation.rung("code", second, "train.py").stdout == source
    assert _ended(installation, second)["parent"] == first
