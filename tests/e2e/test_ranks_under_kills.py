"""A trial of two ranks, killed wherever it can be, ends on the curve of one that nobody killed."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from support import rank_processes
from support.installation import Installation
from support.rank_processes import Ranks


@pytest.fixture
def two_slots(tmp_path: Path) -> Iterator[Installation]:
    """Return an installation with two slots that runs."""
    item = Installation(tmp_path / "data", slots=2, cold=False)
    item.up()
    yield item
    item.down()


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_two_ranks_under_kills_end_on_the_unbroken_curve(
    two_slots: Installation, tmp_path: Path
) -> None:
    """Whichever rank or agent is killed, all metrics and the best weights are the same bits."""
    found = Ranks(tmp_path / "ranks", two_slots.folder)
    code = found.shared(tmp_path / "code")
    calm = two_slots.submit(rank_processes.experiment("calm"), code)
    expected = rank_processes.outcome(two_slots, calm)
    storm = rank_processes.experiment("storm", slow=0.15, hold=str(found.hold))
    stormy = two_slots.submit(storm, code)
    faults: list[Callable[[], None]] = [partial(found.kill, rank) for rank in (0, 1, 0, 1)]
    faults += [two_slots.kill_agent, partial(everything, two_slots)]
    chance = random.Random(3)  # noqa: S311 - repeatable, not secret
    rank_processes.storm(two_slots, found, stormy, faults, chance)
    assert rank_processes.outcome(two_slots, stormy) == expected
    rank_processes.audited(two_slots, calm, stormy)
    two_slots.rung("audit")


def everything(installation: Installation) -> None:
    """Kill all of Rung, and start it again."""
    installation.kill_server()
    installation.up()
