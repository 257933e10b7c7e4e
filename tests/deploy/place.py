"""Where what is deployed lies, and the tools that hold it to the formats it is written in."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
SERVICES: Final = ("searcher", "scheduler", "checkpoint-gc", "metrics", "webhooks", "gateway")


def tool(name: str) -> str:
    """Return the path of a program of this environment or this machine, or skip the test."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=str(beside)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str | Path) -> str:
    """Run a program, which must succeed; return what it wrote to stdout."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
