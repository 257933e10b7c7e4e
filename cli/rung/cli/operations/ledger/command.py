"""`rung ledger show|tail|export|import|archive`: the events themselves."""

import contextlib
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import click

from rung.cli.commands.complete import experiment_ids
from rung.cli.link import Link, asynchronous, ledger_option, linked
from rung.cli.operations.ledger.moves import archive, import_, opened_for
from rung.cli.output import print_facts, print_json, print_json_line, print_table, printable
from rung.cli.terminal import escape_json
from rung.events import TOPICS, RungError, UndecodableEvent, decode

if TYPE_CHECKING:
    from rung.ledger import Ledger, Record

_DATA_SHOWN: Final = 160


@click.group()
def ledger() -> None:
    """Read, export, import and archive the ledger: what happened, event by event."""


ledger.add_command(import_)
ledger.add_command(archive)


@ledger.command()
@click.argument("experiment_id", metavar="[ID]", required=False, shell_complete=experiment_ids)
@click.option("--topic", "names", multiple=True, type=click.Choice(list(TOPICS)))
@click.option("--full", is_flag=True, help="Do not shorten.")
@ledger_option
@linked
@asynchronous
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
    from rung.cli.operations.ledger.records import history_of, resolve  # noqa: PLC0415 - only where it is needed

    async with opened_for(link, source) as opened:
        if experiment_id is None and not names:
            await _summarize(opened, link)
            return
        name = None if experiment_id is None else await resolve(opened, experiment_id)
        async for record in history_of(opened, name, names):
            _print(record, link, full=full)


@ledger.command()
@click.argument("experiment_id", metavar="[ID]", required=False, shell_complete=experiment_ids)
@click.option("--topic", "names", multiple=True, type=click.Choice(list(TOPICS)))
@click.option("--all", "everything", is_flag=True, help="Begin with what is there already.")
@click.option("--full", is_flag=True, help="Do not shorten.")
@click.option("--limit", type=click.IntRange(1), help="So many events, then leave.")
@linked
@asynchronous
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
    from rung.cli.operations.ledger.records import resolve  # noqa: PLC0415 - only where it is needed
    from rung.ledger.tail import tail as follow  # noqa: PLC0415 - see above

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
@click.argument("experiment_id", metavar="[ID]", required=False, shell_complete=experiment_ids)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file, in place of standard output.",
)
@ledger_option
@linked
@asynchronous
async def export(
    experiment_id: str | None, output: Path | None, source: Path | str | None, link: Link
) -> None:
    """Write the ledger, or one experiment (ID) of it, as JSON lines.

    It can be taken while Rung runs. `rung ledger import` reads it elsewhere, and
    `rung audit --ledger FILE` audits it. It carries the seals of what it holds, and is signed
    where the installation's key is at hand.
    """
    from rung.cli.operations.ledger.records import resolve  # noqa: PLC0415 - only where it is needed
    from rung.cli.operations.ledger.verify import key_of  # noqa: PLC0415 - see above
    from rung.ledger.export.export import export as write  # noqa: PLC0415 - see above

    key = key_of(source or link.data)
    async with opened_for(link, source) as opened:
        name = None if experiment_id is None else await resolve(opened, experiment_id)
        if output is None:
            out = cast("IO[bytes]", _Shown()) if sys.stdout.isatty() else sys.stdout.buffer
            await write(opened, out, experiment_id=name, key=key)
            return
        with _replacing(output) as file:
            count = await write(opened, file, experiment_id=name, key=key)
    if link.json:
        print_json({"file": str(output), "records": count})
    else:
        click.echo(f"{count:,} events in {output}", err=True)


class _Shown:
    """Takes JSON lines for a terminal."""

    def write(self, data: bytes) -> int:
        """Print lines; they say the same, escaped."""
        return sys.stdout.write(escape_json(data).decode())


async def _summarize(opened: "Ledger", link: Link) -> None:
    from rung.cli.operations.ledger.records import experiments_of  # noqa: PLC0415 - see above

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


def _print(record: "Record", link: Link, *, full: bool) -> None:
    if link.json:
        _print_json(record)
        return
    place = f"{record.topic}/{record.partition} {record.position}"
    try:
        event = decode(record.value)
    except UndecodableEvent as error:
        click.echo(f"{place} {record.key} cannot be read: {printable(str(error))}")
        return
    data = _fields(event.data)
    if not full and len(data) > _DATA_SHOWN:
        data = f"{data[:_DATA_SHOWN]}…"
    cause = "" if event.cause is None else f" <- {event.causeposition}#{event.causeindex}"
    click.echo(f"{place}{cause} {event.time} {event.data.TYPE} {data}")


def _print_json(record: "Record") -> None:
    import msgspec  # noqa: PLC0415 - a detail of this line

    try:
        msgspec.json.decode(record.value)
        click.echo(escape_json(record.value.replace(b"\n", b" ")).decode())
    except msgspec.DecodeError as error:
        facts = record._asdict() | {"value": record.value.decode(errors="replace")}
        print_json_line(facts | {"unreadable": str(error)})


def _fields(data: Any) -> str:
    import msgspec  # noqa: PLC0415 - a detail of this line

    return printable(msgspec.json.encode(data).decode())


@contextlib.contextmanager
def _replacing(path: Path) -> Any:
    """Open a file that appears whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    try:
        with draft.open("wb") as file:
            handle: IO[bytes] = file
            yield handle
        draft.replace(path)
    except OSError as error:
        raise RungError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        draft.unlink(missing_ok=True)
