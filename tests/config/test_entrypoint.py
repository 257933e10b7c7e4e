"""What an entrypoint needs of the code."""

import json
import time
from typing import Any

import pytest

from rung.config import InvalidExperimentFile, load
from rung.config.code_archive import CodeArchive
from rung.config.sections.entrypoint import missing_script

CODE = CodeArchive(b"", "", 0, frozenset({"train.py", "run.sh", "src/train.py", "linked"}))


@pytest.mark.parametrize(
    ("entrypoint", "missing"),
    [
        ("python3 train.py --lr 1", None),
        ("python -u ./src/../train.py", None),
        ("./run.sh", None),
        ("python3 linked/train.py", None),
        ("python3 main.py", "main.py"),
        (["python3.12", "-u", "src/main.py"], "src/main.py"),
        ("./src/run.sh x", "src/run.sh"),
        ("python3 -m package.main", None),
        ("python3 /opt/main.py", None),
        ("python3 ../main.py", None),
        ("cd src && python3 main.py", None),
        ("X=1 python3 main.py", None),
        ("sh -c 'python3 main.py'", None),
        ("python3 'main.py", None),
        ("xgboost main.py", None),
        ("", None),
        (None, None),
    ],
)
def test_a_script_that_is_not_there(entrypoint: Any, missing: str | None) -> None:
    """It is named where it is certain that the run would not find it."""
    assert missing_script(entrypoint, CODE) == missing


def test_without_code_there_is_no_script() -> None:
    """Who forgets the folder hears of it."""
    assert missing_script("python3 train.py", None) == "train.py"
    assert missing_script("python3 -m train", None) is None


LAUNCHER = (
    "`determined.launch.{}` is a launcher of Determined; here each trial's processes, one per"
    " slot, are started without one: write `{}`{}"
)


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        (
            "python3 -m determined.launch.torch_distributed\n  python3 train.py --x 1",
            LAUNCHER.format("torch_distributed", "python3 train.py --x 1", ""),
        ),
        (
            "cd a && python -u -m determined.launch.torch_distributed --np 3 -- python3 -m b.c",
            LAUNCHER.format("torch_distributed", "cd a && python3 -m b.c", ""),
        ),
        (
            "python3 -m determined.launch.deepspeed train.py --x 1",
            LAUNCHER.format("deepspeed", "python3 train.py --x 1", ""),
        ),
        (
            "python3 -m determined.launch.torch_distributed --trial model_def:MyTrial",
            LAUNCHER.format("torch_distributed", "python3 train.py", ""),
        ),
        (
            "python -m determined.launch.torch_distributed\n python run.py --text " + 100 * "x",
            (
                "`determined.launch.torch_distributed` is a launcher of Determined; here each"
                " trial's processes, one per slot, are started without one: write the command"
                " without `python -m determined.launch.torch_distributed`"
            ),
        ),
        (
            ["python3", "-m", "determined.launch.deepspeed", "python3", "train.py"],
            LAUNCHER.format("deepspeed", "python3 train.py", ""),
        ),
        (
            ["sh", "-c", "python3 -m determined.launch.tensorflow -- python3 train.py"],
            LAUNCHER.format(
                "tensorflow",
                "sh -c 'python3 train.py'",
                " with `distributed: {launcher: tensorflow}`",
            ),
        ),
        (
            "python3 -m determined.launch.tensorflow -- python3 train.py",
            LAUNCHER.format(
                "tensorflow", "python3 train.py", " with `distributed: {launcher: tensorflow}`"
            ),
        ),
        (
            ["python3", "-m", "determined.launch.autohorovod", "model_def:Trial"],
            LAUNCHER.format(
                "autohorovod", "python3 train.py", " with `distributed: {launcher: horovod}`"
            ),
        ),
        (
            "python3 -m determined.exec.harness",
            (
                "`determined.exec.harness` is a part of Determined; write the command that starts"
                " the training, such as `python3 train.py`"
            ),
        ),
        (
            "model_def:MyTrial",
            (
                "`module:Class` is no longer run; write the command that starts the training, such"
                " as `python3 train.py`"
            ),
        ),
    ],
)
def test_a_command_of_determined(entrypoint: Any, message: str) -> None:
    """It could not run, and is refused with the command to write."""
    tree = {"entrypoint": entrypoint, "searcher": {"name": "single", "metric": "loss"}}
    with pytest.raises(InvalidExperimentFile) as caught:
        load(json.dumps(tree), today_seed=1)
    [problem] = caught.value.details
    assert (problem.path, problem.message.split(", not ")[0]) == ("entrypoint", message)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 -m determinedly.go",
        "python3 determined.py",
        "./run determined.launch",
        ["python3", "train.py", "--note", "", "$HOME"],
    ],
)
def test_a_command_that_only_looks_like_it(entrypoint: Any) -> None:
    """A module or a script of another name is the user's, and so is an argument that is empty."""
    tree = {"entrypoint": entrypoint, "searcher": {"name": "single", "metric": "loss"}}
    assert load(json.dumps(tree), today_seed=1).settings.entrypoint == entrypoint


def test_a_part_of_determined_is_quoted_in_short() -> None:
    """However long its name is, so that the problem can be read."""
    command = f"python3 -m determined.{'a' * 9_000}"
    tree = {"entrypoint": command, "searcher": {"name": "single", "metric": "loss"}}
    with pytest.raises(InvalidExperimentFile) as caught:
        load(json.dumps(tree), today_seed=1)
    [problem] = caught.value.details
    assert len(problem.message) < 500


@pytest.mark.parametrize("words", [[""], [" ", "train.py"]])
def test_words_without_a_command(words: list[str]) -> None:
    """There is no program without a name."""
    tree = {"entrypoint": words, "searcher": {"name": "single", "metric": "loss"}}
    with pytest.raises(InvalidExperimentFile, match="must begin with a command"):
        load(json.dumps(tree), today_seed=1)


@pytest.mark.parametrize("word", ["a", "python", "-a ", "-m ", "'", " ", "-m determined "])
def test_a_long_command_takes_no_time(word: str) -> None:
    """A hostile command is searched in time that grows with its length."""
    command = f"{word * (300_000 // len(word))} -m determined.launch.torch_distributed --x"
    tree = {"entrypoint": command, "searcher": {"name": "single", "metric": "loss"}}
    began = time.process_time()
    with pytest.raises(InvalidExperimentFile):
        load(json.dumps(tree), today_seed=1)
    assert time.process_time() - began < 5.0
