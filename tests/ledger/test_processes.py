"""Several processes on one SQLite ledger, and what happens when they are killed."""

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from rung.events import partition_of, topic
from rung.ledger import SqliteLedger
from support.ledger.conformance import draft, read_all, take

pytestmark = pytest.mark.ledger

APPENDER = Path(__file__).with_name("appender.py")


async def start(folder: Path, key: str, count: int, *more: str) -> Process:
    """Start a process that appends."""
    return await asyncio.create_subprocess_exec(
        sys.executable, str(APPENDER), str(folder), key, str(count), *more, stdout=PIPE
    )


async def acknowledged(process: Process) -> list[tuple[int, int]]:
    """Return what a process printed until its end: positions and numbers."""
    assert process.stdout is not None
    lines = (await process.stdout.read()).decode().splitlines(keepends=True)
    await process.wait()
    pairs = [line.split() for line in lines if line.endswith("\n")]
    return [(int(position), int(number)) for position, number in pairs]


def listening(sockets: Path) -> list[str]:
    """Return the names of the wake-up sockets."""
    return [path.name for path in sockets.iterdir() if not path.name.startswith(".")]


async def test_processes_append_at_once(tmp_path: Path) -> None:
    """Three processes that create one ledger and append to it leave no gap and lose nothing."""
    processes = await asyncio.gather(*(start(tmp_path, "k", 60) for _ in range(3)))
    given = await asyncio.gather(*(acknowledged(process) for process in processes))
    ledger = await SqliteLedger.open(tmp_path, create=False)
    records = await read_all(ledger, topic.EXPERIMENTS, partition_of("k", 4))
    assert [record.position for record in records] == list(range(540))
    assert sorted(position for pairs in given for position, _ in pairs) == list(range(540))
    for pairs in given:
        assert [number for _, number in pairs] == [n for n in range(60) for _ in range(3)]
        for position, number in pairs:
            assert records[position].value == b"%d" % number
    await ledger.close()


async def test_a_busy_process_does_not_starve_another(tmp_path: Path) -> None:
    """Beside a process that commits without pause, appends of another one proceed in turn."""
    busy = await start(tmp_path, "busy", 0)
    assert busy.stdout is not None
    await busy.stdout.readline()
    ledger = await SqliteLedger.open(tmp_path)
    before = await ledger.end(topic.EXPERIMENTS, partition_of("busy", 4))
    for _ in range(50):
        await ledger.append([draft("k", name=topic.METRICS)])
    after = await ledger.end(topic.EXPERIMENTS, partition_of("busy", 4))
    busy.kill()
    await busy.communicate()
    await ledger.close()
    assert after - before < 50 * 3 * 20, "the busy process went first again and again"


async def test_follower_is_woken_by_another_process(tmp_path: Path) -> None:
    """Records of processes that started before and after the follower arrive."""
    ledger = await SqliteLedger.open(tmp_path)
    early = await start(tmp_path, "k", 100)
    following = ledger.follow(topic.EXPERIMENTS, partition_of("k", 4), 0)
    records = await take(following, 300)
    late = await start(tmp_path, "k", 1)
    records += await take(following, 3)
    assert [record.position for record in records] == list(range(303))
    await asyncio.gather(acknowledged(early), acknowledged(late))
    await ledger.close()


async def test_killed_between_commit_and_notification(tmp_path: Path) -> None:
    """Followers get a commit whose process died before it notified them."""
    ledger = await SqliteLedger.open(tmp_path)
    await ledger.append([draft("k")])
    following = ledger.follow(topic.EXPERIMENTS, partition_of("k", 4), 0)
    await take(following, 1)
    process = await start(tmp_path, "k", 0, "die")
    records = await take(following, 3)
    assert await process.wait() == -signal.SIGKILL
    assert [record.position for record in records] == [1, 2, 3]
    await process.communicate()
    await ledger.close()


async def test_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After each of many kills all acknowledged records are there, batches complete, no gap."""
    chance = random.Random(20)  # noqa: S311 - chooses the moments of the kills
    kept: dict[int, int] = {}
    for _ in range(12):
        process = await start(tmp_path, "k", 0)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 120)):
            line = (await process.stdout.readline()).split()
            kept[int(line[0])] = int(line[1])
        process.send_signal(signal.SIGKILL)
        kept.update(await acknowledged(process))
        ledger = await SqliteLedger.open(tmp_path, create=False)
        records = await read_all(ledger, topic.EXPERIMENTS, partition_of("k", 4))
        await ledger.close()
        assert [record.position for record in records] == list(range(len(records)))
        assert len(records) % 3 == 0
        for position, number in kept.items():
            assert records[position].value == b"%d" % number


async def test_sockets_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """The socket of a killed follower is removed by the next commits."""
    code = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from rung.ledger import SqliteLedger\n"
        "async def main():\n"
        "    ledger = await SqliteLedger.open(Path(sys.argv[1]))\n"
        "    async for _ in ledger.follow('experiments', int(sys.argv[2]), 0):\n"
        "        print('follows', flush=True)\n"
        "asyncio.run(main())\n"
    )
    ledger = await SqliteLedger.open(tmp_path)
    await ledger.append([draft("k")])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), str(partition_of("k", 4)), stdout=PIPE
    )
    assert process.stdout is not None
    for _ in range(2):  # the second one took a notification
        assert await process.stdout.readline() == b"follows\n"
        await ledger.append([draft("k")])
    sockets = tmp_path / "doorbells"
    assert listening(sockets)
    process.kill()
    await process.communicate()
    while listening(sockets):
        await ledger.append([draft("k")])
    await ledger.close()


async def test_deep_folder(tmp_path: Path) -> None:
    """A folder works whose path is longer than the limit of sockets."""
    folder = tmp_path / ("d" * 120) / ("e" * 120)
    one, two = await SqliteLedger.open(folder), await SqliteLedger.open(folder)
    following = one.follow(topic.EXPERIMENTS, partition_of("k", 4), 0)
    taking = asyncio.create_task(take(following, 1))
    await one.append([draft("k")])
    await taking
    await two.append([draft("k")])
    assert [record.position for record in await take(following, 1)] == [1]
    await one.close()
    await two.close()


async def test_unfinished_sockets_are_removed(tmp_path: Path) -> None:
    """Sockets of processes killed before they listened are removed at the next opening, if old."""
    await (await SqliteLedger.open(tmp_path)).close()
    sockets = tmp_path / "doorbells"
    for name in (".old", ".new"):
        (sockets / name).write_bytes(b"")
    os.utime(sockets / ".old", (1, 1))
    await (await SqliteLedger.open(tmp_path)).close()
    assert (sockets / ".new").exists()
    assert not (sockets / ".old").exists()
