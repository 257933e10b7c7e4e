"""`rung cluster upgrade`: raises the logic level once all replicas of the processors know it."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

from msgspec import Struct, field

from rung.cli.operations.cluster.replicas import Replica, replicas_of
from rung.cli.operations.service import tables
from rung.events.installation import LEVEL
from rung.ledger.kafka import KafkaLedger, KafkaSettings, parse_address
from rung.ledger.kafka.cluster import connect
from rung.runtime.levels import InstallationLevel, raise_level
from rung.runtime.service import Decider

SERVICES: Final = tuple(
    name for name, table in tables().items() if any(isinstance(it, Decider) for it in table)
)
"""Services with a processor."""


class Upgrade(Struct, kw_only=True):
    """The result."""

    before: int
    """The level that was on record."""
    level: int
    """The newest one that this release knows."""
    obstacles: list[str] = field(default_factory=list[str])
    """Why it cannot be raised yet, one line for each replica."""


async def upgrade(
    url: str,
    settings: KafkaSettings,
    *,
    dry_run: bool = False,
    level: int = LEVEL,
) -> Upgrade:
    """Raise a cluster's logic level, unless a replica of a processor does not know it.

    Args:
        url: of the ledger.
        settings: how to reach the cluster.
        dry_run: only look.
        level: this release's.

    Raises:
        LedgerError: no broker answers, there is no ledger, or its level is above this release's.
    """
    address = parse_address(url)
    ledger = await KafkaLedger.open(url, None, settings=settings)
    try:
        done = Upgrade(before=await InstallationLevel(ledger).read(), level=level)
        if done.before < level:
            cluster = await connect(address, settings)
            try:
                replicas = {name: await replicas_of(cluster, name) for name in SERVICES}
            finally:
                await cluster.close()
            done.obstacles = obstacles(replicas, level)
        if not (dry_run or done.obstacles):
            await raise_level(ledger, level)
    finally:
        await ledger.close()
    return done


def obstacles(replicas: Mapping[str, Sequence[Replica]], level: int) -> list[str]:
    """Return a line for each replica that does not know a level, or service without a replica."""
    release = version("rung")
    missing = [
        f"{name}: no replica runs; start it with release {release}"
        for name, there in replicas.items()
        if not there
    ]
    return missing + [
        f"{name} on {replica.host} knows logic levels up to {replica.level}; replace it by release"
        f" {release}"
        for name, there in replicas.items()
        for replica in there
        if replica.level < level
    ]
