"""Export of a ledger, or of one experiment, as JSON lines in the format of `format`.

Heartbeats are left out; so are pools and placements in the export of one experiment, as they are
shared. Of dead letters such an export has those that drop a fact of the experiment: without them
its decisions cannot be decided again. Each partition's records keep their order, and a fact comes
before what names it by its position.

The seals come last: all of them, or those of the ranges in which the experiment has records. A
seal lists a digest for each experiment in its range, so it proves these records without others.
"""

from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Final, Protocol

import msgspec
from blake3 import blake3

from rung.events import topic
from rung.events.errors import LedgerError
from rung.events.topic import DECISIONS
from rung.ledger.export.format import (
    STREAMS,
    VERSION,
    End,
    Header,
    drop_in,
    end_message,
    fact_of,
    line_of,
)
from rung.ledger.export.importer import Imported, Undone, import_
from rung.ledger.port import Ledger, Record, read_all
from rung.ledger.seals import Heads, SealKey, group_name, read_heads

__all__ = ["Imported", "Sink", "Undone", "export", "history", "import_"]

Ends = dict[tuple[str, int], int]
"""The end of each partition of each topic."""
_SHARED: Final = (topic.POOLS, topic.PLACEMENTS, topic.REQUESTS, topic.DIRECTORY)


class Sink(Protocol):
    """A binary file, or anything else with its `write`."""

    def write(self, data: bytes, /) -> object:
        """Write bytes."""
        ...


async def export(
    ledger: Ledger, out: Sink, *, experiment_id: str | None = None, key: SealKey | None = None
) -> int:
    """Write the records that a ledger holds now, which may be in use; return their number.

    Args:
        ledger: read from.
        out: written to.
        experiment_id: only records of this experiment.
        key: of the installation, signs the export; without it, the export of one experiment does
            not prove that no range is missing.

    Raises:
        LedgerError: there is no such experiment.
    """
    heads = await _heads(ledger)
    seals = [
        await ledger.end(topic.SEALS, partition)
        for partition in range(ledger.partitions(topic.SEALS))
    ]
    ends = await _ends(ledger)
    records = 0
    async for _ in history(ledger, ends, experiment_id):
        records += 1
    if experiment_id is not None and not records:
        raise LedgerError(f"there is no experiment {experiment_id!r} in this ledger")
    lines = _Lines(out)
    lines.write(
        Header(
            version=VERSION,
            ledger=ledger.id,
            rung=version("rung"),
            experiment=experiment_id,
            records=records,
            partitions=ledger.partitions(topic.SEALS),
            keys=sorted({item.key for item in heads}),
        )
    )
    async for record in history(ledger, ends, experiment_id):
        lines.write(line_of(record))
    async for record in _seals(ledger, seals, experiment_id):
        lines.write(line_of(record))
    lines.finish(heads, key)
    return records


class _Lines:
    """The lines of an export, counted and digested while they are written."""

    def __init__(self, out: Sink) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()
        self._hash = blake3()
        self._count = 0

    def write(self, line: msgspec.Struct) -> None:
        data = self._encoder.encode(line) + b"\n"
        self._hash.update(data)
        self._count += 1
        self._out.write(data)

    def finish(self, heads: list[Heads], key: SealKey | None) -> None:
        """Write the last line, signed if there is a key."""
        end = End(
            lines=self._count,
            digest=self._hash.hexdigest(),
            heads=heads,
            key=key.public if key else None,
        )
        if key is not None:
            end = msgspec.structs.replace(end, signature=key.sign(end_message(end)))
        self._out.write(self._encoder.encode(end) + b"\n")


async def _heads(ledger: Ledger) -> list[Heads]:
    """Return the signed heads of a ledger that can be read."""
    found: list[Heads] = []
    for partition in range(ledger.partitions(topic.SEALS)):
        try:
            heads = await read_heads(ledger, partition)
        except (ValueError, LedgerError):  # verifying the export reports them as missing
            continue
        if heads is not None:
            found.append(heads)
    return found


async def _seals(
    ledger: Ledger, ends: list[int], experiment_id: str | None
) -> AsyncIterator[Record]:
    """Yield all seals, or those of the ranges in which an experiment has records."""
    name = None if experiment_id is None else group_name(experiment_id).encode()
    for partition, end in enumerate(ends):
        async for record in _records(ledger, topic.SEALS, partition, end):
            if name is None or (
                name in record.value and record.key.partition("/")[0] not in _SHARED
            ):
                yield record


async def history(
    ledger: Ledger,
    ends: Ends | None = None,
    experiment_id: str | None = None,
) -> AsyncIterator[Record]:
    """Yield the records of all topics but heartbeats and seals, in an export's order.

    Args:
        ledger: read from.
        ends: the end of each partition of each topic; by default the present one.
        experiment_id: only records of this experiment.
    """
    if ends is None:
        ends = await _ends(ledger)
    async for record in _decided(ledger, ends):
        if experiment_id is None or (record.key == experiment_id and record.topic not in _SHARED):
            yield record
    for name in STREAMS:
        for partition in range(ledger.partitions(name)):
            async for record in _records(ledger, name, partition, ends[name, partition]):
                if experiment_id is None or _is_of(record, experiment_id):
                    yield record


def _is_of(record: Record, experiment_id: str) -> bool:
    """Return whether a record of a stream belongs to the export of an experiment."""
    if record.topic == topic.DEADLETTER:
        drop = drop_in(record.value)
        return drop is not None and (drop.topic, drop.key) == (topic.EXPERIMENTS, experiment_id)
    return record.key.startswith(f"{experiment_id}.")


async def _decided(ledger: Ledger, ends: Ends) -> AsyncIterator[Record]:
    """Yield all facts with their decisions."""
    for facts, decisions in DECISIONS.items():
        for partition in range(ledger.partitions(facts)):
            streams = [
                _records(ledger, name, partition, ends[name, partition])
                for name in (facts, *decisions)
            ]
            async for record in _merged(streams[0], streams[1:]):
                yield record


async def _merged(
    facts: AsyncIterator[Record], decisions: list[AsyncIterator[Record]]
) -> AsyncIterator[Record]:
    """Yield each fact, then the decisions that it caused."""
    heads = [await anext(stream, None) for stream in decisions]
    async for fact in facts:
        yield fact
        for index, stream in enumerate(decisions):
            head = heads[index]
            while head is not None and fact_of(head.value) <= fact.position:
                yield head
                head = await anext(stream, None)
            heads[index] = head
    # Decisions without their fact are damage, and exported so that they can be found.
    for head, stream in zip(heads, decisions, strict=True):
        if head is not None:
            yield head
        async for record in stream:
            yield record


async def _records(ledger: Ledger, name: str, partition: int, end: int) -> AsyncIterator[Record]:
    start = await ledger.start(name, partition)
    async for record in read_all(ledger, name, partition, start, end):
        yield record


async def _ends(ledger: Ledger) -> Ends:
    """Return the present ends: decisions first, so that none lacks its fact."""
    decided = [name for names in DECISIONS.values() for name in names]
    return {
        (name, partition): await ledger.end(name, partition)
        for name in (*decided, *DECISIONS, *STREAMS)
        for partition in range(ledger.partitions(name))
    }
