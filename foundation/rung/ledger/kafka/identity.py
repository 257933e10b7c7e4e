"""Who a ledger on a cluster is: the topic `<prefix>.ledger`.

Its records have keys that never repeat, so that compaction keeps all of them, and the first one
counts: two who make the same ledger at the same time agree on it.
"""

import time
import uuid
from typing import Final

import msgspec
from aiokafka import errors

from rung.events import TOPICS
from rung.events.errors import LedgerDamaged
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import failed
from rung.ledger.kafka.fetch import (
    AT_ONCE_MS,
    Wanted,
    answers,
    end_of,
    fetch_request,
    unpack,
)
from rung.ledger.kafka.settings import Address
from rung.ledger.kafka.writer import Writer

IDENTITY: Final = "ledger"
"""The topic that says who the ledger is."""
_FORMAT: Final = 1
_READ_BYTES: Final = 1 << 20


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


async def identity(cluster: Cluster) -> Identity | None:
    """Return who the ledger on a cluster is, None if it was not made yet.

    Raises:
        LedgerDamaged: it is of a newer version, or its record is damaged.
    """
    name = cluster.address.topic(IDENTITY)
    if not cluster.metadata.partitions(name):
        return None
    request = fetch_request(
        [Wanted(name, 0, 0)], wait_ms=AT_ONCE_MS, bytes_max=_READ_BYTES, bytes_each=_READ_BYTES
    )

    async def attempt() -> list[bytes]:
        answer = await cluster.send(cluster.metadata.leader(name, 0), request, "read")
        found = next(answers(answer), None)
        if found is None:
            raise errors.StaleMetadata(f"nothing is said of {name}")
        if found.code:
            raise failed(found.code)
        values = [record.value for record in unpack(found.raw, name, 0, 0).records]
        if not values and await end_of(cluster, name, 0, seen=found.end):
            raise errors.StaleMetadata(f"what {name} holds is not told")  # Tansu, in a hurry
        return values

    values = await cluster.persist(attempt, f"reading {name}")
    if not values:
        return None
    try:
        found = _decoder.decode(values[0])
    except msgspec.DecodeError as error:
        raise LedgerDamaged(f"{name} does not say who the ledger is: {error}") from error
    if found.version != _FORMAT:
        raise LedgerDamaged(
            f"{cluster.address} was made by a newer Rung (version {found.version} of the layout; "
            f"this one knows {_FORMAT}). Upgrade Rung"
        )
    return found


async def introduce(cluster: Cluster, count: int) -> Identity:
    """Say who the ledger is, unless somebody else was first."""
    drawn = Identity(id=str(uuid.uuid4()), partitions=count, created_ms=int(time.time() * 1000))
    writer = Writer(cluster)
    place = (cluster.address.topic(IDENTITY), 0)
    await writer.append({place: [(drawn.id.encode(), _encoder.encode(drawn))]})
    await writer.close()
    found = await identity(cluster)
    if found is None:
        raise LedgerDamaged(f"{place[0]} is empty after a record was written to it")
    return found
