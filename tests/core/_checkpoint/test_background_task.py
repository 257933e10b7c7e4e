"""Work behind the script's back: one piece at a time, and no failure unheard."""

import subprocess
import sys
import threading

import pytest

from rung.core._checkpoint.context import BackgroundTask


def test_it_returns_before_the_work_is_done() -> None:
    """Whoever starts something goes on; `wait` returns when it is complete."""
    behind, may_end, done = BackgroundTask(), threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait()
        done.set()

    behind.start(work)
    assert behind.busy
    assert not done.is_set()
    may_end.set()
    behind.wait()
    assert done.is_set()
    assert not behind.busy


def test_the_next_piece_waits_for_the_one_before() -> None:
    """Two never run at once, and their order is that of the calls."""
    behind, order = BackgroundTask(), list[int]()
    for number in range(20):
        behind.start(lambda number=number: order.append(number))  # type: ignore[misc]
    behind.wait()
    assert order == list(range(20))


def test_a_failure_is_raised_once_at_the_next_occasion() -> None:
    """It is not lost, and not told twice."""
    behind = BackgroundTask()

    def fail() -> None:
        raise ZeroDivisionError

    behind.start(fail)
    with pytest.raises(ZeroDivisionError):
        behind.wait()
    behind.wait()
    behind.start(fail)
    with pytest.raises(ZeroDivisionError):
        behind.start(lambda: None)
    behind.check()


_SCRIPT = """
import time
from concurrent.futures import ThreadPoolExecutor
from rung.core._checkpoint.context import BackgroundTask

def work():
    time.sleep(0.2)
    with ThreadPoolExecutor(1) as threads:
        print(threads.submit(lambda: "complete").result(), flush=True)

BackgroundTask().start(work)
"""


def test_what_was_begun_is_completed_when_the_script_ends() -> None:
    """Also what needs thread pools, which close when the interpreter leaves."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("complete\n", "")
