# ruff: noqa: T201 - a script: it runs commands, and prints
"""Lanes of tests: runs some, each with its time, and repeats what failed once.

    python tests/lanes.py run LANE …
    python tests/lanes.py pytest COMMAND …

`run` makes the target of each lane, goes on behind one that fails, and ends with a table of times.
`pytest` is what these targets call: it runs a pytest command, then once more, one at a time, the
tests that failed. Where they all pass then, the lane has passed, and the run ends with a section
`FLAKY` that has the first error of each. A run with more than three such tests fails.

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
_RECORD = "RUNG_FLAKY_RECORD"
"""Names the file in which all lanes of a run keep their flaky tests."""


class Flaky(NamedTuple):
    """A test that failed, and passed when it was repeated."""

    test: str
    error: str


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
        record = Path(folder) / "flaky.jsonl"
        ran = [_ran(lane, record) for lane in lanes]
        flaky = _recorded(record)
    print("\n".join(_table(ran)))
    _print_flaky(flaky)
    return int(any(each.code for each in ran))


def run_pytest(command: Sequence[str]) -> int:
    """Run a pytest command, repeat what failed, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report, cache = Path(folder) / "report.xml", Path(folder) / "cache"
        command = [*command, "-o", f"cache_dir={cache}", "-o", "junit_family=xunit1"]
        code = subprocess.call([*command, f"--junitxml={report}", *_SLOWEST])
        if code != _TESTS_FAILED or os.environ.get("RUNG_REPEAT") == "0":
            return code
        failed = list(_failures(report))
        if not failed:  # something else did: there is nothing to repeat
            return code
        shared = os.environ.get(_RECORD)
        record = Path(shared) if shared else Path(folder) / "flaky.jsonl"
        if len(_recorded(record)) + len(failed) > FLAKY_MAX:
            print(f"Not repeated: more than {FLAKY_MAX} tests failed in this run.")
            return code
        print(f"Repeating what failed: {', '.join(each.test for each in failed)}", flush=True)
        again = ["--last-failed", "--last-failed-no-failures=none", "-n", "0"]
        code = subprocess.call([*command, *again])
        if code == 0:
            with record.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(each) + "\n" for each in failed)
            if not shared:
                _print_flaky(failed)
        return code


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


def _failures(report: Path) -> Iterator[Flaky]:
    """Yield the tests that failed by a JUnit report of the family xunit1, each once."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        for trouble in (*case.iter("failure"), *case.iter("error")):
            lines = (trouble.get("message") or trouble.text or "").strip().splitlines()
            name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
            yield Flaky(name, lines[0] if lines else "no message")
            break


def _recorded(record: Path) -> list[Flaky]:
    """Return the flaky tests of the run so far."""
    if not record.exists():
        return []
    return [Flaky(*json.loads(line)) for line in record.read_text("utf-8").splitlines()]


def _print_flaky(flaky: Sequence[Flaky]) -> None:
    """Print the section of the flaky tests, if there are any."""
    if flaky:
        print(f"\nFLAKY: {len(flaky)} failed once, and passed when repeated")
        for each in flaky:
            print(f"  {each.test}\n    {each.error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
