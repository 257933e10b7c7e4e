"""Opens a ledger for reading: a folder's, a cluster's, an archive's, or an exported file's."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rung.events import RungError, UndecodableEvent, decode, topic
from rung.events.deadletter import (
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.ledger.memory import MemoryLedger
from rung.ledger.sqlite.ledger import SqliteLedger

if TYPE_CHECKING:
    from rung.ledger import Ledger, Record
    from rung.ledger.archive import Report
    from rung.storage import ObjectStore

FILE: Final = "ledger.db"
_SQLITE: Final = b"SQLite format 3\0"
_READ: Final = 2000
_BESIDE: Final = frozenset({topic.HEARTBEATS, topic.DEADLETTER, topic.SEALS})
"""Topics that belong to no history."""
_ABOUT = MessageRejected | MessageRetryRequested | MessageDropped | MessageTaken


@contextlib.asynccontextmanager
async def open_ledger(
    source: Path | str, snapshots: "ObjectStore | None" = None
) -> AsyncIterator["Ledger"]:
    """Open what a path or an URL names.

    A path names an export, a ledger's file or folder, or a data folder; an URL a ledger on Kafka,
    or the object store in which an archive lies.

    Args:
        source: the path or URL.
        snapshots: where a ledger on Kafka keeps snapshots, the signed heads of its seals among
            them, unless `RUNG_OBJECTS` names another store.

    Raises:
        RungError: it is none of these, or damaged.
    """
    if isinstance(source, str):
        async with _open_url(source, snapshots) as ledger:
            yield ledger
        return
    folder = await asyncio.to_thread(_folder_of, source)
    opened = await (_import(source) if folder is None else _open_folder(folder))
    try:
        yield opened
    finally:
        await opened.close()


@contextlib.asynccontextmanager
async def open_archive(url: str, report: "Report | None" = None) -> AsyncIterator["Ledger"]:
    """Open the archive at an URL.

    Args:
        url: of the object store, with `#LEDGER` behind it where several ledgers are archived.
        report: what verifying found; what it says is damaged or missing is left out, and what
            comes after it.

    Raises:
        RungError: there is none, or it is damaged.
    """
    from rung.ledger.archive import ArchiveLedger, damaged_in, parse_location  # noqa: PLC0415 - seldom

    location = parse_location(url)
    store = await asyncio.to_thread(location.open)
    try:
        yield await ArchiveLedger.open(
            store,
            location.ledger_id,
            without=damaged_in(report) if report else (),
            partly=report is not None,
        )
    finally:
        store.close()


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
    """Yield what some topics hold (all that belong to histories, if none is named), in order.

    Args:
        ledger: what to read.
        experiment_id: only what concerns this experiment.
        names: of topics.
    """
    from rung.ledger.export.export import history  # noqa: PLC0415 - only where it is needed

    beside = [name for name in names if name in _BESIDE]
    if not names or len(beside) < len(names):
        async for record in history(ledger, experiment_id=experiment_id):
            if record.topic not in _BESIDE and (not names or record.topic in names):
                yield record
    for name in beside:
        async for record in records_of(ledger, name):
            if experiment_id is None or _is_about(record, experiment_id):
                yield record


def _is_about(record: "Record", experiment_id: str) -> bool:
    """Return whether a record is about a dead letter of something that concerns an experiment."""
    try:
        data = decode(record.value).data
    except UndecodableEvent:
        return False
    return isinstance(data, _ABOUT) and data.key.split(".")[0] == experiment_id


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


def is_export(path: Path) -> bool:
    """Return whether a path names an exported file, rather than a ledger.

    Raises:
        RungError: there is nothing.
    """
    return _folder_of(path) is None


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


@contextlib.asynccontextmanager
async def _open_url(url: str, snapshots: "ObjectStore | None") -> AsyncIterator["Ledger"]:
    if not url.startswith("kafka://"):
        async with open_archive(url) as archive:
            yield archive
        return
    from rung.ledger.factory import open_ledger as open_url  # noqa: PLC0415 - as above
    from rung.runtime.logs import log_plainly  # noqa: PLC0415 - only for a cluster
    from rung.storage import open_store  # noqa: PLC0415 - as above

    log_plainly()
    objects = os.environ.get("RUNG_OBJECTS")
    store = await asyncio.to_thread(open_store, objects) if objects else None
    try:
        opened = await open_url(url, store or snapshots)
        try:
            yield opened
        finally:
            await opened.close()
    finally:
        if store is not None:
            store.close()


async def _open_folder(folder: Path) -> "Ledger":
    return await SqliteLedger.open(folder, create=False)


async def _import(path: Path) -> "Ledger":
    from rung.ledger.export.export import import_  # noqa: PLC0415 - only for exports

    ledger = MemoryLedger()
    with path.open("rb") as lines:
        await import_(ledger, lines)
    return ledger
