"""Series that cannot be used are set aside and rebuilt; what they derive from goes on."""

import asyncio
import re
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metrics.report import EXPERIMENT, draft, line, logs, metrics, row
from rung.backoff import Backoff
from rung.ledger import SqliteLedger
from rung.ledger.memory import MemoryLedger
from rung.metrics import SeriesDamaged, SeriesStore, Settings, recovery
from rung.metrics.recovery import Recovery
from servers.process import free_port

pytestmark = pytest.mark.stores

TRIAL = f"{EXPERIMENT}.0"
QUICK = Settings(flush_seconds=0.01)

_HOLD = """
import sys
from chdb.state.sqlitelike import connect
connection = connect(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""
_REBUILD = """
import asyncio, sys
from pathlib import Path
from rung.ledger import SqliteLedger
from rung.metrics import SeriesStore, Settings
from rung.metrics.recovery import Recovery

async def main():
    ledger = await SqliteLedger.open(Path(sys.argv[1]))
    store = SeriesStore(Path(sys.argv[2]), ledger_id=ledger.id)
    print(flush=True)
    await Recovery(ledger, store, Settings(flush_seconds=0.01)).run()

asyncio.run(main())
"""


@asynccontextmanager
async def _kept(ledger: MemoryLedger, folder: Path) -> AsyncIterator[tuple[SeriesStore, Recovery]]:
    """Keep the series of a ledger as `rung up` does."""
    store = SeriesStore(folder, ledger_id=ledger.id)
    kept = Recovery(ledger, store, QUICK)
    keeping = asyncio.create_task(kept.run())
    try:
        yield store, kept
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()
    if not keeping.cancelled():
        keeping.result()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                if await condition():
                    return
            except SeriesDamaged:
                pass  # until it is rebuilt
            await asyncio.sleep(0.01)


def _all(store: SeriesStore, steps: int) -> Callable[[], Awaitable[bool]]:
    """Return whether the whole curve is there."""

    async def read() -> bool:
        curve = await store.curve(TRIAL, "training", "loss", 10_000)
        return curve == [(step, 1 / (step + 1), 1_000 + step) for step in range(steps)]

    return read


async def _report(ledger: MemoryLedger, count: int) -> None:
    """Append so many reports of ten steps each."""
    for number in range(count):
        steps = range(number * 10, number * 10 + 10)
        rows = [row(step, loss=1 / (step + 1)) for step in steps]
        printed = logs([line(f"step {step}", step) for step in steps])
        await ledger.append([draft(metrics(rows), 2 * number), draft(printed, 2 * number + 1)])


async def _fails(store: SeriesStore) -> bool:
    try:
        await store.curve(TRIAL, "training", "loss", 10_000)
    except SeriesDamaged:
        return True
    return False


def _aside(folder: Path) -> list[Path]:
    return sorted(folder.parent.glob(f"{folder.name}.damaged-*"))


@pytest.mark.parametrize(
    "damage", ["definitions", "parts", "file", "other ledger", "newer than the ledger"]
)
async def test_what_cannot_be_used_is_rebuilt(damage: str, tmp_path: Path) -> None:
    """The folder is there under another name, and its successor has all that the ledger has."""
    folder = tmp_path / "series"
    before = MemoryLedger(ledger_id="l2" if damage == "other ledger" else "l1", partitions=1)
    if damage == "file":
        folder.write_text("no folder")
    else:
        await _report(before, 4)
        async with _kept(before, folder) as (store, _):
            await _until(_all(store, 40))
    if damage == "parts":
        for path in folder.rglob("data.bin"):
            path.write_bytes(path.read_bytes()[:-5])
    if damage == "definitions":
        for path in folder.rglob("*.sql"):
            path.write_bytes(b"\x00garbled" * 20)
    ledger = MemoryLedger(ledger_id="l1", partitions=1)
    count = 4 if damage in {"definitions", "parts"} else 2
    await _report(ledger, count)
    async with _kept(ledger, folder) as (store, kept):
        await _until(_all(store, 10 * count))
        assert kept.settled.is_set()
        assert kept.problem is None
        (aside,) = _aside(folder)
        assert aside.is_file() == (damage == "file")
        await _report(ledger, count + 1)
        await _until(_all(store, 10 * (count + 1)))


async def test_damage_that_a_reader_meets_is_mended_while_it_runs(tmp_path: Path) -> None:
    """One query says that the folder is damaged; later ones have everything again."""
    folder = tmp_path / "series"
    ledger = MemoryLedger(ledger_id="l1", partitions=1)
    await _report(ledger, 200)
    async with _kept(ledger, folder) as (store, kept):
        await _until(_all(store, 2_000))
        for path in folder.rglob("*.bin"):
            path.unlink(missing_ok=True)
        await _until(lambda: _fails(store))
        await _until(_all(store, 2_000))
        assert kept.problem is None
    assert len(_aside(folder)) == 1


async def test_a_folder_in_use_elsewhere_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole, and stays; until it is free, a sentence says that nothing is kept."""
    monkeypatch.setattr(recovery, "_BACKOFF", Backoff(0.01, 0.01))
    folder = tmp_path / "series"
    ledger = MemoryLedger(ledger_id="l1", partitions=1)
    await _report(ledger, 1)
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HOLD, str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout
    assert await holder.stdout.readline() == b"\n"
    async with _kept(ledger, folder) as (store, kept):
        await kept.settled.wait()
        assert kept.problem is not None
        assert "open in another process" in kept.problem
        await holder.communicate(b"")
        await _until(_all(store, 10))
        assert kept.problem is None
    assert _aside(folder) == []


async def test_what_breaks_again_and_again_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disks are not filled with folders that were set aside, and nothing else ends by it."""
    folder = tmp_path / "series"
    errors = iter([SeriesDamaged("x"), KeyError("x"), SeriesDamaged("x"), SeriesDamaged("last")])

    async def fail(*_: object, **__: object) -> None:
        folder.mkdir()
        raise next(errors)

    monkeypatch.setattr(recovery, "serve", fail)
    async with _kept(MemoryLedger(ledger_id="l1", partitions=1), folder) as (_, kept):
        await kept.settled.wait()
        assert kept.problem == "curves and logs are not kept for now: last"
    assert len(_aside(folder)) == recovery._SET_ASIDE_MAX


@pytest.mark.e2e
async def test_kills_while_it_is_rebuilt_lose_nothing(tmp_path: Path) -> None:
    """At whatever moment: the last one finds whole series, or none, and rebuilds the rest."""
    folder = tmp_path / "series"
    folder.write_text("no folder")
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=1)
    await _report(ledger, 100)  # type: ignore[arg-type]
    for delay in (0.0, 0.4, 0.8):
        rebuilding = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _REBUILD, str(tmp_path / "ledger"), str(folder)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert rebuilding.stdout
        await rebuilding.stdout.readline()
        await asyncio.sleep(delay)  # the moments of the kill
        rebuilding.kill()
        await rebuilding.wait()
    async with _kept(ledger, folder) as (store, _):  # type: ignore[arg-type]
        await _until(_all(store, 1_000))
    await ledger.close()
    assert len(_aside(folder)) == 1


async def test_a_service_of_its_own_rebuilds_its_folder(tmp_path: Path) -> None:
    """`rung service metrics --series FOLDER` does as `rung up`; SIGTERM ends it in good order."""
    folder = tmp_path / "series"
    folder.write_text("no folder")
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=1)
    await _report(ledger, 4)  # type: ignore[arg-type]
    probe = f"127.0.0.1:{free_port()}"
    serving = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rung.metrics", "--flush-seconds", "0.01"),
        *("--ledger", str(tmp_path / "ledger"), "--series", str(folder), "--probe", probe),
        stderr=asyncio.subprocess.PIPE,
    )
    assert serving.stderr
    try:
        async with asyncio.timeout(60):
            while b"set aside" not in (said := await serving.stderr.readline()):
                assert said, "it ended"
            stored = 0
            while stored < 80:  # 40 reports and 40 lines
                await asyncio.sleep(0.01)
                stored = await asyncio.to_thread(_rows_stored, probe)
    finally:
        serving.terminate()
        await serving.communicate()
    assert serving.returncode == 0
    (aside,) = _aside(folder)
    assert aside.is_file()
    store = SeriesStore(folder, ledger_id=ledger.id)
    assert await _all(store, 40)()
    await store.close()
    await ledger.close()


def _rows_stored(probe: str) -> int:
    """Return how many rows a process says that it stored."""
    with urllib.request.urlopen(f"http://{probe}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^rung_series_rows_total\{.*\} (\d+)", text, re.MULTILINE)
    return sum(map(int, found))


async def test_without_migrating_a_folder_is_left_alone(tmp_path: Path) -> None:
    """Who may make no tables cannot rebuild: the process ends and says why."""
    folder = tmp_path / "series"
    folder.write_text("no folder")
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=1)
    await ledger.close()
    serving = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rung.metrics", "--no-migrate"),
        *("--ledger", str(tmp_path / "ledger"), "--series", str(folder)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await serving.communicate()
    assert serving.returncode == 1
    assert b"it is no folder" in said
    assert _aside(folder) == []
