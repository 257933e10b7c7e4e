"""`rung ledger show`, `tail`, `export`, `import` and `archive`: the events themselves."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

import click
import msgspec
from msgspec.structs import asdict

from rung.cli.connection_options import Link, linked, optional_experiment_argument
from rung.cli.operations.ledger.import_command import import_
from rung.cli.operations.ledger.source import (
    experiments_of,
    history_of,
    ledger_option,
    opened_for,
    resolve,
)
from rung.cli.operations.ledger.verify import key_of
from rung.cli.output import (
    counted,
    print_facts,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from rung.cli.terminal import escape_json
from rung.events import TOPICS, RungError, UndecodableEvent, decode
from rung.ledger import Ledger, Record
from rung.ledger.export.export import export as write_export
from rung.ledger.tail import tail as follow
from rung.storage import open_store

_DATA_SHOWN: Final = 160

_topic_option: Final = click.option(
    "--topic", "names", multiple=True, type=click.Choice(list(TOPICS))
)
_full_option: Final = click.option("--full", is_flag=True, help="Do not shorten.")


@click.group()
def ledger() -> None:
    """Read, export, import and archive the ledger: what happened, event by event."""


ledger.add_command(import_)


@ledger.command()
@optional_experiment_argument
@_topic_option
@_full_option
@ledger_option
@linked
async def show(
    experiment_id: str | None,
    names: tuple[str, ...],
    source: Path | str | None,
    link: Link,
    *,
    full: bool,
) -> None:
    """Show what a ledger holds, or the history of one experiment (ID), in order.

    With --json: a summary, or one event (CloudEvents) a line; of what is no JSON, where it lies.
    """
    async with opened_for(link, source) as opened:
        if experiment_id is None and not names:
            await _summarize(opened, link)
            return
        name = None if experiment_id is None else await resolve(opened, experiment_id)
        async for record in history_of(opened, name, names):
            _print(record, link, full=full)


@ledger.command()
@optional_experiment_argument
@_topic_option
@click.option("--all", "everything", is_flag=True, help="Begin with what is there already.")
@_full_option
@click.option("--limit", type=click.IntRange(1), help="So many events, then leave.")
@linked
async def tail(  # noqa: PLR0913 - what can be chosen
    experiment_id: str | None,
    names: tuple[str, ...],
    link: Link,
    *,
    everything: bool,
    full: bool,
    limit: int | None,
) -> None:
    """Print events as they are appended, until Ctrl-C."""
    chosen = names or ("experiments", "searches", "retirements", "pools", "placements")
    async with opened_for(link, None) as opened:
        key = None if experiment_id is None else await resolve(opened, experiment_id)
        records = follow(opened, chosen, start="beginning" if everything else "end", key=key)
        count = 0
        async with contextlib.aclosing(records):
            async for record in records:
                _print(record, link, full=full)
                sys.stdout.flush()
                count += 1
                if count == limit:
                    return


@ledger.command()
@optional_experiment_argument
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file, in place of standard output.",
)
@ledger_option
@linked
async def export(
    experiment_id: str | None, output: Path | None, source: Path | str | None, link: Link
) -> None:
    """Write the ledger, or one experiment (ID) of it, as JSON lines.

    It can be taken while Rung runs. `rung ledger import` reads it elsewhere, and
    `rung audit --ledger FILE` audits it. It carries the seals of what it holds, and is signed
    where the installation's key is at hand.
    """
    key = key_of(source or link.data)
    async with opened_for(link, source) as opened:
        name = None if experiment_id is None else await resolve(opened, experiment_id)
        if output is None:
            out = cast("IO[bytes]", _TerminalLines()) if sys.stdout.isatty() else sys.stdout.buffer
            await write_export(opened, out, experiment_id=name, key=key)
            return
        with _replacing(output) as file:
            count = await write_export(opened, file, experiment_id=name, key=key)
    if link.json:
        print_json({"file": str(output), "records": count})
    else:
        click.echo(f"{counted(count, 'event')} in {output}", err=True)


@ledger.command()
@click.option(
    "--to",
    "target",
    required=True,
    help="URL of the object store: s3://bucket/prefix, file:///srv/archive.",
)
@ledger_option
@linked
async def archive(target: str, source: Path | str | None, link: Link) -> None:
    """Archive what the ledger holds now, in segments that prove what they hold.

    Segments that the store has already are compared with the ledger and stay as they are, so this
    can be run again and again. In a cluster checkpoint-gc does it all the time.
    `rung audit --from-archive URL` audits an archive.
    """
    from rung.checkpoint_gc.archiver import archive_now  # noqa: PLC0415 - a third of a second

    store = await asyncio.to_thread(open_store, target)
    try:
        async with opened_for(link, source, store) as opened:
            done = await archive_now(opened, store, key=key_of(source or link.data))
            name = f"{store.url}#{opened.id}"
    finally:
        store.close()
    records, segments = sum(it.records for it in done), sum(it.segments for it in done)
    if link.json:
        print_json({"archive": name, "records": records, "segments": segments})
    else:
        click.echo(f"{counted(records, 'event')} in {counted(segments, 'new segment')} of {name}")


class _TerminalLines:
    """Writes JSON lines to a terminal, escaped."""

    def write(self, data: bytes) -> int:
        """Write lines."""
        return sys.stdout.write(escape_json(data).decode())


async def _summarize(opened: Ledger, link: Link) -> None:
    experiments = await experiments_of(opened)
    ends = {
        name: [await opened.end(name, partition) for partition in range(opened.partitions(name))]
        for name in TOPICS
    }
    if link.json:
        topics = {name: sum(counts) for name, counts in ends.items()}
        print_json({"ledger_id": opened.id, "experiments": experiments, "topics": topics})
        return
    print_facts([("ledger", opened.id), ("experiments", len(experiments))])
    click.echo()
    print_table(
        ["topic", "holds", "events", "by partition"],
        [
            (name, TOPICS[name].holds, sum(counts), " ".join(map(str, counts)))
            for name, counts in ends.items()
        ],
        right=["events"],
    )


def _print(record: Record, link: Link, *, full: bool) -> None:
    if link.json:
        _print_json(record)
        return
    place = f"{record.topic}/{record.partition} {record.position}"
    try:
        event = decode(record.value)
    except UndecodableEvent as error:
        click.echo(f"{place} {record.key} cannot be read: {printable(str(error))}")
        return
    data = printable(msgspec.json.encode(event.data).decode())
    if not full and len(data) > _DATA_SHOWN:
        data = f"{data[:_DATA_SHOWN]}…"
    cause = "" if event.cause is None else f" <- {event.causeposition}#{event.causeindex}"
    click.echo(f"{place}{cause} {event.time} {event.data.TYPE} {data}")


def _print_json(record: Record) -> None:
    try:
        msgspec.json.decode(record.value)
        click.echo(escape_json(record.value.replace(b"\n", b" ")).decode())
    except msgspec.DecodeError as error:
        facts = asdict(record) | {"value": record.value.decode(errors="replace")}
        print_json_line(facts | {"unreadable": str(error)})


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces another once it is written completely."""
    new = path.with_name(f".{path.name}.new")
    try:
        with new.open("wb") as file:
            yield file
        new.replace(path)
    except OSError as error:
        raise RungError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        new.unlink(missing_ok=True)
