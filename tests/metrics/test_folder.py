"""A folder that cannot be used is refused with the reason and what to do."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from metrics.report import EXPERIMENT, metrics, record, row
from rung.metrics import SeriesError, SeriesLocked, SeriesStore, SeriesUnavailable
from support.small_disk import fill, small_disk

pytestmark = pytest.mark.stores

_HOLD = """
import sys
from chdb.state.sqlitelike import connect
connection = connect(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


async def _opened(folder: Path, ledger_id: str = "ledger-1") -> SeriesStore:
    store = SeriesStore(folder, ledger_id=ledger_id)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


async def test_a_folder_open_elsewhere_is_refused(tmp_path: Path) -> None:
    """Another process has it: the message says so; afterwards it opens."""
    folder = tmp_path / "series"
    with subprocess.Popen(  # noqa: ASYNC220 - it only has to be there
        [sys.executable, "-c", _HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(SeriesLocked, match="open in another process"):
            await _opened(folder)
        holder.communicate("")
    await (await _opened(folder)).close()


async def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The message names the path."""
    (tmp_path / "series").write_text("not a folder")
    with pytest.raises(SeriesError, match="series cannot be used"):
        await _opened(tmp_path / "series")


async def test_a_damaged_folder_is_refused_and_can_be_moved_away(tmp_path: Path) -> None:
    """Garbled table definitions: the message says to move the folder away, and that helps."""
    folder = tmp_path / "series"
    await (await _opened(folder)).close()
    for path in folder.rglob("*.sql"):
        path.write_bytes(_noise(200))
    with pytest.raises(SeriesError, match=r"move .*series away") as refused:
        await _opened(folder)
    assert str(folder) in str(refused.value)
    folder.rename(tmp_path / "away")
    await (await _opened(folder)).close()


async def test_damaged_rows_are_named_as_such(tmp_path: Path) -> None:
    """Garbled columns: a query says that the folder is damaged, not what chDB calls it."""
    folder = tmp_path / "series"
    store = await _opened(folder)
    rows = [row(step, loss=1 / (step + 1)) for step in range(1_000)]
    store.absorb([record(metrics(rows), 0)])
    await store.close()
    for path in folder.rglob("*.bin"):
        if path.stat().st_size > 1_000:
            data = path.read_bytes()
            path.write_bytes(data[:100] + _noise(len(data) - 100))
    with pytest.raises(SeriesError, match=r"move .*series away"):
        await _ask(folder)


async def test_a_full_disk_loses_nothing() -> None:
    """Writing fails until there is room, however often it is tried; then all of it is there."""
    reports = [metrics([row(step, loss=1 / (step + 1))]) for step in range(4)]
    with small_disk(64) as disk:
        store = await _opened(disk / "series")
        try:
            store.absorb([record(reports[0], 0)])
            await store.flush()
            ballast = fill(disk)
            for position in (1, 2, 3):
                store.absorb([record(reports[position], position)])
                for _ in range(2):
                    with pytest.raises(SeriesUnavailable, match=r"full|No space left"):
                        await store.flush()
            assert await store.positions() == {("metrics", 0): 1}
            ballast.unlink()
            await store.flush()
            curve = await store.curve(f"{EXPERIMENT}.0", "training", "loss", 10)
            assert [step for step, _, _ in curve] == [0, 1, 2, 3]
            assert await store.positions() == {("metrics", 0): 4}
        finally:
            await store.close()


def _noise(size: int) -> bytes:
    """Return bytes that mean nothing, the same every time."""
    return random.Random(size).randbytes(size)  # noqa: S311 - to be repeatable


async def _ask(folder: Path) -> None:
    store = await _opened(folder)
    try:
        await store.curve("abcdefgh.0", "training", "loss", 10)
    finally:
        await store.close()
