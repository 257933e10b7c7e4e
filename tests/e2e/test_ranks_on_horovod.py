"""The example for Horovod: by hand, managed, and with two ranks that are killed at random."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import ranks
from e2e.installation import Installation
from e2e.ranks import Ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "horovod"
SLOW = """
import time
import train

step = train.train_step

def slow(*arguments):
    time.sleep(0.15)
    return step(*arguments)

train.train_step = slow
train.main()
"""
"""The example's training, with a rest in each step, so that there is time to kill it."""

pytestmark = [
    pytest.mark.horovod,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("horovod"),
]


@pytest.fixture(scope="module")
def installation(
    horovod: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Return an installation with two slots whose trials can import Horovod."""
    item = Installation(tmp_path_factory.mktemp("horovod") / "data", slots=2)
    item.up()
    yield item
    item.down()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the example."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example"))


def short(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Return the example's experiment, shorter, and write it beside the code."""
    config: dict[str, Any] = yaml.safe_load((folder / "experiment.yaml").read_text())
    config["searcher"]["max_length"] = {"batches": 50}
    config["hyperparameters"]["validate_every"] = 2
    config |= {"name": name, **changes}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(config))
    return config


def test_by_hand(folder: Path) -> None:
    """It trains to its length without a platform, shows what it reports, and keeps its model."""
    short(folder, "by hand")
    imports = os.pathsep.join([os.environ.get("PYTHONPATH", ""), *filter(None, sys.path)])
    result = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("RUNG_")}
        | {"PYTHONPATH": imports},
        capture_output=True,
        text=True,
        check=False,
    )
    shown = result.stdout + result.stderr
    assert result.returncode == 0, shown
    assert "validation" in shown
    assert "checkpoint stored" in shown


def test_two_ranks_under_kills_end_on_the_unbroken_curve(
    installation: Installation, folder: Path, tmp_path: Path
) -> None:
    """Whichever rank or agent is killed, all metrics and the best weights are the same bits."""
    calm = installation.submit(short(folder, "calm"), folder)
    expected = ranks.outcome(installation, calm)
    found = Ranks(tmp_path / "ranks", installation.folder)
    found.prepare(folder, SLOW)
    changes = {"entrypoint": ranks.ENTRYPOINT, "max_restarts": 100}
    stormy = installation.submit(short(folder, "storm", **changes), folder)
    kills = [partial(found.kill, rank) for rank in (0, 1, 0, 1)]
    chance = random.Random(3)  # noqa: S311 - repeatable, not secret
    ranks.storm(installation, stormy, [*kills, installation.kill_agent], chance)
    assert ranks.outcome(installation, stormy) == expected
    ranks.audited(installation, calm, stormy)
    installation.rung("audit")
