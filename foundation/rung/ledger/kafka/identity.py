"""Who a ledger on a cluster is: the topic `<prefix>.ledger`.

Its records have keys that never repeat, so that compaction keeps all of them, and the first one
counts: two who make the same ledger at the same time agree on it.
"""

import time
import uuid
from typing import Final

import msgspec

from rung.events import TOPICS
from rung.events.errors import LedgerDamaged
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.reader import Reader
from rung.ledger.kafka.settings import Address
from rung.ledger.kafka.writer import Writer

IDENTITY: Final = "ledger"
"""The topic that says who the ledger is."""
_FORMAT: Final = 1


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a ledger is."""

    id: str
    partitions: int
    """Of each topic; keys find their partitions by it, so it never changes."""
    version: int = _FORMAT
    created_ms: int = 0


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Identity)


def names(address: Address) -> list[str]:
    """Return what the topics of a ledger are called on the cluster."""
    return [address.topic(name) for name in (IDENTITY, *TOPICS)]


async def identity(cluster: Cluster, reader: Reader) -> Identity | None:
    """Return who the ledger on a cluster is, None if it was not made yet.

    Raises:
        LedgerDamaged: it is of a newer version, or its record is damaged.
    """
    name = cluster.address.topic(IDENTITY)
    if name not in cluster.topics:
        return None
    start = await reader.start(IDENTITY, 0)
    records = await reader.read(IDENTITY, 0, start, 1)
    if not records:
        return None
    try:
        found = _decoder.decode(records[0].value)
    except msgspec.DecodeError as error:
        raise LedgerDamaged(f"{name} does not say who the ledger is: {error}") from error
    if found.version != _FORMAT:
        raise LedgerDamaged(
            f"{cluster.address} was made by a newer Rung (version {found.version} of the layout; "
            f"this one knows {_FORMAT}). Upgrade Rung"
        )
    return found


async def introduce(cluster: Cluster, reader: Reader, count: int) -> Identity:
    """Say who the ledger is, unless somebody else was first."""
    drawn = Identity(id=str(uuid.uuid4()), partitions=count, created_ms=int(time.time() * 1000))
    writer = Writer(cluster)
    name = cluster.address.topic(IDENTITY)
    try:
        await writer.append({(name, 0): [(drawn.id.encode(), _encoder.encode(drawn))]})
    finally:
        await writer.close()
    found = await identity(cluster, reader)
    if found is None:
        raise LedgerDamaged(f"{name} is empty after a record was written to it")
    return found
