"""The estimate of the time left, against the time that was left: searches of all methods.

Trials sleep for known times, so other work on the machine matters little. Each search is asked for
its estimate once a second; what is printed is estimate / real from a third of a search on. Some
have the pool to themselves, some share it: with searches before them, beside them, of higher
priority.

    python -m benchmarks.search.time_left [--only asha,hyperband] [--scale 1.0]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.figures import figure

from rung.client import Client

CODE: Final = Path(__file__).parents[1] / "submitted" / "timed"
SLOTS: Final = 4
FACTOR: Final = 1.5
"""What the estimate is to be right within."""
LEAST_S: Final = 3.0
"""With less left than this, no estimate is judged: it is shown in whole seconds."""

ASHA: Final = {"num_rungs": 4, "divisor": 3, "max_time": 27, "max_trials": 100}
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "single": {"name": "single", "max_time": 200},
    "grid": {"name": "grid", "max_time": 20, "max_concurrent_trials": 16},
    "random": {"name": "random", "max_time": 20, "max_trials": 40, "max_concurrent_trials": 16},
    "random, 2 at once": {
        "name": "random", "max_time": 20, "max_trials": 20, "max_concurrent_trials": 2,
    },
    "random, few long": {
        "name": "random", "max_time": 120, "max_trials": 6, "max_concurrent_trials": 16,
    },
    "asha": {"name": "async_halving", **ASHA, "max_concurrent_trials": 16},
    "asha, 4 at once": {"name": "async_halving", **ASHA, "max_concurrent_trials": 4},
    "asha, promotion": {
        "name": "async_halving", **ASHA, "stop_once": False, "max_concurrent_trials": 16,
    },
    "adaptive_asha": {
        "name": "adaptive_asha", "max_time": 27, "max_trials": 80, "divisor": 3,
        "max_concurrent_trials": 16,
    },
    "hyperband": {"name": "hyperband", "max_time": 27, "max_concurrent_trials": 16},
}  # fmt: skip


class Search(NamedTuple):
    """A search, and when it is submitted."""

    method: str
    after_s: float = 0.0
    priority: int = 42
    unit_s: float = 0.1


SCENES: Final[Mapping[str, tuple[Search, ...]]] = {
    **{name: (Search(name),) for name in METHODS},
    "random behind random": (Search("random"), Search("random", 5)),
    "asha beside hyperband": (Search("asha, 4 at once"), Search("hyperband", 3)),
    "hyperband behind random": (Search("random"), Search("hyperband", 4)),
    "grid, then a more important one": (Search("grid"), Search("random, few long", 8, 10)),
    "promotion below random": (Search("asha, promotion", 0, 50), Search("random", 4, 20)),
}


def experiment(search: Search, scale: float) -> str:
    """Return the experiment file, in JSON, which is YAML too."""
    method = METHODS[search.method]
    space: dict[str, Any] = {
        "limit": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 6},
        "slowness": {"type": "double", "minval": 0.5, "maxval": 1.5, "count": 4},
    }
    if method["name"] == "single":
        space = {"limit": 0.5, "slowness": 1.0}
    return json.dumps(
        {
            "name": search.method,
            "entrypoint": "python3 train.py",
            "hyperparameters": {
                **space, "start_s": 0.5 * scale, "unit_s": search.unit_s * scale, "every": 1,
            },
            "searcher": {"metric": "loss", "time_metric": "batches", **method},
            "resources": {"priority": search.priority},
            "reproducibility": {"experiment_seed": 7},
        }
    )  # fmt: skip


class Sample(NamedTuple):
    """What was estimated at a time."""

    at: float
    eta_s: float | None
    progress: float


def measure(searches: tuple[Search, ...], scale: float, folder: str) -> list[list[Sample]]:
    """Return the estimates of each search, the last of each at its end."""
    environment = {**os.environ, "RUNG_DATA": folder}

    def rung(*arguments: str) -> Any:
        command = [sys.executable, "-m", "rung.cli", *arguments, "--json"]
        output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        return json.loads(output.stdout or b"null")

    rung("up", "--detach", "--port", "0", "--slots", str(SLOTS))
    try:
        return _sampled(searches, scale, folder, rung)
    finally:
        rung("down")


def _sampled(
    searches: tuple[Search, ...], scale: float, folder: str, rung: Any
) -> list[list[Sample]]:
    samples: list[list[Sample]] = [[] for _ in searches]
    names: list[str | None] = [None for _ in searches]
    begun, over = time.time(), set[int]()
    with Client(data=Path(folder)) as client:
        while len(over) < len(searches):
            for index, search in enumerate(searches):
                name = names[index]
                if index in over:
                    continue
                if name is None:
                    if time.time() >= begun + search.after_s * scale:
                        file = Path(folder) / f"{index}.yaml"
                        file.write_text(experiment(search, scale))
                        names[index] = rung("submit", str(file), str(CODE))["id"]
                    continue
                found = client.experiment(name)
                samples[index].append(Sample(time.time(), found.eta_seconds, found.progress))
                if found.ended_at is not None:
                    over.add(index)
            time.sleep(0.5)
    return samples


def ratios(samples: list[Sample]) -> list[float | None]:
    """Return estimate / real from a third of a search on; None where there was no estimate."""
    begun, end = samples[0].at, samples[-1].at
    return [
        None if each.eta_s is None else each.eta_s / (end - each.at)
        for each in samples
        if each.at - begun >= (end - begun) / 3 and end - each.at >= LEAST_S
    ]


def main() -> None:
    """Print a line for each search, and how often the estimate was right within the factor."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", type=float, default=1.0, help="How much longer everything is.")
    parser.add_argument("--keep", help="A folder for the data folders.")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(";") if name] or list(SCENES)
    print("estimate / real, from a third of the search on")
    print(f"{'search':44} {'took':>6} {'least':>6} {'median':>6} {'most':>6}  within {FACTOR}")
    all_right = all_count = 0
    for scene in chosen:
        with tempfile.TemporaryDirectory() as temporary:
            folder = temporary
            if options.keep:
                folder = str(Path(options.keep) / scene.replace(" ", "-").replace(",", ""))
                Path(folder).mkdir(parents=True, mode=0o700)
            measured = measure(SCENES[scene], options.scale, folder)
        for search, samples in zip(SCENES[scene], measured, strict=True):
            found = ratios(samples)
            told = [each for each in found if each is not None]
            right = sum(1 / FACTOR <= each <= FACTOR for each in told)
            all_right, all_count = all_right + right, all_count + len(found)
            took = samples[-1].at - samples[0].at
            name = scene if len(measured) == 1 else f"{search.method} ({scene})"
            row = [min(told), statistics.median(told), max(told)] if told else []
            shown = " ".join(f"{each:6.2f}" for each in row) or f"{'-':>20}"
            print(f"{name:44} {took:4.0f} s {shown}  {right} of {len(found)}", flush=True)
            progress = [each.progress for each in samples]
            if progress != sorted(progress):
                print(f"{'':44} progress shrank")
    figure(
        f"time left: estimates right within {FACTOR:g} times, from a third of a search on",
        100 * all_right / max(all_count, 1),
        "%",
        beside=f"{all_right} of {all_count}, {len(chosen)} scenes",
    )


if __name__ == "__main__":
    main()
