"""The gateway as a process: comes up, goes down in good order, says what is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from rung.gateway.__main__ import main


def _start(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rung.gateway", "--ledger", str(tmp_path / "ledger")]
    command += ["--objects", (tmp_path / "objects").as_uri(), "--token", "t", *more]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if said["event"] == "gateway serves":
            return f"http://{said['address']}"
    raise AssertionError("it never served")


def test_process_serves_until_terminated(tmp_path: Path) -> None:
    """It answers on its port, and SIGTERM ends it with exit code 0."""
    process = _start(tmp_path, "--bind", "127.0.0.1:0")
    try:
        url = f"{_url(process)}/healthz"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert process.wait(timeout=20) == 0
        assert time.monotonic() - started < 10
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bind", "8080"), "ADDRESS:PORT"),
        (("--bind", "127.0.0.1:0", "--host-name", "http://x"), "without http://"),
        (("--bind", "127.0.0.1:0", "--objects", "s3://x"), "object store"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    """A person reads one line, not a traceback."""
    place = ["--ledger", str(tmp_path / "ledger"), "--objects", (tmp_path / "objects").as_uri()]
    with pytest.raises(SystemExit) as ended:
        main([*place, "--token", "t", *options], prog_name="rung.gateway")
    assert ended.value.code != 0
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("Error: ")
    assert words in line
