"""`rung ledger import|archive`: a ledger comes from elsewhere, and is kept elsewhere."""

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import click

from rung.cli.link import SOURCE, Link, asynchronous, ledger_option, linked
from rung.cli.local.data_folder import is_running, locked
from rung.cli.operations.ledger.verify import key_option
from rung.cli.output import print_json, printable
from rung.events import RungError
from rung.events.experiment import ExperimentEnded

if TYPE_CHECKING:
    from rung.ledger import Ledger
    from rung.ledger.export.export import Imported
    from rung.storage import ObjectStore


_NAMED: Final = 5
"""So many experiments are named."""


@click.command("import")
@click.argument("source", metavar="FILE|ARCHIVE", type=SOURCE)
@click.option(
    "--ledger", "target", help="Into a cluster, in place of --data: kafka://HOST/PREFIX."
)
@click.option(
    "--objects",
    envvar="RUNG_OBJECTS",
    help="URL of the cluster's object store: what the import refers to is looked for there.  [of a"
    " data folder: its own]",
)
@key_option
@linked
@asynchronous
async def import_(
    source: Path | str,
    target: str | None,
    objects: str | None,
    public_keys: tuple[str, ...],
    link: Link,
) -> None:
    """Read an export, or an archive (file:///…, s3://BUCKET/PREFIX), into another ledger.

    Nothing else may use that ledger meanwhile. Experiments that are there already are refused.
    Into a data folder comes all or nothing. Into a cluster, too: if it fails on the way, services
    refuse to start there until the same import was run again, which resumes where it stopped.
    A whole ledger goes on where it was left: its experiments that have not ended are trained on
    by the agents of their new home. An experiment exported alone must have ended: nobody would
    end its runs. Code archives and checkpoints are no part of it (`rung objects copy` brings
    them): those that are missing in the object store are counted and named at the end. The
    configurations of runs are made where they are missing.
    """
    from rung.cli.operations.deciders import FORWARDERS  # noqa: PLC0415 - only where it is needed
    from rung.cli.operations.ledger.handover import hand_over  # noqa: PLC0415 - see above
    from rung.ledger.export.export import import_ as read  # noqa: PLC0415 - see above
    from rung.ledger.export.format import parse_header  # noqa: PLC0415 - see above
    from rung.runtime import now  # noqa: PLC0415 - see above

    _check_target(target, link)
    await _check_seals(source, public_keys)
    async with _lines_of(source) as lines, _target(target, link) as opened:
        alone = parse_header(lines.readline()).experiment
        if alone is not None:
            await asyncio.to_thread(_check_ended, lines, alone)
        lines.seek(0)
        imported = await read(
            opened,
            lines,
            consumers=FORWARDERS,
            at=now(),
            check_idle=None if target is None else partial(_check_idle, target),
            finish=hand_over if alone is None else None,
        )
        lines.seek(0)
        where = objects if target is not None else (link.data / "objects").absolute().as_uri()
        lacking = await _missing(lines, where)
    if link.json:
        facts = imported._asdict()
        print_json(facts | facts.pop("undone")._asdict() | {"missing_objects": lacking})
    else:
        _tell(imported)
    if lacking:
        _warn_of(lacking, str(where))


@click.command()
@click.option(
    "--to",
    "target",
    required=True,
    help="URL of the object store: s3://bucket/prefix, file:///srv/archive.",
)
@ledger_option
@linked
@asynchronous
async def archive(target: str, source: Path | str | None, link: Link) -> None:
    """Archive what the ledger holds now, in segments that prove what they hold.

    What the store has already is held against the ledger and stays as it is, so this can be run
    again and again. In a cluster checkpoint-gc does it all the time. `rung audit --from-archive
    URL` audits an archive.
    """
    from rung.checkpoint_gc.archiver import archive_now  # noqa: PLC0415 - only where it is needed
    from rung.cli.operations.ledger.verify import key_of  # noqa: PLC0415 - see above
    from rung.storage import open_store  # noqa: PLC0415 - see above

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
        click.echo(f"{records:,} events in {segments:,} new segments of {name}")


@contextlib.asynccontextmanager
async def opened_for(
    link: Link, source: Path | str | None, snapshots: "ObjectStore | None" = None
) -> AsyncIterator["Ledger"]:
    """Open the ledger that is to be read: the one named, or that of the data folder.

    Args:
        link: names the data folder.
        source: the ledger, if one was named.
        snapshots: as `rung.cli.operations.ledger.records.open_ledger` takes it.

    Raises:
        UsageError: it is said to be at an URL of HTTP.
        RungError: there is none.
    """
    from rung.cli.operations.ledger.records import has_ledger, open_ledger  # noqa: PLC0415 - only where it is needed

    if source is None and link.url is not None:
        raise click.UsageError(
            "the ledger is read from a data folder, not over HTTP: name it with --data or"
            " --ledger, on the machine where it lies"
        )
    if source is None and not has_ledger(link.data):
        raise RungError(f"{link.data} holds no ledger; name the data folder with --data")
    async with open_ledger(source or link.data, snapshots) as opened:
        yield opened


async def _check_seals(source: Path | str, public_keys: tuple[str, ...]) -> None:
    """Refuse to import what is not as it was sealed; warn of what has no seals.

    Raises:
        RungError: it was altered or damaged.
    """
    from rung.cli.operations.ledger.verify import verify_source  # noqa: PLC0415 - only where it is needed

    if isinstance(source, str) and source.startswith("kafka://"):  # noqa: ASYNC240 - a string
        return  # refused where it is opened
    report = await verify_source(source, public_keys)
    if not report.sealed and not report.problems:
        click.echo(
            f"Warning: {source} has no seals: nothing shows whether it was altered. Where it comes"
            " from an installation that makes them, give that one's public key with --key",
            err=True,
        )
    if report.problems:
        more = len(report.problems) - 1
        raise RungError(
            f"{source} is not imported, for it was altered or damaged: {report.problems[0].text}"
            + (f"; {more:,} more: `rung verify --ledger {source}` lists them" if more else "")
        )


@contextlib.asynccontextmanager
async def _lines_of(source: Path | str) -> AsyncIterator[IO[bytes]]:
    """Open the lines of an export, or make them of an archive."""
    if isinstance(source, Path):
        with await asyncio.to_thread(source.open, "rb") as lines:
            yield lines
        return
    from rung.cli.operations.ledger.records import open_archive  # noqa: PLC0415 - only where it is needed
    from rung.ledger.export.export import export  # noqa: PLC0415 - see above

    if source.startswith("kafka://"):  # noqa: ASYNC240 - a string is no path
        raise click.UsageError(
            "an export or an archive is imported, not a ledger: export it first"
        )
    with tempfile.TemporaryFile() as lines:
        async with open_archive(source) as archived:
            try:
                await export(archived, lines)
                lines.seek(0)
            except OSError as error:
                raise RungError(
                    f"the archive could not be read into {tempfile.gettempdir()}"
                    f" ({error.strerror}); TMPDIR names another folder"
                ) from error
        yield lines


def _check_target(url: str | None, link: Link) -> None:
    """Refuse a place that cannot be imported into, before anything is read.

    Raises:
        RungError: Rung runs there, or another import.
    """
    if url is None:
        if link.url is not None:
            raise click.UsageError(
                "an export is imported into a data folder: name it with --data; or into a cluster:"
                " name its ledger with --ledger kafka://…"
            )
        if is_running(link.data):
            raise RungError(
                f"Rung runs on {link.data}, or another import; stop it with"
                f" `rung down --data {link.data}`, import, and start it again"
            )
    elif not url.startswith("kafka://"):
        raise click.UsageError(
            f"--ledger {url}: name a cluster, kafka://HOST/PREFIX; for a folder --data"
        )


@contextlib.asynccontextmanager
async def _target(url: str | None, link: Link) -> AsyncIterator["Ledger"]:
    """Open the ledger that is written to; a data folder is locked, so that nothing starts there.

    Raises:
        RungError: Rung runs there, or another import.
    """
    from rung.ledger.factory import open_ledger  # noqa: PLC0415 - as above
    from rung.runtime.logs import log_plainly  # noqa: PLC0415 - only where it is needed

    log_plainly()
    with locked(link.data) if url is None else contextlib.nullcontext():
        opened = await open_ledger(link.data / "ledger" if url is None else url)
        try:
            yield opened
        finally:
            await opened.close()


async def _check_idle(url: str) -> None:
    """Refuse a cluster on which services of Rung run.

    Raises:
        RungError: some do.
        LedgerUnavailable: the cluster does not answer.
    """
    from rung.cli.operations.cluster.group import sharing  # noqa: PLC0415 - an extra, not always there

    if found := await sharing(url):
        running = ", ".join(f"{name} on {', '.join(hosts)}" for name, hosts in found.items())
        raise RungError(
            f"services use this ledger ({running}). Stop every service and agent, run the same"
            " import again, and start them when it has completed"
        )


def _check_ended(lines: IO[bytes], experiment_id: str) -> None:
    """Refuse the export of one experiment whose runs would never end in its new home.

    Raises:
        RungError: it has not ended.
    """
    from rung.ledger.export.format import parse_line  # noqa: PLC0415 - only where it is needed

    for number, line in enumerate(lines, 2):
        if ExperimentEnded.TYPE.encode() in line:
            event = parse_line(line, number).event
            if event is not None and isinstance(event.data, ExperimentEnded):
                return
    raise RungError(
        f"the experiment {experiment_id} had not ended when it was exported, and would never end"
        f" here: its runs are known only where they began. End it there (`rung cancel"
        f" {experiment_id}`) and export it again, or move the whole ledger (`rung ledger export`"
        " without an ID). `rung audit --ledger FILE` and `rung ledger show --ledger FILE` read it"
        " as it is"
    )


async def _missing(lines: IO[bytes], where: str | None) -> list[str] | None:
    """Return what an export refers to and an object store does not have; None: unknown.

    Configurations are on the ledger as well, so that those are made which are missing.
    """
    from rung.cli.operations.ledger.missing_objects import (  # noqa: PLC0415 - only where needed
        made_again,
        missing,
        objects_of,
    )
    from rung.config.run_config import CONFIGS  # noqa: PLC0415 - see above
    from rung.storage import open_store  # noqa: PLC0415 - see above

    names: list[str] = []
    try:
        names = await asyncio.to_thread(objects_of, itertools.islice(lines, 1, None))
        if where is None and names:
            raise RungError("name the object store with --objects or RUNG_OBJECTS")  # noqa: TRY301
        if where is None or not names:
            return []
        path = where.startswith("file://") and Path(unquote(urlsplit(where).path))
        made = any(name.startswith(CONFIGS) for name in names)
        if path and not made and not await asyncio.to_thread(path.exists):
            return names  # opening it would make it
        store = await asyncio.to_thread(open_store, where)
        try:
            lacking = await asyncio.to_thread(missing, store, names)
            lines.seek(0)
            rest = itertools.islice(lines, 1, None)
            return await asyncio.to_thread(made_again, rest, store, lacking)
        finally:
            store.close()
    except RungError as error:  # all was imported all the same
        what = _count(names) or "the code and the checkpoints"
        click.echo(
            f"Warning: {what} that these experiments refer to were not looked for:"
            f" {printable(str(error))}",
            err=True,
        )
        return None


def _warn_of(lacking: list[str], where: str) -> None:
    named = ", ".join(map(printable, lacking[:_NAMED]))
    more = ", …" if len(lacking) > _NAMED else ""
    click.echo(
        f"Warning: {_count(lacking)} that these experiments refer to: missing in {where}"
        f" ({named}{more}). Runs that need them will fail; `rung objects copy FROM {where}` brings"
        " them",
        err=True,
    )


def _count(names: list[str]) -> str:
    """Return how many objects of each kind there are."""
    code = sum(name.startswith("code/") for name in names)
    configs = sum(name.startswith("configs/") for name in names)
    kinds = (
        ("code archive", code),
        ("configuration", configs),
        ("checkpoint", len(names) - code - configs),
    )
    return " and ".join(f"{n:,} {kind}{'' if n == 1 else 's'}" for kind, n in kinds if n)


def _tell(imported: "Imported") -> None:
    names = ", ".join(imported.experiments[:_NAMED])
    more = ", …" if len(imported.experiments) > _NAMED else ""
    click.echo(f"{imported.records:,} events of {names or 'no experiment'}{more}")
    if imported.resumed:
        click.echo("an import that had stopped before its end was completed")
    if any(undone := imported.undone):
        click.echo(
            f"left undone there, done here: {undone.forwarded:,} events forwarded,"
            f" {undone.lost:,} runs ended as lost, {undone.undeleted:,} checkpoints to delete"
        )
