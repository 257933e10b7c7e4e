"""What is said of a ledger that is not sealed, or into which an import began and did not end."""

import re
from datetime import UTC, datetime

import pytest

from ledger.events import populate
from ledger.sealed import example
from rung.cli.operations.cluster.record_status import SealStatus, look_at_imports, look_at_seals
from rung.events import LedgerDamaged, LedgerError, partition_of, topic
from rung.events.ledger_import import ImportStarted
from rung.ledger import MemoryLedger
from rung.ledger.export.import_record import ImportRecord, check_imported, imports_of
from rung.ledger.seals import SealKey
from rung.runtime.sealing.sealer import Sealer

KEY = SealKey.generate()
NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("from_heads", [True, False])
async def test_what_is_sealed_and_what_is_not(*, from_heads: bool) -> None:
    """Records behind the newest seals are counted, with or without the signed heads."""
    ledger = MemoryLedger(partitions=2)
    await populate(ledger, ["aaaaaaaa"])
    before = await look_at_seals(ledger, from_heads=from_heads)
    assert before.unsealed == before.records > 0
    await Sealer(ledger, KEY).finish()
    sealed = await look_at_seals(ledger, from_heads=from_heads)
    assert sealed == SealStatus(records=before.records, unsealed=0)
    draft = example("rung.trial.exited.v1")
    (position,) = await ledger.append([draft])
    after = await look_at_seals(ledger, from_heads=from_heads)
    assert (after.records, after.unsealed) == (before.records + 1, 1)
    partition = partition_of(draft.key, 2)
    await ledger.trim(topic.EXPERIMENTS, partition, position)
    assert (await look_at_seals(ledger, from_heads=from_heads)).unsealed == 1


async def test_seals_that_were_cut_off() -> None:
    """Signed heads that are further than the seals are told."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa"])
    await Sealer(ledger, KEY).finish()
    ledger._stream(topic.SEALS, 0).records.pop()
    with pytest.raises(LedgerDamaged, match="seals were cut off"):
        await look_at_seals(ledger, from_heads=True)


@pytest.mark.parametrize(
    ("unsealed", "since", "words"),
    [
        (0, None, None),
        (2, "2026-01-01T01:59:30.000Z", None),
        (2, "2026-01-01T01:58:30.000Z", "2 of 9 records are not sealed, the oldest of 2026-01-01"),
        (9, "2026-01-01T01:58:30.000Z", "the ledger is not sealed .*RUNG_SEAL_KEY"),
        (9, "x", "not sealed"),
    ],
)
def test_what_is_wrong_with_seals(unsealed: int, since: str | None, words: str | None) -> None:
    """Seconds are no problem; a minute is, and what to do is said."""
    problem = SealStatus(records=9, unsealed=unsealed, since=since).problem(NOW)
    assert (problem is None) == (words is None)
    assert re.search(words or "", problem or "")


async def test_an_import_that_was_left_unfinished() -> None:
    """It is told until it is complete; those that came along with an export are not."""
    ledger = MemoryLedger(partitions=2)
    started = ImportStarted(
        ledger_id=ledger.id,
        import_id="f00",
        exported_from="c0ffee",
        exported_by="1.0",
        experiment=None,
        records=7,
        experiments=1,
        starts={},
    )
    record = ImportRecord(ledger, started, "2026-01-01T00:00:00.000Z")
    await record.start([], None)
    (found,) = await look_at_imports(ledger)
    assert (found.exported_from, found.records) == ("c0ffee", 7)
    assert "Run the same `rung ledger import` again" in found.problem
    with pytest.raises(LedgerError, match="to give it up, go on under another prefix"):
        await check_imported(ledger)
    await record.complete(forwarded=0, lost=0, undeleted=0)
    assert await look_at_imports(ledger) == []
    assert len(await imports_of(ledger)) == 1
