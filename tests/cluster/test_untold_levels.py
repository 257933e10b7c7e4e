"""The raise of the level on a broker that does not tell what the replicas know."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.cli.operations.cluster.upgrade import SERVICES, upgrade
from rung.events import topic
from rung.runtime.assignment.faust_application import open_assignment
from rung.runtime.levels import InstallationLevel
from support.ledger.brokers import TANSU, Ground, reasons, settings, started

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(reasons()[TANSU] is not None, reason=str(reasons()[TANSU])),
]


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    """Return a new ledger on a broker of its own."""
    for broker in started(TANSU, tmp_path / "broker"):
        yield Ground(broker.url, tmp_path / "objects")


async def test_an_operator_confirms_what_the_broker_does_not_tell(ground: Ground) -> None:
    """It is refused with the way out, and raised by that; but not past missing replicas."""
    ledger = await ground.open()
    async with contextlib.AsyncExitStack() as stack:
        for name in SERVICES[:-1]:
            assignment = open_assignment(ground.url, service=name, topics=[topic.POOLS], level=2)
            await stack.enter_async_context(assignment.joined())
        confirmed = await upgrade(ground.url, settings(), replicas_upgraded=True, level=2)
        assert [line.partition(":")[0] for line in confirmed.obstacles] == [SERVICES[-1]]
        assignment = open_assignment(
            ground.url, service=SERVICES[-1], topics=[topic.POOLS], level=2
        )
        await stack.enter_async_context(assignment.joined())
        (refused,) = (await upgrade(ground.url, settings(), level=2)).obstacles
        assert "confirm it by --replicas-upgraded" in refused
        assert await InstallationLevel(ledger).read() == 1
        confirmed = await upgrade(ground.url, settings(), replicas_upgraded=True, level=2)
        assert (confirmed.before, confirmed.obstacles) == (1, [])
        assert await InstallationLevel(ledger).read() == 2
    await ledger.close()
