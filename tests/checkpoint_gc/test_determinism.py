"""The same facts give the same decisions in any process."""

import os
import subprocess
import sys
from pathlib import Path


def _digest(hash_seed: str) -> str:
    tests = Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-m", "checkpoint_gc.workload", "7"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=tests,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_decisions_do_not_depend_on_hashing() -> None:
    """Two processes that hash differently write the same history, byte for byte."""
    first = _digest("1")

    assert len(first) == 64
    assert first == _digest("2718281828")
