"""Which processes of a run get a signal that is meant for it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rung.agent.monitoring.process_tree import receivers_of
from support.processes import children_of, eventually

SLEEPS = "sleep 600 | sleep 600"
CATCHES = "import signal; signal.signal(15, print); print(1, flush=True); signal.pause()"


@contextlib.contextmanager
def _running(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _until_children(pid: int, count: int) -> list[int]:
    """Return the children of a process once there are so many."""
    asyncio.run(eventually(lambda: len(children_of(pid)) == count))
    return children_of(pid)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_shell_is_passed_over(shell: str) -> None:
    """What a shell without a handler has started gets the signal in its place."""
    with _running(shell, "-c", f"{SLEEPS}; true") as process:
        children = _until_children(process.pid, 2)
        assert sorted(receivers_of(process.pid, signal.SIGTERM)) == sorted(children)


def test_a_shell_with_a_handler() -> None:
    """A shell that does something about the signal gets it."""
    with _running("bash", "-c", f"trap : TERM; {SLEEPS}; true") as process:
        _until_children(process.pid, 2)
        assert receivers_of(process.pid, signal.SIGTERM) == [process.pid]


def test_other_programs_get_it_themselves() -> None:
    """A program that is no shell gets the signal, whatever it has started."""
    script = "import subprocess as s; s.run(['sleep', '600'])"
    with _running(sys.executable, "-c", script) as process:
        _until_children(process.pid, 1)
        assert receivers_of(process.pid, signal.SIGTERM) == [process.pid]


def test_only_who_catches_a_signal_gets_it() -> None:
    """Of the commands in a pipe those get the signal that do something about it, if any does."""
    with _running("bash", "-c", f"{sys.executable} -c '{CATCHES}' | tee; true") as process:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = receivers_of(process.pid, signal.SIGTERM)
        assert found == min(children_of(process.pid))


def test_a_shell_in_a_shell() -> None:
    """The commands of inner shells get the signal, too."""
    with _running("bash", "-c", "bash -c 'sleep 600; true' | sleep 600; true") as process:
        inner, last = sorted(_until_children(process.pid, 2))
        (command,) = _until_children(inner, 1)
        assert receivers_of(process.pid, signal.SIGTERM) == [command, last]
