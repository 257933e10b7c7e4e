"""`rung tensorboard` on a real installation: TensorBoard itself shows the curves."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from e2e.installation import Installation
from e2e.user import config, wait_for

SEARCH = {"name": "random", "max_trials": 2, "max_length": {"batches": 5}}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _answer(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - a loopback address
            return json.load(answer)
    except (OSError, ValueError):
        return None


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None,
    reason="not installed: tensorboard (pip install tensorboard)",
)
def test_tensorboard_shows_the_curves(installation: Installation, tmp_path: Path) -> None:
    """Each trial is a run with its metrics; an interrupt ends both processes."""
    experiment = installation.submit(config("board", SEARCH))
    installation.ended(experiment)
    port = _free_port()
    command = [sys.executable, "-m", "rung.cli", "tensorboard", experiment, "--port", str(port)]
    with subprocess.Popen(
        [*command, "--folder", str(tmp_path / "board")],
        env=os.environ | {"RUNG_DATA": str(installation.folder)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}/data/plugin/scalars/tags"
            tags = wait_for(lambda: _answer(url), "TensorBoard answers with tags", 180)
            assert sorted(tags) == [f"{experiment}.0", f"{experiment}.1"]
            assert all("validation/loss" in tags[trial] for trial in tags)
        finally:
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    assert _answer(url) is None
