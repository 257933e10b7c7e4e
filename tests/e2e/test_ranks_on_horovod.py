"""The example for Horovod: by hand, managed, and with two ranks that are killed at random."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support import horovod_example, rank_processes
from support.installation import Installation
from support.rank_processes import Ranks

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
    return horovod_example.copied(tmp_path / "example")


def test_by_hand(folder: Path) -> None:
    """It trains to its length without a platform, shows what it reports, and keeps its model."""
    horovod_example.short(folder, "by hand")
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
    calm = installation.submit(horovod_example.short(folder, "calm"), folder)
    expected = rank_processes.outcome(installation, calm)
    found = Ranks(tmp_path / "ranks", installation.folder)
    stormy = installation.submit(horovod_example.stormy(folder, found), folder)
    kills = [partial(found.kill, rank) for rank in (0, 1, 0, 1)]
    chance = random.Random(3)  # noqa: S311 - repeatable, not secret
    rank_processes.storm(installation, found, stormy, [*kills, installation.kill_agent], chance)
    assert rank_processes.outcome(installation, stormy) == expected
    rank_processes.audited(installation, calm, stormy)
    installation.rung("audit")
