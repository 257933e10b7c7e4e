"""Runs a machine's workload in a process of its own, which hashes as told."""

import os
import subprocess
import sys
from pathlib import Path


def digest_of(workload: str, hash_seed: str) -> str:
    """Return the digest of the history that a test module prints, run under a hash seed."""
    return subprocess.run(
        [sys.executable, "-m", workload, "7"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
