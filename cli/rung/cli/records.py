"""Opens a ledger for reading: a data folder's, another folder's, or an exported file's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rung.events import RungError, UndecodableEvent, decode, topic
from rung.events.metric import MessageRejected
from rung.ledger.memory import MemoryLedger
from rung.ledger.sqlite import SqliteLedger

if TYPE_CHECKING:
    from rung.ledger import Ledger, Record

FILE: Final = "ledger.db"
_SQLITE: Final = b"SQLite format 3\0"
_READ: Final = 2000
_BESIDE: Final = frozenset({topic.HEARTBEATS, topic.DEADLETTER})
"""Topics that belong to no history."""


@contextlib.asynccontextmanager
async def open_ledger(path: Path) -> AsyncIterator["Ledger"]:
    """Open what a path names: an export, a ledger's file or folder, or a data folder.

    Raises:
        RungError: it is none of these, or damaged.
    """
    folder = await asyncio.to_thread(_folder_of, path)
    ledger: Ledger
    if folder is None:
        ledger = await _import(path)
    else:
        ledger = await SqliteLedger.open(folder, create=False)
    try:
        yield ledger
    finally:
        await ledger.close()


def has_ledger(data: Path) -> bool:
    """Return whether a data folder holds a ledger that can be opened from here."""
    return (data / "ledger" / FILE).is_file()


async def experiments_of(ledger: "Ledger") -> list[str]:
    """Return the ids of all experiments on record, the oldest of each partition first."""
    return list({record.key: None async for record in records_of(ledger, topic.EXPERIMENTS)})


async def records_of(ledger: "Ledger", name: str) -> AsyncIterator["Record"]:
    """Yield what a topic holds, partition by partition."""
    for partition in range(ledger.partitions(name)):
        position = 0
        while records := await ledger.read(name, partition, position, _READ):
            for record in records:
                yield record
            position = records[-1].position + 1


async def history_of(
    ledger: "Ledger", experiment_id: str | None, names: Collection[str]
) -> AsyncIterator["Record"]:
    """Yield what some topics hold (all that an export has, if none is named), in order.

    Args:
        ledger: what to read.
        experiment_id: only what concerns this experiment.
        names: of topics.
    """
    from rung.ledger.archive import history  # noqa: PLC0415 - only where it is needed

    beside = [name for name in names if name in _BESIDE]
    if not names or len(beside) < len(names):
        async for record in history(ledger, experiment_id=experiment_id):
            if not names or record.topic in names:
                yield record
    for name in beside:
        async for record in records_of(ledger, name):
            if experiment_id is None or _is_about(record, experiment_id):
                yield record


def _is_about(record: "Record", experiment_id: str) -> bool:
    """Return whether a record is the dead letter of something that concerns an experiment."""
    try:
        data = decode(record.value).data
    except UndecodableEvent:
        return False
    return isinstance(data, MessageRejected) and data.key.split(".")[0] == experiment_id


async def resolve(ledger: "Ledger", name: str) -> str:
    """Return the id of the experiment that a possibly shortened id means.

    Raises:
        NotFound: it means none.
        RungError: it means several.
    """
    known = await experiments_of(ledger)
    found = [name] if name in known else [item for item in known if item.startswith(name)]
    if not found:
        from rung.client import NotFound  # noqa: PLC0415 - a quarter of a second

        raise NotFound(f"there is no experiment {name!r} in this ledger")
    if len(found) > 1:
        raise RungError(f"{name!r} may be any of {', '.join(sorted(found)[:5])}; write more of it")
    return found[0]


def _folder_of(path: Path) -> Path | None:
    """Return the folder of a SQLite ledger, None if the path is another file.

    Raises:
        RungError: there is nothing.
    """
    if path.is_dir():
        for folder in (path, path / "ledger"):
            if (folder / FILE).is_file():
                return folder
        raise RungError(f"{path} holds no {FILE}: name a data folder, a ledger, or an export")
    try:
        with path.open("rb") as file:
            return path.parent if file.read(len(_SQLITE)) == _SQLITE else None
    except OSError as error:
        raise RungError(f"{path} cannot be read ({error.strerror})") from error


async def _import(path: Path) -> MemoryLedger:
    from rung.ledger.archive import import_  # noqa: PLC0415 - only for exports

    ledger = MemoryLedger()
    with path.open("rb") as lines:
        await import_(ledger, lines)
    return ledger
