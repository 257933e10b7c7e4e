"""Each example trains by hand and managed, from its own files."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.framework_trials import QUIET, needs
from support.installation import Installation
from support.user import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


class Example(NamedTuple):
    """An example, and how long it trains here."""

    folder: str
    length: int
    by_hand: list[str]
    file: str


def _example(
    folder: str,
    length: int,
    *packages: str,
    script: str = "train.py",
    file: str = "experiment.yaml",
) -> Any:
    by_hand = ["sh", script] if script.endswith(".sh") else [sys.executable, script]
    example = Example(folder, length, by_hand, file)
    return pytest.param(example, marks=needs(*packages), id=folder)


ALL = [
    _example("core", 200),
    _example("digits", 1, "torch", "torchdata", "sklearn", file="single.yaml"),
    _example("shell", 3, script="train.sh"),
    _example("sklearn", 2, "sklearn"),
    _example("keras", 1, "keras", "tensorflow", "sklearn"),
    _example("tensorflow", 1, "tensorflow", "keras", "sklearn"),
    _example("lightning", 1, "lightning", "sklearn"),
    _example("transformers", 1, "transformers", "accelerate", "sklearn"),
]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Return a `rung up` for all examples."""
    item = Installation(tmp_path_factory.mktemp("examples") / "data", cold=False)
    item.up()
    yield item
    item.down()


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of an example's folder, whose experiment is short."""
    example: Example = request.getfixturevalue("example")
    copy = tmp_path / example.folder
    shutil.copytree(EXAMPLES / example.folder, copy)
    file = copy / example.file
    config = yaml.safe_load(file.read_text())
    searcher = config["searcher"]
    match searcher:
        case {"max_length": unit}:
            searcher["max_length"] = dict.fromkeys(unit, example.length)
        case _:
            searcher["max_time"] = example.length
    if "max_trials" in searcher:
        searcher["max_trials"] = 2
    file.write_text(yaml.safe_dump(config))
    return copy


def _needs_the_command(example: Example) -> None:
    command = Path(sys.executable).with_name("rung")
    if example.folder == "shell" and not command.exists():
        pytest.skip(f"there is no {command}: pip install -e .")


def _submit(installation: Installation, folder: Path, example: Example) -> str:
    file = str(folder / example.file)
    submitted = installation.rung("submit", file, str(folder), "--json")
    return str(json.loads(submitted.stdout)["experiment_id"])


@pytest.mark.parametrize("example", ALL)
def test_by_hand(example: Example, folder: Path) -> None:
    """It trains to its length without a platform, shows what it reports, and keeps its model."""
    _needs_the_command(example)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RUNG_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    imports = os.pathsep.join(entry for entry in sys.path if entry)
    result = subprocess.run(
        example.by_hand,
        cwd=folder,
        env=inherited | QUIET | {"PATH": path, "PYTHONPATH": imports},
        capture_output=True,
        text=True,
        check=False,
    )
    shown = result.stdout + result.stderr
    assert result.returncode == 0, shown
    assert "validation" in shown
    assert "checkpoint stored" in shown


@pytest.mark.parametrize("example", ALL)
def test_managed(example: Example, folder: Path, installation: Installation) -> None:
    """Its trials reach their length, with the searcher's metric and a checkpoint."""
    _needs_the_command(example)
    experiment = _submit(installation, folder, example)
    shown = installation.ended(experiment)
    assert shown["state"] == "completed", installation.rung("logs", experiment).stdout
    assert {trial["state"] for trial in shown["trials"]} == {"completed"}
    assert all(trial["units"] >= example.length for trial in shown["trials"])
    best = installation.get(f"/experiments/{experiment}/best")
    assert best["checkpoint"]["id"]


@pytest.mark.parametrize("example", [_example("shell", 25, script="train.sh")])
def test_a_shell_script_goes_on_where_it_was_paused(
    example: Example, folder: Path, installation: Installation
) -> None:
    """Asked to leave, it keeps its files; its next run goes on from them, and repeats nothing."""
    _needs_the_command(example)
    experiment = _submit(installation, folder, example)
    wait_for(lambda: _all_train(installation, experiment), "both trials train")
    installation.rung("pause", experiment)
    wait_for(lambda: _paused(installation, experiment), "both trials left")
    before = installation.get(f"/experiments/{experiment}")["trials"]
    installation.rung("resume", experiment)
    shown = installation.ended(experiment)
    assert shown["state"] == "completed", installation.rung("logs", experiment).stdout
    for trial, earlier in zip(shown["trials"], before, strict=True):
        assert (trial["run"], trial["restarts"]) == (earlier["run"] + 1, 0)
        assert [each["steps"] for each in trial["validations"]] == list(range(1, 26))


def _all_train(installation: Installation, experiment: str) -> bool:
    trials = installation.get(f"/experiments/{experiment}")["trials"]
    return len(trials) == 2 and all(len(trial["validations"]) >= 2 for trial in trials)


def _paused(installation: Installation, experiment: str) -> bool:
    trials = installation.get(f"/experiments/{experiment}")["trials"]
    return all(trial["state"] == "paused" for trial in trials)
