"""The outbox: durable, in order, bounded."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.outbox_file import OutboxRefused, OutboxUnusable
from rung.agent.outbox.publisher import Publisher
from rung.events import decode, topic
from rung.events.trial import TrialStarted
from rung.ledger import MemoryLedger
from support.agent_rig import FickleLedger
from support.processes import eventually

pytestmark = pytest.mark.processes


def _started(run: int, agent_id: str = "a1") -> TrialStarted:
    return TrialStarted(experiment_id="e", trial_id="e.0", run=run, agent_id=agent_id)


async def _runs(ledger: MemoryLedger) -> list[int]:
    """Return the runs of what was appended, checking the origin's numbers."""
    records = await ledger.read(topic.EXPERIMENTS, 0, 0, 1_000_000)
    events = [decode(record.value) for record in records]
    sequences = [event.sequence for event in events]
    assert sequences == sorted(sequences, key=lambda number: number or 0)
    return [event.data.run for event in events if isinstance(event.data, TrialStarted)]


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    """Give an open outbox."""
    made = Outbox(tmp_path / "spool.db")
    made.open("a1", "host")
    yield made
    await made.close()


async def _reopened(outbox: Outbox) -> Outbox:
    """Return another outbox on the same file, as a new life of the agent would open it."""
    made = Outbox(outbox._file.path)
    made.open(None, "host")
    return made


async def test_each_life_has_an_origin_of_its_own(outbox: Outbox) -> None:
    """A restored folder gives numbers again, but never under an origin that had them."""
    again = await _reopened(outbox)
    number = again.put(_started(1))
    await again.durable(number)
    (entries,) = await again.read(0, 10)
    assert decode(entries.draft.value).origin == again.origin != outbox.origin
    await again.close()


async def test_what_is_durable_is_read_in_order(outbox: Outbox) -> None:
    """Facts come back in order, under the outbox's origin and its numbers."""
    last = outbox.put(*(_started(run) for run in range(1, 501)))
    await outbox.durable(last)
    again = await _reopened(outbox)
    entries = await again.read(0, 1000)
    await again.close()
    events = [decode(item.draft.value) for item in entries]
    assert [item.number for item in entries] == list(range(1, 501))
    assert [event.sequence for event in events] == list(range(1, 501))
    assert {event.origin for event in events} == {f"agent/a1/{outbox.id}/{outbox.session}"}
    assert [event.id for event in events[:2]] == [f"{outbox.origin}#1", f"{outbox.origin}#2"]


async def test_numbers_never_come_twice(tmp_path: Path) -> None:
    """What was forgotten is gone for good, and its numbers with it."""
    outbox = Outbox(tmp_path / "spool.db")
    outbox.open("a1", "host")
    outbox.put(_started(1), _started(2))
    await outbox.durable(2)
    outbox.forget(2)
    await outbox.durable(outbox.put(_started(3)))
    await outbox.close()
    again = Outbox(outbox._file.path)
    again.open("a1", "host")
    assert again.forgotten == 2
    assert [item.number for item in await again.read(2, 10)] == [3]
    again.forget(3)
    await again.close()
    last = Outbox(outbox._file.path)
    last.open("a1", "host")
    assert last.backlog == 0
    assert last.put(_started(4)) == 4
    await last.close()


async def test_incarnations(outbox: Outbox) -> None:
    """Each life has a higher number than the one before."""
    first = await outbox.start_incarnation()
    assert await outbox.start_incarnation() == first + 1
    again = await _reopened(outbox)
    assert await again.start_incarnation() == first + 2
    assert again.id == outbox.id
    await again.close()


async def test_incarnations_of_a_lost_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that lost its outbox goes on above the incarnations that it had."""
    numbers = []
    for minute in range(2):
        monkeypatch.setattr("time.time", lambda minute=minute: 1_800_000_000.0 + 60 * minute)
        outbox = Outbox(tmp_path / f"{minute}.db")
        outbox.open("a1", "host")
        numbers += [await outbox.start_incarnation() for _ in range(2)]
        await outbox.close()
    assert numbers == sorted(set(numbers))


async def test_names(tmp_path: Path, outbox: Outbox) -> None:
    """A outbox keeps its agent's name, and refuses another's."""
    again = await _reopened(outbox)
    assert again.agent_id == "a1"
    await again.close()
    other = Outbox(outbox._file.path)
    with pytest.raises(OutboxRefused, match="belongs to the agent 'a1', not 'a2'"):
        other.open("a2", "host")
    nameless = Outbox(tmp_path / "other.db")
    nameless.open(None, "host")
    assert nameless.agent_id == "host"
    await nameless.close()


@pytest.mark.parametrize("damage", ["everything", "header", "page", "mark"])
async def test_damaged(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set aside as it is, and the agent begins another, above its earlier incarnations."""
    path = tmp_path / "spool.db"
    outbox = Outbox(path)
    outbox.open("a1", "host")
    first = await outbox.start_incarnation()
    await outbox.durable(outbox.put(*(_started(run) for run in range(1_000))))
    await outbox.close()
    _damage(path, damage)
    before = path.read_bytes()
    now = time.time()
    monkeypatch.setattr("rung.agent.outbox.outbox_file.time.time", lambda: now + 5)
    again = Outbox(path)
    again.open("a1", "host")
    assert again.id != outbox.id
    assert (again.agent_id, again.backlog) == ("a1", 0)
    assert await again.start_incarnation() > first
    await again.durable(again.put(_started(1)))
    await again.close()
    (aside,) = path.parent.glob("spool.db.damaged-*Z")
    assert aside.read_bytes() == before


def _damage(path: Path, damage: str) -> None:
    if damage == "mark":
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE mark SET value = '1x' WHERE name = 'forgotten'")
        return
    data = bytearray(path.read_bytes())
    where = {"everything": slice(None), "header": slice(0, 100), "page": slice(8192, 12288)}[
        damage
    ]
    data[where] = b"!" * len(data[where])
    path.write_bytes(data)


async def test_killed_while_it_is_set_aside(tmp_path: Path) -> None:
    """The next start renames the rest: no write-ahead log stays beside another's file."""
    path = tmp_path / "spool.db"
    log = path.with_name("spool.db-wal")
    outbox = Outbox(path)
    outbox.open("a1", "host")
    await outbox.durable(outbox.put(_started(1)))
    written = log.read_bytes()
    await outbox.close()
    path.unlink()
    log.write_bytes(written)
    path.with_name("spool.damaged").touch()
    again = Outbox(path)
    again.open("a1", "host")
    assert (again.id != outbox.id, again.backlog) == (True, 0)
    assert not path.with_name("spool.damaged").exists()
    (aside,) = path.parent.glob("spool.db.damaged-*Z-wal")
    assert aside.read_bytes() == written
    await again.close()


@pytest.mark.parametrize("layout", ["0", "99"])
async def test_another_layout(outbox: Outbox, layout: str) -> None:
    """A file that another version wrote is refused."""
    outbox._file._db.execute("UPDATE mark SET value = ? WHERE name = 'layout'", (layout,))
    outbox._file._db.commit()
    with pytest.raises(OutboxRefused, match="written by another Rung"):
        Outbox(outbox._file.path).open("a1", "host")


async def test_drains_in_order(outbox: Outbox) -> None:
    """The ledger gets everything once, in order, through an absence too."""
    ledger = FickleLedger()
    publisher = Publisher(outbox, ledger)
    task = asyncio.create_task(publisher.run())
    outbox.put(*(_started(run) for run in range(100)))
    await publisher.empty()
    ledger.away = True
    outbox.put(*(_started(run) for run in range(100, 1500)))
    await ledger.refused.wait()
    outbox.put(_started(1500))
    ledger.away = False
    await publisher.empty()
    assert await _runs(ledger) == list(range(1501))
    task.cancel()


async def test_appended_but_not_forgotten(outbox: Outbox) -> None:
    """After a crash between append and removal the same events come again, with the same ids."""
    first, second = FickleLedger(), FickleLedger()
    await outbox.durable(outbox.put(*(_started(run) for run in range(5))))
    for ledger in (first, second):
        again = await _reopened(outbox)
        again._file.commit = lambda *_: None  # type: ignore[method-assign]  # crashes before removing
        publisher = Publisher(again, ledger)
        task = asyncio.create_task(publisher.run())
        await publisher.empty()
        task.cancel()
        await again.close()
    read = [await ledger.read(topic.EXPERIMENTS, 0, 0, 10) for ledger in (first, second)]
    assert read[0] == read[1]
    assert len(read[0]) == 5


def _pages(outbox: Outbox) -> int:
    (pages,) = outbox._file._db.execute("PRAGMA page_count").fetchone()
    return int(pages)


async def test_full_disk(tmp_path: Path) -> None:
    """While the disk is full, reports wait in memory up to the bound; then they go on in order."""
    outbox = Outbox(tmp_path / "spool.db", pending_bytes_max=20_000)
    outbox.open("a1", "host")
    outbox._file._db.execute(f"PRAGMA max_page_count = {_pages(outbox)}")
    run = 0
    while not outbox.saturated:
        outbox.put(_started(run, agent_id="x" * 100))
        run += 1
    room = asyncio.Event()
    outbox.when_room(room.set)
    assert outbox.unwritable or not room.is_set()
    outbox._file._db.execute("PRAGMA max_page_count = 100000")
    await room.wait()
    await outbox.durable(run)
    entries = await outbox.read(0, 10_000)
    assert [item.number for item in entries] == list(range(1, run + 1))
    assert not outbox.saturated
    await outbox.close()


async def test_a_full_disk_keeps_nothing_from_the_ledger(tmp_path: Path) -> None:
    """What the disk does not take is brought from memory, in order, once; memory is freed."""
    outbox = Outbox(tmp_path / "spool.db", pending_bytes_max=20_000)
    outbox.open("a1", "host")
    await outbox.durable(outbox.put(_started(0)))
    full, roomy = f"PRAGMA max_page_count = {_pages(outbox)}", "PRAGMA max_page_count = 100000"
    brought: list[int] = []
    for phase in range(4):
        outbox._file._db.execute(full if phase % 2 == 0 else roomy)
        for _ in range(4):
            while not outbox.saturated:
                outbox.put(_started(1, agent_id="x" * 100))
            last = outbox.last
            while not brought or brought[-1] < last:
                found = await outbox.read(brought[-1] if brought else 0, 100)
                brought += [item.number for item in found]
                outbox.forget(brought[-1])
            await outbox.durable(last)
            assert outbox.backlog == 0
        if phase % 2:  # it tries by itself, though nothing waits any more
            await eventually(lambda: outbox.unwritable is None)
    assert brought == list(range(1, outbox.last + 1))
    assert not outbox.saturated
    await outbox.close()
    again = await _reopened(outbox)
    assert (again.backlog, again.last) == (0, outbox.last)
    await again.close()


_WRITER = """
import asyncio, sys
from pathlib import Path
from rung.agent.outbox.outbox import Outbox
from rung.events.trial import TrialStarted

async def main():
    outbox = Outbox(Path(sys.argv[1]))
    outbox.open("a1", "host")
    run = outbox.forgotten + outbox.backlog
    while True:
        batch = [TrialStarted(experiment_id="e", trial_id="e.0", run=run + i, agent_id="a")
                 for i in range(1, 8)]
        run += len(batch)
        await outbox.durable(outbox.put(*batch))
        print(run, flush=True)

asyncio.run(main())
"""


@pytest.mark.e2e
async def test_killed_while_writing(tmp_path: Path) -> None:
    """What the outbox called durable survives SIGKILL at any moment, in order, without gaps."""
    path = tmp_path / "spool.db"
    for lives in range(1, 5):
        promised = await asyncio.to_thread(_write_and_die, path, lives * 3)
        outbox = Outbox(path)
        outbox.open("a1", "host")
        entries = await outbox.read(0, 1_000_000)
        await outbox.close()
        runs = [decode(item.draft.value).data for item in entries]
        assert [item.number for item in entries] == list(range(1, len(entries) + 1))
        assert [getattr(data, "run", 0) for data in runs] == list(range(1, len(entries) + 1))
        assert len(entries) >= promised


def _write_and_die(path: Path, lines: int) -> int:
    """Write in a process of its own, kill it, and return what it was promised at last."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(lines):
        last = writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.stdout.close()
    writer.wait()
    return int(rest[-1] if rest else last)


async def test_unwritable(tmp_path: Path) -> None:
    """A folder that cannot be made is refused with what to check; not for good."""
    (tmp_path / "file").touch()
    with pytest.raises(OutboxUnusable, match="check the disk and the folder's permissions") as no:
        Outbox(tmp_path / "file" / "spool.db").open("a1", "host")
    assert not isinstance(no.value, OutboxRefused)
