"""The lanes' own runner: what failed is repeated once, shown, and never hidden."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LANES = Path(__file__).with_name("lanes.py")
FLAKY = """\
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    seen = pathlib.Path(__file__).with_name(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        raise ValueError(f"the first time {{number}}")

def test_sound():
    pass
"""
FLAKY_FIXTURE = """\
import pathlib, pytest

@pytest.fixture
def flaky():
    seen = pathlib.Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise ValueError("the first time")

def test_sound(flaky):
    pass
"""


def _ran(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it, as if no run were under way."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("RUNG_")}
    return subprocess.run(
        [sys.executable, LANES, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
    )


def _lane(
    folder: Path, test: str, *, workers: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a lane that has one module of tests."""
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", str(workers)]
    return _ran(folder, "pytest", *command, "test_it.py", **environment)


def test_what_passes_runs_once(tmp_path: Path) -> None:
    """Nothing is repeated, and nothing said of it."""
    done = _lane(tmp_path, "def test_sound():\n    pass\n")
    assert done.returncode == 0
    assert done.stdout.count("1 passed") == 1
    assert "FLAKY" not in done.stdout


def test_what_passes_when_repeated_is_shown(tmp_path: Path) -> None:
    """The lane passes, and names each such test with its first error."""
    done = _lane(tmp_path, FLAKY.format(count=3), workers=2)
    assert done.returncode == 0, done.stdout
    _, shown = done.stdout.split("FLAKY: 3 failed once")
    for number in range(3):
        assert f"test_it.py::test_flaky[{number}]" in shown
        assert f"ValueError: the first time {number}" in shown
    assert "test_sound" not in shown


def test_a_fourth_fails_the_lane(tmp_path: Path) -> None:
    """Four that would pass when repeated are too many."""
    done = _lane(tmp_path, FLAKY.format(count=4))
    assert done.returncode == 1
    assert "more than 3 tests failed" in done.stdout


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    """Also beside a test that passes when it is repeated; the end of the output has the errors."""
    done = _lane(tmp_path, FLAKY.format(count=1) + "\ndef test_broken():\n    assert 0\n")
    assert done.returncode == 1
    assert "FLAKY" not in done.stdout
    assert done.stdout.splitlines()[-6:] == [
        "FAILED: 2",
        "  test_it.py::test_flaky[0]",
        "    ValueError: the first time 0",
        "  test_it.py::test_broken",
        "    assert 0",
        "    assert 0",
    ]


@pytest.mark.parametrize("test", ["import nothing_like_this\n", "def helper():\n    pass\n"])
def test_what_is_no_verdict_fails(tmp_path: Path, test: str) -> None:
    """A module that cannot be imported, and no test at all, are not repeated."""
    done = _lane(tmp_path, test)
    assert done.returncode not in {0, 1}
    assert "Repeating" not in done.stdout


def test_a_failure_of_no_test_is_not_repeated(tmp_path: Path) -> None:
    """A plugin that ends the run as failed has failed it."""
    (tmp_path / "conftest.py").write_text(
        "def pytest_sessionfinish(session):\n    session.exitstatus = 1\n"
    )
    done = _lane(tmp_path, "def test_sound():\n    pass\n")
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("1 passed") == 1


def test_repeating_can_be_turned_off(tmp_path: Path) -> None:
    """Then what fails once has failed."""
    assert _lane(tmp_path, FLAKY.format(count=1), RUNG_REPEAT="0").returncode == 1


def test_a_broken_fixture_is_repeated_too(tmp_path: Path) -> None:
    """An error before or after a test is one of the test."""
    done = _lane(tmp_path, FLAKY_FIXTURE)
    assert done.returncode == 0, done.stdout
    assert "test_it.py::test_sound" in done.stdout.split("FLAKY")[1]


def _make(folder: Path, *lines: str) -> str:
    """Write a program that stands for make, with the lane's target as its argument."""
    program = folder / "make"
    program.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *lines, "esac", ""]))
    program.chmod(0o755)
    return str(program)


def test_a_run_goes_on_and_ends_with_a_table(tmp_path: Path) -> None:
    """Lanes behind one that fails run too; the run has failed."""
    make = _make(tmp_path, "test-fast) exit 2;;", "sim) echo simulated;;")
    done = _ran(tmp_path, "run", "fast", "sim", MAKE=make)
    assert done.returncode == 1
    assert "simulated" in done.stdout
    assert "Lane fast: failed in 0:00" in done.stdout
    table = done.stdout.splitlines()[-3:]
    assert [line.split() for line in table] == [
        ["fast", "0:00", "failed"],
        ["sim", "0:00", "passed"],
        ["all", "0:00"],
    ]


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 1)])
def test_flaky_tests_of_all_lanes_count_together(tmp_path: Path, count: int, code: int) -> None:
    """Two lanes with two each are one too many."""
    lanes = {"fast": 2, "sim": count}
    for name, each in lanes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / name / "test_it.py").write_text(FLAKY.format(count=each))
    command = f"{sys.executable} {LANES} pytest {sys.executable} -m pytest -q -p xdist"
    make = _make(
        tmp_path,
        f"test-fast) cd {tmp_path}/fast && {command};;",
        f"sim) cd {tmp_path}/sim && {command};;",
    )
    done = _ran(tmp_path, "run", *lanes, MAKE=make)
    assert done.returncode == code, done.stdout
    assert f"FLAKY: {3 if code == 0 else 2} failed once" in done.stdout
