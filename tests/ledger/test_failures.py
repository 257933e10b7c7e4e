"""What a person reads when the ledger's file or its disk is not as it should be."""

import asyncio
import contextlib
import itertools
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.events import EventTooLarge, LedgerError, LedgerUnavailable, partition_of, topic
from rung.events.errors import LedgerDamaged
from rung.ledger import SqliteLedger
from support.ledger.conformance import draft, read_all
from support.small_disk import fill, small_disk

pytestmark = pytest.mark.ledger


async def filled(folder: Path, records: int = 2000) -> Path:
    """Make a ledger with some records, closed in good order; return its file."""
    ledger = await SqliteLedger.open(folder)
    await ledger.append([draft("k", b"%500d" % number) for number in range(records)])
    await ledger.close()
    assert not (folder / "ledger.db-wal").exists()
    return folder / "ledger.db"


async def append_until(ledger: SqliteLedger, failure: str) -> int:
    """Append until it fails as it should; return how many records were acknowledged."""
    for batches in itertools.count():
        try:
            await ledger.append([draft("k", bytes(3000))] * 20)
        except LedgerUnavailable as error:
            if re.search(failure, str(error)):
                return 20 * batches
            raise
    raise AssertionError


def be_killed(folder: Path) -> None:
    """Append twenty records of 5,000 bytes in a process that is then killed."""
    code = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from rung.ledger import Draft, SqliteLedger\n"
        "async def main():\n"
        "    ledger = await SqliteLedger.open(Path(sys.argv[1]))\n"
        "    await ledger.append([Draft('experiments', 'k', bytes(5000))] * 20)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=False)


async def test_disk_full() -> None:
    """A full disk is said so, nothing is half-written, and it goes on once there is space."""
    at = partition_of("k", 4)
    with small_disk() as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        ledger = await SqliteLedger.open(disk / "ledger")
        whole = await append_until(ledger, r"disk .* is full")
        assert await ledger.end(topic.EXPERIMENTS, at) == whole
        with pytest.raises(LedgerUnavailable, match=r"disk .* is full"):
            await ledger.append([draft("k", bytes(500_000))])
        ballast.unlink()
        assert await ledger.append([draft("k", bytes(3000))]) == [whole]
        assert len(await read_all(ledger, topic.EXPERIMENTS, at)) == whole + 1
        await ledger.close()


async def test_disk_full_at_creation() -> None:
    """A ledger that cannot even be created leaves nothing that would be in the way later."""
    with small_disk() as disk:
        ballast = fill(disk)
        with pytest.raises(LedgerUnavailable, match=r"disk .* is full"):
            await SqliteLedger.open(disk / "ledger")
        ballast.unlink()
        ledger = await SqliteLedger.open(disk / "ledger")
        assert await ledger.append([draft("k")]) == [0]
        await ledger.close()


def test_file_size_limit(tmp_path: Path) -> None:
    """Where the system refuses larger files, appends fail cleanly and reads go on."""
    code = (
        "import asyncio, resource, sys\n"
        "from pathlib import Path\n"
        "from rung.events import LedgerUnavailable\n"
        "from rung.ledger import Draft, SqliteLedger\n"
        "async def main():\n"
        "    ledger = await SqliteLedger.open(Path(sys.argv[1]))\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))\n"
        "    whole = 0\n"
        "    try:\n"
        "        while True:\n"
        "            await ledger.append([Draft('experiments', 'k', bytes(3000))] * 20)\n"
        "            whole += 20\n"
        "    except LedgerUnavailable as error:\n"
        "        print(error)\n"
        "    partition = 0\n"
        "    ends = [await ledger.end('experiments', part) for part in range(4)]\n"
        "    assert sum(ends) == whole > 0, (ends, whole)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, resource.RLIM_INFINITY))\n"
        "    assert await ledger.append([Draft('experiments', 'k', b'')]) == [whole]\n"
        "    await ledger.close()\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert "could not be read or written" in ran.stdout


@contextlib.contextmanager
def unprivileged() -> Iterator[Path]:
    """Give a folder that may be read and not written, being nobody in particular meanwhile."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        with privileged(folder):
            pass
        try:
            if os.getuid() == 0:
                os.seteuid(65534)
            yield folder
        finally:
            os.seteuid(os.getuid())
            folder.chmod(0o755)


@contextlib.contextmanager
def privileged(folder: Path) -> Iterator[None]:
    """Be the folder's owner for a while, who may write to it."""
    was = os.geteuid()
    os.seteuid(os.getuid())
    folder.chmod(0o755)
    try:
        yield
    finally:
        for path in folder.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        folder.chmod(0o555)
        os.seteuid(was)


@pytest.mark.parametrize("below", [".", "ledger"])
async def test_read_only_folder(below: str) -> None:
    """A folder that this user may not write is refused, naming the file."""
    with unprivileged() as folder:
        with pytest.raises(LedgerError, match=r"ledger\.db: this user may not write") as caught:
            await SqliteLedger.open(folder / below)
        assert not caught.value.retriable


async def test_read_only_file() -> None:
    """The same for a ledger that belongs to somebody else."""
    with unprivileged() as folder:
        with privileged(folder):
            await filled(folder)
        with pytest.raises(LedgerError, match=r"may not write|cannot be opened"):
            await SqliteLedger.open(folder)


async def test_missing(tmp_path: Path) -> None:
    """A ledger that should be there and is not is said so; nothing is created."""
    with pytest.raises(LedgerError, match="there is no ledger in"):
        await SqliteLedger.open(tmp_path / "typo", create=False)
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("left", [0.0, 0.01, 0.5, 0.9, 0.999])
async def test_truncated(tmp_path: Path, left: float) -> None:
    """A file that was cut short is found at opening, wherever it was cut."""
    path = await filled(tmp_path)
    size = path.stat().st_size
    os.truncate(path, int(size * left))
    with pytest.raises(LedgerDamaged, match="truncated") as caught:
        await SqliteLedger.open(tmp_path)
    assert str(path) in str(caught.value)
    assert path.stat().st_size == int(size * left), "it was touched"


async def test_truncated_beside_a_log(tmp_path: Path) -> None:
    """A cut is found although the write-ahead log of a killed process holds a newer header."""
    path = await filled(tmp_path)
    be_killed(tmp_path)
    assert path.with_name("ledger.db-wal").stat().st_size > 100_000
    copy = path.read_bytes()
    ledger = await SqliteLedger.open(tmp_path)
    assert await ledger.end(topic.EXPERIMENTS, partition_of("k", 4)) == 2020
    await ledger.close()

    path.write_bytes(copy)
    be_killed(tmp_path)
    os.truncate(path, path.stat().st_size - 10 * 4096)
    with pytest.raises(LedgerDamaged, match=r" of its 319 pages of 4096 bytes are missing"):
        await SqliteLedger.open(tmp_path)


async def test_damaged_page_of_a_small_file(tmp_path: Path) -> None:
    """A page that was overwritten is found at opening."""
    path = await filled(tmp_path)
    with path.open("r+b") as file:
        file.seek(40 * 4096)
        file.write(b"\xa5" * 4096)
    with pytest.raises(LedgerDamaged, match="damaged"):
        await SqliteLedger.open(tmp_path)


async def test_damage_found_while_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage in a file too large to be checked whole is met when it is read, and said so."""
    monkeypatch.setattr("rung.ledger.sqlite.integrity._SMALL", 0)
    path = await filled(tmp_path)
    with path.open("r+b") as file:
        for page in range(40, 60):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)
    ledger = await SqliteLedger.open(tmp_path)
    at = partition_of("k", 4)
    with pytest.raises(LedgerDamaged, match="damaged"):
        await read_all(ledger, topic.EXPERIMENTS, at)
    with pytest.raises(LedgerDamaged, match="damaged"):
        async for _ in ledger.follow(topic.EXPERIMENTS, at, 0):
            pass
    await ledger.close()


async def test_missing_records(tmp_path: Path) -> None:
    """A gap in a stream is damage, not an end."""
    path = await filled(tmp_path, 10)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM records WHERE id & 1099511627775 IN (0, 5)")
        database.commit()
    ledger = await SqliteLedger.open(tmp_path)
    at = partition_of("k", 4)
    for position in (0, 3, 5):
        with pytest.raises(LedgerDamaged, match="records are missing"):
            await ledger.read(topic.EXPERIMENTS, at, position, 10)
    assert len(await ledger.read(topic.EXPERIMENTS, at, 6, 10)) == 4
    await ledger.close()


@pytest.mark.parametrize("number", [0, 7])
async def test_another_version(tmp_path: Path, number: int) -> None:
    """A ledger of another Rung is refused with both versions, and left alone."""
    path = await filled(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {number}")
        database.execute("UPDATE ledger SET value = '9.1.0' WHERE name = 'rung'")
    words = rf"another Rung \(9\.1\.0, ledger version {number}\).* 0\.1\.0"
    with pytest.raises(LedgerDamaged, match=words):
        await SqliteLedger.open(tmp_path)


@pytest.mark.parametrize(
    "content", [b"hello", b"PK\x03\x04" * 5000, os.urandom(20_000)], ids=["text", "zip", "noise"]
)
async def test_no_database_at_all(tmp_path: Path, content: bytes) -> None:
    """Any other file in its place is refused and left alone."""
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged, match="is no SQLite database"):
        await SqliteLedger.open(tmp_path)
    assert path.read_bytes() == content


async def test_another_database(tmp_path: Path) -> None:
    """So is a database of some other program."""
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(LedgerDamaged, match="not a ledger of Rung"):
        await SqliteLedger.open(tmp_path)


async def test_a_folder_in_its_place(tmp_path: Path) -> None:
    """And a folder, or a file where the folder should be."""
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(LedgerError, match=r"ledger\.db cannot be opened"):
        await SqliteLedger.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"ledger\.db cannot be opened"):
        await SqliteLedger.open(tmp_path / "file")


async def test_a_foreign_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that keeps the file locked makes appends fail after a while, not hang."""
    monkeypatch.setattr("rung.ledger.sqlite.schema.BUSY_MS", 50)
    ledger = await SqliteLedger.open(tmp_path)
    with contextlib.closing(
        sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    ) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="another program"):
            await ledger.append([draft("k")])
        other.execute("ROLLBACK")
    assert await ledger.append([draft("k")]) == [0]
    await ledger.close()


async def test_too_large_a_value(tmp_path: Path) -> None:
    """A value beyond all measure is refused, and the ledger goes on."""
    ledger = await SqliteLedger.open(tmp_path)
    with pytest.raises(EventTooLarge, match="larger than the ledger takes"):
        await ledger.append([draft("k", bytes((64 << 20) + 1))])
    assert await ledger.append([draft("k")]) == [0]
    await ledger.close()


async def test_one_failure_reaches_all_who_waited(tmp_path: Path) -> None:
    """Everybody in a failed group is told, and the next group gets the positions."""
    ledger = await SqliteLedger.open(tmp_path)
    await ledger.append([draft("k")])
    database = ledger._commits._writer._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    appends = (ledger.append([draft("k", bytes(9000))]) for _ in range(10))
    for failure in await asyncio.gather(*appends, return_exceptions=True):
        assert isinstance(failure, LedgerUnavailable)
    database.execute("PRAGMA max_page_count = 1000000")
    assert await ledger.append([draft("k", bytes(9000))]) == [1]
    await ledger.close()
