"""`rung ledger import`: reads an export or an archive into a data folder or a cluster.

An import does not bring objects (code archives, configurations, checkpoints). Those that are
missing in the object store are named at the end; configurations are made from the events.
"""

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

import click

from rung.cli.connection_options import Link, linked
from rung.cli.local.data_folder import is_running, locked
from rung.cli.operations.ledger.source import KAFKA, SOURCE, open_archive
from rung.cli.operations.ledger.verify import key_option, verify_source
from rung.cli.output import counted, print_json, printable
from rung.config.run_config import CONFIGS, object_name, run_config
from rung.events import RungError
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired, CheckpointStored
from rung.events.experiment import ExperimentEnded, ExperimentRetired, ExperimentSubmitted
from rung.ledger import Ledger, open_ledger
from rung.ledger.export.export import Imported, export
from rung.ledger.export.export import import_ as read_export
from rung.ledger.export.format import parse_header, parse_line
from rung.storage import ObjectMissing, ObjectStore, checkpoint_prefix, open_store, split_area
from rung.storage.area import area_prefix

_SHOWN: Final = 5
"""Experiments and objects that are named."""
_ABOUT_OBJECTS: Final = tuple(
    data.TYPE.encode()
    for data in (
        ExperimentSubmitted,
        ExperimentRetired,
        CheckpointStored,
        CheckpointRetired,
        CheckpointDeleted,
    )
)


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
async def import_(
    source: Path | str,
    target: str | None,
    objects: str | None,
    public_keys: tuple[str, ...],
    link: Link,
) -> None:
    """Read an export, or an archive (file:///…, s3://BUCKET/PREFIX), into another ledger.

    Nothing else may use that ledger meanwhile. Experiments that it has already are refused. An
    import into a data folder is one transaction. One into a cluster that fails resumes when the
    same command is run again; until then services refuse to start there.
    After the import of a whole ledger, experiments that have not ended are trained on by the
    agents of the new installation. An experiment exported alone must have ended. Code archives and
    checkpoints are no part of an import (`rung objects copy` brings them): those that are missing
    in the object store are counted and named at the end. Missing configurations are made.
    """
    from rung.cli.operations.components import CONSUMERS  # noqa: PLC0415 - imports all services
    from rung.cli.operations.ledger.import_recovery import (  # noqa: PLC0415 - as above
        hand_over,
        hand_over_alone,
    )
    from rung.runtime import now  # noqa: PLC0415 - as above

    _check_target(target, link)
    await _check_seals(source, public_keys)
    async with _lines_of(source) as lines, _target(target, link) as opened:
        alone = parse_header(lines.readline()).experiment
        if alone is not None:
            await asyncio.to_thread(_check_ended, lines, alone)
        lines.seek(0)
        imported = await read_export(
            opened,
            lines,
            consumers=CONSUMERS,
            at=now(),
            check_idle=None if target is None else partial(_check_idle, target),
            finish=hand_over if alone is None else hand_over_alone,
        )
        lines.seek(0)
        where = objects if target is not None else (link.data / "objects").absolute().as_uri()
        lacking = await _missing_in(where, lines)
    if link.json:
        facts = imported._asdict()
        print_json(facts | facts.pop("undone")._asdict() | {"missing_objects": lacking})
    else:
        _print(imported)
    if lacking:
        _warn_of(lacking, str(where))


async def _check_seals(source: Path | str, public_keys: tuple[str, ...]) -> None:
    """Refuse records that are not as they were sealed; warn if there are no seals.

    Raises:
        RungError: it was altered or damaged.
    """
    if isinstance(source, str) and source.startswith(KAFKA):  # noqa: ASYNC240 - a string is no path
        return  # `_lines_of` refuses it
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
    """Open the lines of an export, or write those of an archive to a temporary file."""
    if isinstance(source, Path):
        with await asyncio.to_thread(source.open, "rb") as lines:
            yield lines
        return
    if source.startswith(KAFKA):  # noqa: ASYNC240 - a string is no path
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
    """Refuse a target that cannot be imported into, before anything is read.

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
    elif not url.startswith(KAFKA):
        raise click.UsageError(
            f"--ledger {url}: name a cluster, kafka://HOST/PREFIX; for a folder --data"
        )


@contextlib.asynccontextmanager
async def _target(url: str | None, link: Link) -> AsyncIterator[Ledger]:
    """Open the ledger that is written to; a data folder is locked, so that nothing starts there.

    Raises:
        RungError: Rung runs there, or another import.
    """
    from rung.runtime.logs import log_plainly  # noqa: PLC0415 - an eighth of a second

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
    from rung.cli.operations.cluster.replicas import running_on  # noqa: PLC0415 - an extra, not always there

    if found := await running_on(url):
        running = ", ".join(f"{name} on {', '.join(hosts)}" for name, hosts in found.items())
        raise RungError(
            f"services use this ledger ({running}). Stop every service and agent, run the same"
            " import again, and start them when it has completed"
        )


def _check_ended(lines: IO[bytes], experiment_id: str) -> None:
    """Refuse the export of one experiment that has not ended: its runs are not part of it.

    Raises:
        RungError: it has not ended.
    """
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


async def _missing_in(where: str | None, lines: IO[bytes]) -> list[str] | None:
    """Return the objects that an export refers to and a store does not have; None: unknown.

    Missing configurations are made, since the ledger has their contents.
    """
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
            return names  # opening it would create it
        store = await asyncio.to_thread(open_store, where)
        try:
            lacking = await asyncio.to_thread(missing_in, store, names)
            lines.seek(0)
            rest = itertools.islice(lines, 1, None)
            return await asyncio.to_thread(make_configs, rest, store, lacking)
        finally:
            store.close()
    except RungError as error:  # the import itself succeeded
        what = _kinds(names) or "the code and the checkpoints"
        click.echo(
            f"Warning: {what} that these experiments refer to were not looked for:"
            f" {printable(str(error))}",
            err=True,
        )
        return None


def objects_of(lines: Iterable[bytes]) -> list[str]:
    """Return the objects that experiments need to go on and to be shown.

    These are their code and configuration, and the manifest, which is written last, of each
    checkpoint that was retired neither by itself nor with its experiment.

    Args:
        lines: of an export that was verified.

    Raises:
        RungError: an id or a digest is invalid.
    """
    wanted: dict[str, None] = {}
    there: dict[tuple[str, str], None] = {}
    gone: set[tuple[str, str]] = set()
    deletions: set[str] = set()
    areas: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not any(kind in line for kind in _ABOUT_OBJECTS):
            continue
        event = parse_line(line, number).event
        match event and event.data:
            case ExperimentSubmitted() as submitted:
                areas[submitted.experiment_id] = submitted.area
                if submitted.code_digest is not None:
                    wanted[f"code/{submitted.code_digest}.tar.gz"] = None
                if submitted.config_digest is not None:
                    wanted[object_name(submitted.config_digest)] = None
            case CheckpointStored() as stored:
                there[stored.experiment_id, stored.checkpoint_id] = None
            case CheckpointRetired() | CheckpointDeleted() as ended:
                gone.add((ended.experiment_id, ended.checkpoint_id))
            case ExperimentRetired() as deleted:
                deletions.add(deleted.experiment_id)
            case _:
                pass
    manifests = (
        f"{area_prefix(areas.get(ids[0], ''))}{checkpoint_prefix(*ids)}manifest.json"
        for ids in there
        if ids not in gone and ids[0] not in deletions
    )
    return sorted([*wanted, *manifests])


def missing_in(store: ObjectStore, names: Collection[str]) -> list[str]:
    """Return the objects that a store does not have, in order."""

    def lacks(name: str) -> bool:
        area, within = split_area(name)
        try:
            store.area(area).version(within)
        except ObjectMissing:
            return True
        return False

    with ThreadPoolExecutor(store.parallel) as threads:
        lacking = threads.map(lacks, names)
        return [name for name, is_missing in zip(names, lacking, strict=True) if is_missing]


def make_configs(lines: Iterable[bytes], store: ObjectStore, names: Collection[str]) -> list[str]:
    """Write the missing configurations to a store; return the objects that are still missing.

    Args:
        lines: of the export.
        store: where the objects are missing.
        names: of these.

    Raises:
        RungError: the store does not answer.
    """
    left = dict.fromkeys(names)
    if not any(name.startswith(CONFIGS) for name in left):
        return list(left)
    for number, line in enumerate(lines, 1):
        if ExperimentSubmitted.TYPE.encode() not in line:
            continue
        event = parse_line(line, number).event
        if event is not None and isinstance(event.data, ExperimentSubmitted):
            found = run_config(event.data.config)
            if found.name in left:
                store.put_bytes(found.name, found.data)
                del left[found.name]
    return list(left)


def _warn_of(lacking: list[str], where: str) -> None:
    named = ", ".join(map(printable, lacking[:_SHOWN]))
    more = ", …" if len(lacking) > _SHOWN else ""
    click.echo(
        f"Warning: {_kinds(lacking)} that these experiments refer to: missing in {where}"
        f" ({named}{more}). Runs that need them will fail; `rung objects copy FROM {where}` brings"
        " them",
        err=True,
    )


def _kinds(names: list[str]) -> str:
    """Return the number of objects of each kind."""
    code = sum(name.startswith("code/") for name in names)
    configs = sum(name.startswith(CONFIGS) for name in names)
    kinds = (
        ("code archive", code),
        ("configuration", configs),
        ("checkpoint", len(names) - code - configs),
    )
    return " and ".join(counted(count, kind) for kind, count in kinds if count)


def _print(imported: Imported) -> None:
    names = ", ".join(imported.experiments[:_SHOWN])
    more = ", …" if len(imported.experiments) > _SHOWN else ""
    click.echo(f"{counted(imported.records, 'event')} of {names or 'no experiment'}{more}")
    if imported.resumed:
        click.echo("an import that had stopped before its end was completed")
    if any(undone := imported.undone):
        click.echo(
            f"completed here: {counted(undone.forwarded, 'event')} relayed,"
            f" {counted(undone.lost, 'run')} ended as lost,"
            f" {counted(undone.undeleted, 'checkpoint')} to delete"
        )
