"""Opens a ledger for reading: of a data folder, a cluster, an archive, or an exported file."""

import asyncio
import contextlib
import difflib
import os
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rung.cli.connection_options import Link
from rung.client import NotFound
from rung.events import RungError, UndecodableEvent, decode, topic
from rung.events.deadletter import (
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.events.experiment import ExperimentSubmitted
from rung.ledger import Ledger, MemoryLedger, Record, SqliteLedger, open_ledger
from rung.ledger.export.export import history, import_
from rung.ledger.port import read_all
from rung.storage import ObjectStore, open_store

if TYPE_CHECKING:
    from rung.ledger.archive import Report

FILE: Final = "ledger.db"
KAFKA: Final = "kafka://"
_SQLITE: Final = b"SQLite format 3\0"
_WITHOUT_HISTORY: Final = frozenset({topic.HEARTBEATS, topic.DEADLETTER, topic.SEALS})
"""Topics that are no part of an export's history."""
_DEAD_LETTER = MessageRejected | MessageRetryRequested | MessageDropped | MessageTaken


class _SourceType(click.ParamType):
    """Takes the path of an existing file or folder, or an URL."""

    name = "path|URL"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """Return a path, or an URL as it is."""
        if isinstance(value, Path) or "://" in value:
            return value
        return Path(str(_path.convert(value.removeprefix("sqlite:"), param, ctx)))


_path: Final = click.Path(exists=True)
SOURCE: Final = _SourceType()
"""A ledger that `open_source` opens."""
ledger_option: Final = click.option(
    "--ledger",
    "source",
    type=SOURCE,
    help="In place of --data: an exported file, a ledger or a data folder, kafka://HOST/PREFIX, or"
    " an archive (file:///…, s3://BUCKET/PREFIX).",
)
"""For commands that can read a ledger without a server."""


def has_ledger(data: Path) -> bool:
    """Return whether a data folder holds a ledger."""
    return (data / "ledger" / FILE).is_file()


@contextlib.asynccontextmanager
async def opened_for(
    link: Link, source: Path | str | None, snapshots: ObjectStore | None = None
) -> AsyncIterator[Ledger]:
    """Open a source, or the ledger of the data folder if none is named.

    Args:
        link: names the data folder.
        source: the ledger, if one was named.
        snapshots: as `open_source` takes it.

    Raises:
        UsageError: no source is named, but a server's URL.
        RungError: there is no ledger.
    """
    if source is None and link.url is not None:
        raise click.UsageError(
            "the ledger is read from a data folder, not over HTTP: name it with --data or"
            " --ledger, on the machine where it lies"
        )
    if source is None and not has_ledger(link.data):
        raise RungError(f"{link.data} holds no ledger; name the data folder with --data")
    async with open_source(source or link.data, snapshots) as opened:
        yield opened


def open_source(
    source: Path | str, snapshots: ObjectStore | None = None
) -> AbstractAsyncContextManager[Ledger]:
    """Open the ledger that a path or an URL names.

    A path names an export, a ledger's file or folder, or a data folder; an URL a ledger on Kafka,
    or the object store of an archive.

    Args:
        source: the path or URL.
        snapshots: where a ledger on Kafka keeps snapshots and the signed heads of its seals,
            unless `RUNG_OBJECTS` names another store.

    Raises:
        RungError: it is none of these, or damaged.
    """
    if isinstance(source, Path):
        return _open_path(source)
    if source.startswith(KAFKA):
        return _open_kafka(source, snapshots)
    return open_archive(source)


@contextlib.asynccontextmanager
async def open_archive(url: str, report: "Report | None" = None) -> AsyncIterator[Ledger]:
    """Open the archive at an URL.

    Args:
        url: of the object store, with `#LEDGER` behind it where several ledgers are archived.
        report: of its verification; segments that are damaged or missing are left out, and those
            behind them.

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


@contextlib.asynccontextmanager
async def _open_path(path: Path) -> AsyncIterator[Ledger]:
    folder = await asyncio.to_thread(_folder_of, path)
    if folder is not None:
        ledger: Ledger = await SqliteLedger.open(folder, create=False)
    else:
        ledger = MemoryLedger()
        with await asyncio.to_thread(path.open, "rb") as lines:
            await import_(ledger, lines)
    try:
        yield ledger
    finally:
        await ledger.close()


@contextlib.asynccontextmanager
async def _open_kafka(url: str, snapshots: ObjectStore | None) -> AsyncIterator[Ledger]:
    from rung.runtime.logs import log_plainly  # noqa: PLC0415 - the runtime, for a cluster only

    log_plainly()
    objects = os.environ.get("RUNG_OBJECTS")
    store = await asyncio.to_thread(open_store, objects) if objects else None
    try:
        ledger = await open_ledger(url, store or snapshots)
        try:
            yield ledger
        finally:
            await ledger.close()
    finally:
        if store is not None:
            store.close()


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


async def records_of(ledger: Ledger, name: str) -> AsyncIterator[Record]:
    """Yield the records of a topic, partition by partition."""
    for partition in range(ledger.partitions(name)):
        start = await ledger.start(name, partition)
        async for record in read_all(ledger, name, partition, start):
            yield record


async def experiments_of(ledger: Ledger) -> list[str]:
    """Return the ids of all experiments on record, the oldest of each partition first."""
    return list({record.key: None async for record in records_of(ledger, topic.EXPERIMENTS)})


async def resolve(ledger: Ledger, name: str) -> str:
    """Return the id of the experiment whose id begins so, or that has this name.

    Raises:
        NotFound: there is none.
        RungError: there are several.
    """
    names = await _names_of(ledger)
    found = [item for item, called in names.items() if item.startswith(name) or called == name]
    if name in names:
        return name
    if not found:
        near = difflib.get_close_matches(name, dict.fromkeys([*names, *names.values()]))
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise NotFound(f"there is no experiment {name!r} in this ledger{hint}")
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:5])
        raise RungError(f"{name!r} may be any of {shown}; write more of the id")
    return found[0]


async def _names_of(ledger: Ledger) -> dict[str, str]:
    """Return the ids of all experiments on record, with their names."""
    names: dict[str, str] = {}
    async for record in records_of(ledger, topic.EXPERIMENTS):
        names.setdefault(record.key, "")
        if ExperimentSubmitted.TYPE.encode() in record.value:
            with contextlib.suppress(UndecodableEvent):
                data = decode(record.value).data
                if isinstance(data, ExperimentSubmitted):
                    names[record.key] = str(data.config.get("name") or "")
    return names


async def history_of(
    ledger: Ledger, experiment_id: str | None, names: Collection[str]
) -> AsyncIterator[Record]:
    """Yield the records of some topics, or of all that have a history, in order.

    Args:
        ledger: what to read.
        experiment_id: only records about this experiment.
        names: of topics.
    """
    others = [name for name in names if name in _WITHOUT_HISTORY]
    if not names or len(others) < len(names):
        async for record in history(ledger, experiment_id=experiment_id):
            if record.topic not in _WITHOUT_HISTORY and (not names or record.topic in names):
                yield record
    for name in others:
        async for record in records_of(ledger, name):
            if experiment_id is None or _is_about(record, experiment_id):
                yield record


def _is_about(record: Record, experiment_id: str) -> bool:
    """Return whether a record is about a dead letter of an experiment."""
    try:
        data = decode(record.value).data
    except UndecodableEvent:
        return False
    return isinstance(data, _DEAD_LETTER) and data.key.split(".")[0] == experiment_id
