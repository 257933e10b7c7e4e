# ruff: noqa: T201 - a script: it runs commands, and prints
"""Lanes of tests: runs some, each with its time, and repeats what failed once.

    python tests/lanes.py run LANE …
    python tests/lanes.py pytest COMMAND …

`run` makes the target of each lane, goes on behind one that fails, and ends with a table of times.
`pytest` is what these targets call: it runs a pytest command, then once more, one at a time, the
tests that failed. Where they all pass then, the lane has passed, and the run ends with a section
`FLAKY` that has the first error of each. A run with more than three such tests fails. What failed
for good is listed last, with its error or both.

`RUNG_REPEAT=0` repeats nothing: what fails once has failed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

FLAKY_MAX = 3
"""Tests of a run that may fail once; with one more the run has failed."""
_SLOWEST = ("--durations=15", "--durations-min=5")
"""How many of a lane's tests are listed with their times: those that take so many seconds."""
_BARE = ("setup", "check", "sim")
"""Lanes whose targets are not named `test-LANE`."""
_TESTS_FAILED = 1
"""Pytest's exit code where tests failed; any greater one is no verdict on tests."""
_RECORD = "RUNG_FAILURES_RECORD"
"""Names the file in which all lanes of a run keep the tests that failed."""


class Failure(NamedTuple):
    """A test that failed."""

    test: str
    errors: Sequence[str]
    """The first line of each time."""
    flaky: bool = False
    """Whether it passed when it was repeated."""


class Ran(NamedTuple):
    """A lane that ended."""

    lane: str
    code: int
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Run the subcommand and return its exit code."""
    match arguments:
        case ["run", *lanes] if lanes:
            return run(lanes)
        case ["pytest", *command] if command:
            return run_pytest(command)
        case _:
            print(__doc__)
            return 2


def run(lanes: Sequence[str]) -> int:
    """Run lanes one after the other; return 0 if all passed."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "failures.jsonl"
        ran = [_ran(lane, record) for lane in lanes]
        failures = _recorded(record)
    print("\n".join(_table(ran)))
    _print_failures(failures)
    return int(any(each.code for each in ran))


def run_pytest(command: Sequence[str]) -> int:
    """Run a pytest command, repeat what failed, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        shared = os.environ.get(_RECORD)
        record = Path(shared) if shared else Path(folder) / "failures.jsonl"
        code, failures = _run_pytest(command, Path(folder), _recorded(record))
        with record.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in failures)
        if not shared:
            _print_failures(failures)
        return code


def _run_pytest(
    command: Sequence[str], folder: Path, before: Sequence[Failure]
) -> tuple[int, Sequence[Failure]]:
    """Run it, and once more what failed; return the exit code and the failures."""
    report = folder / "report.xml"
    command = [*command, "-o", f"cache_dir={folder}/cache", "-o", "junit_family=xunit1"]
    command = [*command, f"--junitxml={report}"]
    code = subprocess.call([*command, *_SLOWEST])
    failed = _failures(report) if code == _TESTS_FAILED else []
    if not failed or os.environ.get("RUNG_REPEAT") == "0":
        return code, failed
    if sum(each.flaky for each in before) + len(failed) > FLAKY_MAX:
        print(f"Not repeated: more than {FLAKY_MAX} tests failed in this run.")
        return code, failed
    print(f"Repeating what failed: {', '.join(each.test for each in failed)}", flush=True)
    report.unlink()
    code = subprocess.call(
        [*command, "--last-failed", "--last-failed-no-failures=none", "-n", "0"]
    )
    if code == 0:
        return code, [each._replace(flaky=True) for each in failed]
    again = {each.test: each.errors for each in _failures(report)}
    return code, [Failure(test, [*errors, *again.get(test, ())]) for test, errors, _ in failed]


def _ran(lane: str, record: Path) -> Ran:
    """Run one lane, and print its time."""
    target = lane if lane in _BARE else f"test-{lane}"
    began = time.monotonic()
    make = os.environ.get("MAKE", "make")
    code = subprocess.call([make, target], env=os.environ | {_RECORD: str(record)})
    ran = Ran(lane, code, time.monotonic() - began)
    print(f"Lane {lane}: {_verdict(ran)} in {_minutes(ran.seconds)}", flush=True)
    return ran


def _table(ran: Sequence[Ran]) -> Iterator[str]:
    """Yield the lines of the table of lanes."""
    yield ""
    for each in ran:
        yield f"{each.lane:12}{_minutes(each.seconds):>8}  {_verdict(each)}"
    yield f"{'all':12}{_minutes(sum(each.seconds for each in ran)):>8}"


def _verdict(ran: Ran) -> str:
    return "failed" if ran.code else "passed"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _failures(report: Path) -> list[Failure]:
    """Return the tests that failed by a JUnit report of the family xunit1, if there is one."""
    failures = []
    cases = ET.parse(report).iter("testcase") if report.exists() else ()  # noqa: S314 - pytest's
    for case in cases:
        if trouble := [*case.iter("failure"), *case.iter("error")]:
            lines = (trouble[0].get("message") or trouble[0].text or "").strip().splitlines()
            name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
            failures.append(Failure(name, lines[:1] or ["no message"]))
    return failures


def _recorded(record: Path) -> list[Failure]:
    """Return the failures of the run so far."""
    if not record.exists():
        return []
    return [Failure(*json.loads(line)) for line in record.read_text("utf-8").splitlines()]


def _print_failures(failures: Sequence[Failure]) -> None:
    """Print the section of the flaky tests, and that of those that failed, if there are any."""
    flaky = [each for each in failures if each.flaky]
    failed = [each for each in failures if not each.flaky]
    for kind, title in (
        (flaky, f"FLAKY: {len(flaky)} failed once, and passed when repeated"),
        (failed, f"FAILED: {len(failed)}"),
    ):
        if kind:
            print(f"\n{title}")
        for each in kind:
            print("\n    ".join([f"  {each.test}", *each.errors]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
