"""The sealer: whatever happens to it, its chains go on and verify."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rung.events import partition_of, topic
from rung.ledger import MemoryLedger, Record, SqliteLedger
from rung.ledger.seals import FILE, SealKey, decode_heads, read_heads
from rung.ledger.seals.verify import Known, verify
from rung.runtime.sealing.anchor import Anchor, read_anchor
from rung.runtime.sealing.sealer import Sealer, SealSettings, sealing
from support.ledger.events import populate
from support.ledger.sealed import example

KEY = SealKey.generate()
TESTS = Path(__file__).parents[1]


@pytest.mark.e2e
async def test_killed_at_any_moment(tmp_path: Path) -> None:
    """SIGKILL at random moments: each time the record verifies, and sealing goes on from it."""
    seed = random.randrange(1 << 32)  # noqa: S311 - a moment, not a secret
    chance = random.Random(seed)  # noqa: S311 - as above
    sealed = 0
    for number in range(6):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "runtime.sealing",
            str(tmp_path),
            cwd=TESTS,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        if number:
            await process.stdout.readline()
        else:  # also while it is starting, before there is anything
            await asyncio.wait([asyncio.ensure_future(process.stdout.readline())], timeout=2)
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=chance.random() / 2)
        process.kill()
        await process.wait()
        if not (tmp_path / FILE).exists():
            continue
        ledger = await SqliteLedger.open(tmp_path / "ledger")
        key = SealKey.load(tmp_path / FILE)
        report = await verify(ledger, Known(keys=key.trusted))
        assert report.problems == [], f"seed {seed}"
        assert report.records >= sealed, f"seed {seed}"
        sealed = report.records
        await ledger.close()
    ledger = await SqliteLedger.open(tmp_path / "ledger")
    await Sealer(ledger, key).finish()
    report = await verify(ledger, Known(keys=key.trusted))
    assert (report.problems, report.unsealed) == ([], [])
    assert report.records > 100
    await ledger.close()


async def test_what_is_appended_is_sealed_soon_and_the_rest_at_the_end() -> None:
    """While it runs it seals by itself; what came last is sealed once the others have stopped."""
    ledger = MemoryLedger(partitions=2)
    settings = SealSettings(every_s=0.01, heads_every_s=0.01, busy_share=1.0)
    async with sealing(Sealer(ledger, KEY, settings=settings)):
        await populate(ledger, ["aaaaaaaa"])
        async with asyncio.timeout(10):
            async for _ in ledger.follow(topic.SEALS, 0, 0):
                if not (await verify(ledger)).unsealed:
                    break
        await populate(ledger, ["bbbbbbbb"])
    report = await verify(ledger, Known(keys=KEY.trusted))
    assert (report.problems, report.unsealed) == ([], [])
    heads = await read_heads(ledger, 0)
    assert heads is not None
    assert heads.position == await ledger.end(topic.SEALS, 0)


class Asked(MemoryLedger):
    """A ledger that keeps what was read from it, or asked of its ends."""

    def __init__(self) -> None:
        super().__init__(partitions=2)
        self.places: list[tuple[str, int]] = []

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        self.places.append((topic, partition))
        return await super().end(topic, partition)

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return records."""
        self.places.append((topic, partition))
        return await super().read(topic, partition, position, limit)


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - several things may make it true
            await asyncio.sleep(0.01)


async def test_nothing_is_asked_of_an_idle_ledger() -> None:
    """Once all is sealed the sealer waits for appends, and then looks where something came."""
    ledger = Asked()
    every = SealSettings(every_s=0.01, heads_every_s=0.01, busy_share=1.0)
    sealer = Sealer(ledger, KEY, settings=every)
    async with sealing(sealer):
        await populate(ledger, ["aaaaaaaa"])
        await _until(lambda: not sealer.idle)
        await _until(lambda: sealer.idle)
        ledger.places.clear()
        await asyncio.sleep(20 * every.every_s)
        assert ledger.places == []
        draft = example("rung.trial.exited.v1")
        await ledger.append([draft])
        await _until(lambda: bool(ledger.places) and sealer.idle)
        place = (topic.EXPERIMENTS, partition_of(draft.key, 2))
        assert set(ledger.places) == {place, (topic.SEALS, 0), (topic.SEALS, 1)}
        assert (await verify(ledger)).unsealed == []


async def test_an_anchor_that_hangs() -> None:
    """Sealing goes on meanwhile, and once it takes heads again it gets the newest ones alone."""
    held, asked, taken = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        taken.append(await reader.readexactly(length))
        asked.set()
        await held.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    ledger = MemoryLedger(partitions=1)
    every = SealSettings(every_s=0.01, heads_every_s=0.01, anchor_every_s=0.01, busy_share=1.0)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    anchor = Anchor(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    sealer = Sealer(ledger, KEY, settings=every, anchor=anchor)
    async with server, sealing(sealer):
        await populate(ledger, ["aaaaaaaa"])
        await asked.wait()
        for number in range(5):
            await populate(ledger, [f"bbbbbbb{number}"])
            await _until(lambda: not sealer.idle)
            await _until(lambda: sealer.idle)
        assert len(taken) == 1
        end = await ledger.end(topic.SEALS, 0)
        held.set()
        await _until(lambda: len(taken) > 1)
        assert [decode_heads(line).position for line in taken[1].splitlines()] == [end]


async def test_a_range_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is to seal, a seal covers no more than so many records."""
    monkeypatch.setattr("rung.runtime.sealing.sealer.RANGE_RECORDS_MAX", 50)
    monkeypatch.setattr("rung.runtime.sealing.sealer.READ", 50)
    ledger = MemoryLedger(partitions=1)
    await ledger.append([example("rung.trial.exited.v1")] * 333)
    await Sealer(ledger, KEY).finish()
    assert await ledger.end(topic.SEALS, 0) == 7
    assert (await verify(ledger)).records == 333


async def test_seals_that_were_cut_off_are_not_covered_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sealer that finds fewer seals than the signed heads say leaves the heads as they are."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa"])
    await Sealer(ledger, KEY).finish()
    heads = await read_heads(ledger, 0)
    ledger._stream(topic.SEALS, 0).records.pop()
    await populate(ledger, ["bbbbbbbb"])
    await Sealer(ledger, KEY).finish()
    assert await read_heads(ledger, 0) == heads
    assert not (await verify(ledger, Known(keys=KEY.trusted))).whole
    assert "seals were cut off" in capsys.readouterr().out


async def test_an_anchor_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said, nothing else stops, and it gets the heads as soon as it can be written."""
    ledger = MemoryLedger(partitions=1)
    file = tmp_path / "gone" / "anchor"
    sealer = Sealer(ledger, KEY, anchor=Anchor(str(file)))
    await populate(ledger, ["aaaaaaaa"])
    await sealer.finish()
    assert "anchor not written" in capsys.readouterr().out
    file.parent.mkdir()
    await sealer.finish()
    assert [heads.partition for heads in await read_anchor(str(file))] == [0]
