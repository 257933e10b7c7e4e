"""From `rung submit` to the first training step, on a machine that runs Rung.

The peer is the same script started as `python train.py`: what a person waits for without Rung.
The aim is under a second.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import figure

CODE = Path(__file__).parents[1] / "submitted" / "first_step"
TIMES = 5
CONFIG = {
    "name": "first-step",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
}


def by_rung() -> list[float]:
    """Return the seconds from starting `rung submit` to the first step, several times."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RUNG_DATA": folder}

        def rung(*arguments: str) -> Any:
            command = [sys.executable, "-m", "rung.cli", *arguments, "--json"]
            output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            return json.loads(output.stdout)

        def once(file: Path) -> float:
            started = time.time()
            experiment = rung("submit", str(file), str(CODE))["experiment_id"]
            rung("wait", experiment)
            trial = rung("show", experiment)["trials"][0]
            return float(trial["validations"][0]["metrics"]["moment"]) - started

        file = Path(folder) / "first-step.yaml"
        file.write_text(json.dumps(CONFIG))
        rung("up", "--detach", "--port", "0", "--slots", "1")
        try:
            once(file)  # the fork server is warm, as on a machine in use
            return [once(file) for _ in range(TIMES)]
        finally:
            rung("down")


def by_hand() -> list[float]:
    """Return the seconds from starting `python train.py` to the first step, several times."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TIMES):
            started = time.time()
            command = [sys.executable, str(CODE / "train.py")]
            output = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE)
            line = next(x for x in output.stdout.decode().splitlines() if "first step" in x)
            seconds.append(float(line.split()[-1]) - started)
    return seconds


if __name__ == "__main__":
    ours, theirs = statistics.median(by_rung()), statistics.median(by_hand())
    beside = f"{theirs:.2f} s, `python train.py`; wanted: under 1 s"
    figure("from `rung submit` to the first training step", ours, "s", beside=beside)
