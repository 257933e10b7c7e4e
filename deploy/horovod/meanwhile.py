# ruff: noqa: INP001, S603, T201 - a script, run by itself; it prints, and runs a command
"""Runs a command and, in CI without a cached wheel of Horovod, builds the wheel meanwhile.

    python deploy/horovod/meanwhile.py VENV COMMAND …

The build runs at idle priority, and is the first victim of the out-of-memory killer. When the
command ends, an unfinished build is stopped, with a message; the exit code is the command's. A
SIGTERM is forwarded to the command, whose end is awaited. If a wheel is cached, or the variable CI
is not set, nothing is built.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_WHEEL = Path(__file__).with_name("horovod_wheel.py")
_STOP_S = 10.0
_TAIL = 2_000
_SIGNALED = 128
_TERMINATED = _SIGNALED + signal.SIGTERM


def main(venv: str, *command: str) -> int:
    """Run the command and return its exit code."""
    running = _Command()
    signal.signal(signal.SIGTERM, running.terminate)
    if not os.environ.get("CI") or _is_kept(venv):
        return running.run(command)
    with _built_meanwhile(venv):
        return running.run(command)


class _Command:
    """The command; a SIGTERM to this process is forwarded to it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def terminate(self, *_: object) -> None:
        """Terminate it, or do not start it."""
        self._told = True
        if self._process is not None:
            self._process.terminate()

    def run(self, command: Sequence[str]) -> int:
        """Run it to its end, and return its exit code as a shell does."""
        if self._told:
            return _TERMINATED
        self._process = subprocess.Popen(command)
        if self._told:  # while it began
            self._process.terminate()
        code = self._process.wait()
        return code if code >= 0 else _SIGNALED - code


def _is_kept(venv: str) -> bool:
    asked = [sys.executable, str(_WHEEL), venv, "--kept"]
    return subprocess.run(asked, check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def _built_meanwhile(venv: str) -> Iterator[None]:
    """Build the wheel while the block runs; print the result at its end."""
    with tempfile.TemporaryDirectory(prefix="horovod-", ignore_cleanup_errors=True) as room:
        log = Path(room) / "log"
        began = time.monotonic()
        with log.open("wb") as output:
            build = subprocess.Popen(
                [sys.executable, _WHEEL, venv, "--no-install"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"TMPDIR": room},
                start_new_session=True,
                preexec_fn=_lower_priority,  # noqa: PLW1509 - this process has one thread
            )
        _say(f"no wheel is kept for {venv}: building it meanwhile (process {build.pid})")
        try:
            yield
        finally:
            code = _stopped(build)
            _say(_verdict(code, time.monotonic() - began, log))


def _lower_priority() -> None:
    """Give this process and its children idle priority."""
    os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _stopped(build: subprocess.Popen[bytes]) -> int | None:
    """Return a build's exit code; None if it had to be stopped."""
    if (code := build.poll()) is not None:
        return code
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(build.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            build.wait(_STOP_S)
    return None


def _verdict(code: int | None, took_s: float, log: Path) -> str:
    if code == 0:
        return "its wheel was built meanwhile, and is kept"
    if code is None:
        return f"its wheel was not ready after {took_s:.0f} s; the build was stopped"
    said = log.read_bytes()[-_TAIL:].decode(errors="replace")
    return f"its wheel could not be built:\n{said}"


def _say(text: str) -> None:
    print(f"Horovod: {text}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
