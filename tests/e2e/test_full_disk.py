"""A disk that fills in the middle of a search costs time, and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installation import Installation
from support.small_disk import fill, small_disk
from support.user import config, wait_for

GRID = {"name": "grid", "max_length": {"batches": 40}, "max_concurrent_trials": 2}


@pytest.fixture
def disk() -> Iterator[Path]:
    """Give a disk that holds an installation and little else."""
    with small_disk(256) as folder:
        yield folder


@pytest.fixture
def installed(disk: Path) -> Iterator[Installation]:
    """Give an installation that has the disk to itself."""
    item = Installation(disk / "data")
    item.up()
    yield item
    (disk / "ballast").unlink(missing_ok=True)
    item.down()


def _restarts(shown: dict[str, Any]) -> list[int]:
    return [trial["restarts"] for trial in shown["trials"]]


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_a_search_on_a_full_disk_waits_and_finds_the_same(
    disk: Path, installed: Installation
) -> None:
    """No restart is counted though none is allowed; what is wrong is said; results are equal."""
    calm = installed.result(installed.submit(config("calm", GRID, max_restarts=0)))
    experiment = installed.submit(config("full", GRID, max_restarts=0))
    wait_for(lambda: installed.validations(experiment) > 6, "the search is under way")
    running = {trial.pid for trial in wait_for(installed.trials, "trials run")}
    ballast = fill(disk)

    def problems() -> list[str]:
        shown = installed.get_or_none("/status")
        return shown["problems"] if shown else []

    wait_for(lambda: any("is full" in each for each in problems()), "the status says so")
    assert "is full" in installed.rung("status").stdout
    wait_for(
        lambda: not running & {trial.pid for trial in installed.trials()},
        "the trials have ended on the full disk",
    )
    ballast.unlink()

    assert installed.result(experiment) == calm
    assert _restarts(installed.get(f"/experiments/{experiment}")) == [0, 0, 0, 0]
    wait_for(lambda: not problems(), "the status says that all is well again")
    assert "takes nothing new" not in installed.rung("status").stdout
    installed.rung("audit")
