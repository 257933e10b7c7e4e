"""The directory in a ledger: one of a release before, exports, imports, audits."""

import asyncio
import io
import sqlite3
from pathlib import Path

from gateway.directory.test_directory import Writer, deciding, following, user
from rung.events import TOPICS, topic
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.directory.state import new_directory
from rung.ledger import MemoryLedger, SqliteLedger
from rung.ledger.export.export import export, import_
from rung.runtime import audit


async def test_a_ledger_of_the_release_before_opens(tmp_path: Path) -> None:
    """It gets the topics; what is there from the beginning is not on record, and audits agree."""
    ledger = await SqliteLedger.open(tmp_path, partitions=2)
    identity = ledger.id
    await ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute(
            "DELETE FROM topics WHERE name IN (?, ?)", (topic.REQUESTS, topic.DIRECTORY)
        )
    database.close()
    ledger = await SqliteLedger.open(tmp_path)
    assert ledger.id == identity
    assert {ledger.partitions(name) for name in TOPICS} == {2}
    async with asyncio.timeout(60), following(ledger) as directory:
        assert directory.state == new_directory()
        assert (await audit(ledger, DirectoryProcessor())).same
        async with deciding(ledger):
            name = await Writer(ledger).write(user(1))
            await directory.until(lambda: directory.answer_to(name) is not None)
        assert directory.state.version == 1
        verdict = await audit(ledger, DirectoryProcessor())
        assert (verdict.same, verdict.decisions) == (True, 1)
    await ledger.close()


async def test_an_export_carries_the_directory(tmp_path: Path) -> None:
    """An import into an empty ledger has the same directory, and goes on from there."""
    ledger, out = MemoryLedger(), io.BytesIO()
    async with asyncio.timeout(60), following(ledger) as directory:
        async with deciding(ledger):
            writer = Writer(ledger)
            for number in range(4):
                last = await writer.write(user(number % 3))  # the last one is refused
            await directory.until(lambda: directory.answer_to(last) is not None)
        await export(ledger, out)
        out.seek(0)
        other = await SqliteLedger.open(tmp_path, partitions=4)
        await import_(other, out)
        async with following(other) as copied:
            assert copied.state == directory.state
            assert (await audit(other, DirectoryProcessor())).same
        await other.close()
