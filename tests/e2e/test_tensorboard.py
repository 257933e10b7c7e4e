"""`rung tensorboard` on a real installation: TensorBoard itself shows the curves."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from servers.process import free_port
from support.installation import Installation
from support.user import config, wait_for

SEARCH = {"name": "random", "max_trials": 2, "max_length": {"batches": 5}}


def _answer(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - a loopback address
            tags: dict[str, Any] = json.load(answer)
            return tags
    except (OSError, ValueError):
        return {}


def _with_loss(url: str) -> set[str]:
    """Return the runs of which the curve is there: TensorBoard reads one after the other."""
    return {run for run, tags in _answer(url).items() if "validation/loss" in tags}


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
    port = free_port()
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
            trials = {f"{experiment}.0", f"{experiment}.1"}
            wait_for(lambda: trials <= _with_loss(url), "TensorBoard shows both curves", 180)
            assert set(_answer(url)) == trials
        finally:
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    assert not _answer(url)
