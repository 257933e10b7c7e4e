"""An audit notices when imported decisions were made a second time, altered or lost."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable

import pytest

from rung.checkpoint_gc.service import components as checkpoint_gc
from rung.cli.operations.components import CONSUMERS, audit_all
from rung.cli.operations.ledger.import_recovery import hand_over
from rung.events import decode, topic
from rung.events.topic import FACTS_OF
from rung.ledger import Draft, Ledger, MemoryLedger
from rung.ledger.export.export import export, import_
from rung.runtime.audit.imports import audit_imports
from rung.runtime.service import serve
from rung.scheduler.service import components as scheduler
from rung.searcher.service import components as searcher
from rung.sim.scenario import EXPERIMENT
from rung.storage import FolderStore
from support.ledger.history import simulated

AT = "2026-01-01T00:00:00.000Z"


async def lines_of(ledger: Ledger) -> list[bytes]:
    """Return an export."""
    out = io.BytesIO()
    await export(ledger, out)
    return out.getvalue().splitlines()


async def records_of(ledger: Ledger, name: str) -> list[Draft]:
    """Return what lies on a topic of one partition, as it would be appended."""
    records = await ledger.read(name, 0, 0, 1_000_000)
    return [Draft(name, record.key, record.value) for record in records]


@contextlib.asynccontextmanager
async def services(ledger: Ledger, store: FolderStore) -> AsyncIterator[None]:
    """Run the deciders and forwarders of an installation."""
    serving = [
        asyncio.create_task(service)
        for service in (serve(ledger, (*searcher(), *scheduler(), *checkpoint_gc(store))),)
    ]
    try:
        yield
    finally:
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def until(ledger: Ledger, name: str, count: int) -> None:
    """Wait until as many records lie on a topic."""
    async with asyncio.timeout(30):
        position = 0
        async for records in ledger.follow(name, 0, 0):
            position += len(records)
            if position >= count:
                return


async def test_decisions_made_a_second_time_are_found(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Facts that came without their decisions, as earlier versions could leave them, show."""
    source = await simulated()
    ledger = MemoryLedger(partitions=1)
    for name in (topic.EXPERIMENTS, topic.POOLS):
        await ledger.append(await records_of(source, name))
    ends = {name: await source.end(name, 0) for name in (*FACTS_OF, topic.POOLS)}
    async with services(ledger, FolderStore(tmp_path_factory.mktemp("store"))):
        await until(ledger, topic.SEARCHES, ends[topic.SEARCHES])
        await until(ledger, topic.POOLS, ends[topic.POOLS] + 1)
    verdict = await audit_all(ledger)
    assert not verdict.same
    assert verdict.differences == []
    assert any(
        line.startswith(f"{EXPERIMENT}: ") and "trained, a second time" in line
        for line in verdict.imports
    )
    assert not (await audit_all(ledger, EXPERIMENT)).same
    assert await audit_imports(ledger, "another") == []


async def test_what_is_imported_whole_is_not_decided_a_second_time(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Services on an imported ledger leave its history as it is, and an audit finds nothing."""
    source = await simulated()
    ledger = MemoryLedger(partitions=1)
    await import_(ledger, await lines_of(source), consumers=CONSUMERS, at=AT, finish=hand_over)
    async with services(ledger, FolderStore(tmp_path_factory.mktemp("store"))):
        decided = await ledger.end(topic.SEARCHES, 0)
        await ledger.append([Draft(topic.EXPERIMENTS, EXPERIMENT, b"no event")])
        await until(ledger, topic.SEARCHES, decided + 1)
    verdict = await audit_all(ledger)
    assert verdict.imports == []
    assert (await audit_all(source)).same
    assert await audit_imports(source) == []
    again = MemoryLedger(partitions=1)
    await import_(again, await lines_of(ledger), at=AT)
    assert await audit_imports(again) == []


def _drop(values: list[bytes]) -> None:
    del values[-1]


def _alter(values: list[bytes]) -> None:
    event = json.loads(values[0])
    event["time"] = "2000-01-01T00:00:00Z"
    values[0] = json.dumps(event).encode()


def _repeat(values: list[bytes]) -> None:
    values.insert(1, values[0])


def _add(values: list[bytes]) -> None:
    event = json.loads(values[-1])
    event["causeposition"] += 1_000
    values.append(json.dumps(event).encode())


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (_drop, "were imported from the ledger"),
        (_alter, "are not those that were imported"),
        (_repeat, None),
        (_add, None),
    ],
)
@pytest.mark.parametrize("name", list(FACTS_OF))
async def test_imported_decisions_are_those_on_record(
    change: Callable[[list[bytes]], None], finding: str | None, name: str
) -> None:
    """One lost or altered is found; a repetition, or what came afterwards, is none of that."""
    ledger = MemoryLedger(partitions=1)
    await import_(ledger, await lines_of(await simulated()), at=AT)
    stream = ledger._streams[name, 0]
    values = [record.value for record in stream.records]
    change(values)
    key = decode(values[0]).key
    stream.records.clear()
    await ledger.append([Draft(name, key, value) for value in values])
    found = await audit_imports(ledger)
    assert len(found) == (finding is not None)
    assert finding is None or (finding in found[0] and f"{name} of {key}: " in found[0])


async def test_an_import_that_is_not_complete_is_found() -> None:
    """Also in a ledger that is not its own, such as an export that is audited."""
    ledger = MemoryLedger(partitions=1)
    await import_(ledger, await lines_of(await simulated()), at=AT)
    del ledger._streams[topic.IMPORTS, 0].records[-1]
    assert "is not complete" in (await audit_imports(ledger))[0]
    copy = MemoryLedger(partitions=1)
    await copy.append(await records_of(ledger, topic.IMPORTS))
    assert "is not complete" in (await audit_imports(copy))[0]
