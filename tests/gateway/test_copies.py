"""A gateway without files starts from the copies that another one published."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from rung.events import topic
from rung.gateway.projections.read_models import PROJECTIONS, ReadModels
from rung.ledger import MemoryLedger
from rung.storage import FolderStore
from support.gateway.scenario import drafts, play

Tables = dict[str, list[str]]


async def _replica(
    ledger: MemoryLedger, folder: Path, objects: FolderStore, *, publishes: bool = False
) -> Tables:
    """Run a gateway's projections until they have all there is; return their tables."""
    models = ReadModels(ledger, folder, objects)
    await models.start(wait_s=30)
    assert models.behind() is None
    if publishes:
        await models.publish(worth=1)
    tables = {name: await store.read(_rows) for name, store in models.stores.items()}
    await models.close()
    return tables


def _rows(db: sqlite3.Connection) -> list[str]:
    """Return all that is in a file but its own positions of reading."""
    names = db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
        "AND name NOT IN ('folded', 'folded_keys') ORDER BY name"
    ).fetchall()
    return [
        f"{name}: {sorted(map(repr, db.execute(f'SELECT * FROM {name}')))}"  # noqa: S608 - our own
        for (name,) in names
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_each_projection_goes_on_from_a_copy(tmp_path: Path, seed: int) -> None:
    """Its tables are those of the gateway that goes on from the file that was copied."""
    objects = FolderStore(tmp_path / "objects")
    history = drafts(play(seed))
    half = len(history) // 2
    ledger = MemoryLedger()
    await ledger.append(history[:half])
    await _replica(ledger, tmp_path / "first", objects, publishes=True)
    published = await asyncio.to_thread(objects.list, f"snapshots/{ledger.id}/projections/")
    await ledger.append(history[half:])
    found = await _replica(ledger, tmp_path / "second", objects)
    expected = await _replica(ledger, tmp_path / "first", FolderStore(tmp_path / "none"))

    assert found == expected
    of_experiments = {it.name for make in PROJECTIONS if (it := make()).facts == topic.EXPERIMENTS}
    assert {item.name.split("/")[3] for item in published} >= of_experiments
