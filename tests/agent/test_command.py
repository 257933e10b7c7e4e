"""Reading entrypoints and environment variables."""

import sys
from typing import Any

import pytest

from rung.agent.command import InvalidEntrypoint, command_of, search_path, variables_of
from rung.agent.wire import Command


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        ("python3 train.py", Command("script", ["train.py"])),
        ("python -u train.py --a 'b c'", Command("script", ["train.py", "--a", "b c"])),
        ("python3.11 sub/train.py", Command("script", ["sub/train.py"])),
        (["python", "train.py", "$X"], Command("script", ["train.py", "$X"])),
        ([sys.executable, "train.py"], Command("script", ["train.py"])),
        ("python3 -m pkg.train -x", Command("module", ["pkg.train", "-x"])),
        ("python3 -O train.py", Command("execute", [sys.executable, "-O", "train.py"])),
        ("python3 folder", Command("execute", [sys.executable, "folder"])),
        ("python3", Command("execute", [sys.executable])),
        ("/usr/bin/python3 train.py", Command("execute", ["/usr/bin/python3", "train.py"])),
        ("torchrun train.py", Command("execute", ["torchrun", "train.py"])),
        ("cd a && python train.py", Command("execute", ["/bin/sh", "-c"])),
        ("python train.py --lr $LR", Command("execute", ["/bin/sh", "-c"])),
        ("A=1 python train.py", Command("execute", ["/bin/sh", "-c"])),
        ("python train.py *.txt", Command("execute", ["/bin/sh", "-c"])),
        ("python a.py\npython b.py", Command("execute", ["/bin/sh", "-c"])),
    ],
)
def test_commands(entrypoint: Any, command: Command) -> None:
    """Plain Python runs in the fork; shell syntax goes to a shell; the rest is a program."""
    expected = command
    if command.argv == ["/bin/sh", "-c"]:
        expected = Command("execute", [*command.argv, entrypoint])
    assert command_of(entrypoint, {}) == expected


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"])
def test_variables_that_come_too_late(name: str) -> None:
    """A variable that acts at an interpreter's start gets an interpreter of its own."""
    assert command_of("python3 a.py", {name: "x"}).how == "execute"
    assert command_of("python3 a.py", {"PYTHONUNBUFFERED": "1", "OTHER": "x"}).how == "script"


@pytest.mark.parametrize("entrypoint", [None, "", "  ", [], 5, ["a", 5], ["a\0b"], {"a": 1}])
def test_refused(entrypoint: Any) -> None:
    """What is no command is refused with what would be right."""
    with pytest.raises(InvalidEntrypoint, match="give a command such as"):
        command_of(entrypoint, {})


@pytest.mark.parametrize(
    ("variables", "kind", "expected"),
    [
        ([], "cpu", {}),
        (["A=1", "B=x=y", "C"], "cpu", {"A": "1", "B": "x=y", "C": ""}),
        ({"cpu": ["A=1"], "cuda": ["A=2"]}, "cpu", {"A": "1"}),
        ({"cpu": ["A=1"], "gpu": ["A=3"]}, "cuda", {"A": "3"}),
        ({"cuda": ["A=2"]}, "cpu", {}),
        (None, "cpu", {}),
    ],
)
def test_variables(variables: Any, kind: str, expected: dict[str, str]) -> None:
    """Variables come as a list, or as a list per kind of device."""
    assert variables_of({"environment": {"environment_variables": variables}}, kind) == expected


def test_no_environment() -> None:
    """A configuration without an environment sets nothing."""
    assert variables_of({}, "cpu") == {}


def test_search_path() -> None:
    """The agent's interpreter comes first on the path."""
    own = sys.executable.rpartition("/")[0]
    assert search_path("/x:/y") == f"{own}:/x:/y"
    assert search_path(None).startswith(f"{own}:/")
