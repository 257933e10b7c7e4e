"""An archive in a bucket of a real S3 server, which refuses no name that is taken."""

import asyncio
from collections.abc import Iterator

import pytest

from rung.checkpoint_gc.archiver import archive_now
from rung.ledger import MemoryLedger
from rung.ledger.archive import ArchiveLedger, ArchiveSettings, verify
from rung.storage import ObjectStore, open_store
from servers.seaweed import Seaweed
from support.ledger.history import contents, simulated


@pytest.fixture
def store(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Give a store in the bucket."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"{seaweed.url}/archived")
    yield store
    store.close()


async def test_writers_at_the_same_time(store: ObjectStore) -> None:
    """Three that archive at once, each in its own way, leave one whole archive."""
    ledger: MemoryLedger = await simulated()
    await asyncio.gather(
        *(
            archive_now(ledger, store, ArchiveSettings(segment_bytes=size))
            for size in (20_000, 30_000, 30_000)
        )
    )
    report = await asyncio.to_thread(verify, store)
    assert report.problems == []
    assert await contents(await ArchiveLedger.open(store)) == await contents(ledger)
    done = await archive_now(ledger, store)
    assert not any(it.segments for it in done)
