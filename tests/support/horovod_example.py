"""The example for Horovod, made short, and with ranks that can be killed."""

import shutil
from pathlib import Path
from typing import Any, Final

import yaml

from support import rank_processes
from support.rank_processes import Ranks

_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "horovod"
_SLOW: Final = """
import pathlib
import time
import train

hold = pathlib.Path({hold!r})
train_step = train.train_step

def slow(model, optimizer, step, seed):
    time.sleep(0.15)
    while step >= 46 and hold.exists():
        hold.with_suffix(".held").touch()
        time.sleep(0.05)
    return train_step(model, optimizer, step, seed)

train.train_step = slow
train.main()
"""
"""The example's training, with a rest in each step, so that there is time to kill it, and with
its last steps withheld while a file is there."""


def copied(folder: Path) -> Path:
    """Return a copy of the example."""
    return Path(shutil.copytree(_EXAMPLE, folder))


def short(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Return the experiment of a copy, shorter, and write it beside the code."""
    config: dict[str, Any] = yaml.safe_load((folder / "experiment.yaml").read_text())
    config["searcher"]["max_length"] = {"batches": 50}
    config["hyperparameters"]["validate_every"] = 2
    config |= {"name": name, **changes}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(config))
    return config


def stormy(folder: Path, found: Ranks) -> dict[str, Any]:
    """Return the experiment of a copy whose ranks are to be killed by their number."""
    found.prepare(folder, _SLOW.format(hold=str(found.hold)))
    return short(folder, "storm", entrypoint=rank_processes.ENTRYPOINT, max_restarts=100)
