"""`rung verify`: a ledger, an export or an archive is held against its seals."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rung.cli.exit_code import FAILED, OK, TROUBLE
from rung.cli.link import Link, asynchronous, ledger_option, linked
from rung.cli.output import print_json, printable
from rung.events import RungError, topic

if TYPE_CHECKING:
    from rung.api import SealReport
    from rung.ledger.archive import Report
    from rung.ledger.seals import Heads

_SHOWN: Final = 20

key_option: Final = click.option(
    "--key",
    "public_keys",
    multiple=True,
    metavar="KEY|FILE",
    help="The installation's public key, or a file with it.  [default: of a data folder its own;"
    " of an export or an archive the one that it names itself]",
)
anchor_option: Final = click.option(
    "--anchor",
    metavar="FILE|URL",
    help="Where the signed heads were kept, see `rung up --anchor`.",
)


@click.command("verify")
@ledger_option
@key_option
@anchor_option
@linked
@asynchronous
async def verify(
    source: Path | str | None, public_keys: tuple[str, ...], anchor: str | None, link: Link
) -> int:
    """Hold what is on record against its seals.

    Names each record that was altered, each range that is missing, each end that was cut off, and
    each seal that is wrong; and, apart, what is not sealed yet. It can run while Rung does. Exit
    code 0: all is as it was sealed; 1: something is not; 6: there are no seals, so nothing can be
    said. `rung audit` does this first, and then decides every decision again.
    """
    from rung.cli.operations.ledger.records import has_ledger  # noqa: PLC0415 - only where it is needed

    if source is None:
        if not has_ledger(link.data):
            raise RungError(
                f"{link.data} holds no ledger; name the data folder with --data, or a ledger, an"
                " export or an archive with --ledger"
            )
        source = link.data
    report = await verify_source(source, public_keys, anchor)
    if link.json:
        print_json(report)
    else:
        tell_seals(report)
    if not report.whole:
        return FAILED
    return OK if report.sealed else TROUBLE


async def verify_source(
    source: Path | str, public_keys: tuple[str, ...] = (), anchor: str | None = None
) -> "SealReport":
    """Hold what a path or an URL names against its seals.

    Raises:
        RungError: it is no ledger, export or archive; a key or the anchor cannot be read.
    """
    anchors = await _anchors(anchor)
    keys = await asyncio.to_thread(keys_of, source, public_keys)
    cluster = isinstance(source, str) and source.startswith("kafka://")  # noqa: ASYNC240 - a string is no path
    if isinstance(source, str) and not cluster:
        return (await verify_archive(source, keys, anchors))[1]
    if isinstance(source, Path) and await asyncio.to_thread(_is_export, source):
        from rung.ledger.seals.exported import verify_export  # noqa: PLC0415 - only for exports

        with await asyncio.to_thread(source.open, "rb") as lines:
            return await verify_export(lines, keys, anchors)
    from rung.cli.operations.ledger.records import open_ledger  # noqa: PLC0415 - only where it is needed
    from rung.ledger.seals.verify import Known  # noqa: PLC0415 - as above
    from rung.ledger.seals.verify import verify as hold  # noqa: PLC0415 - as above

    expiring = (topic.METRICS, topic.LOGS) if cluster else ()
    async with open_ledger(source) as ledger:
        return await hold(ledger, Known(keys=keys, anchors=anchors, expiring=expiring))


async def verify_archive(
    url: str, keys: frozenset[str], anchors: "list[Heads]", earlier: list[str] | None = None
) -> "tuple[Report, SealReport]":
    """Verify an archive, its segments and then its seals.

    Args:
        url: of its object store, with `#LEDGER` behind it where several ledgers are archived.
        keys: the public keys that count.
        anchors: heads that were kept elsewhere.
        earlier: `ends` of an earlier report.

    Raises:
        RungError: there is no such archive, or it cannot be reached.
    """
    from rung.api import SealProblem  # noqa: PLC0415 - only where it is needed
    from rung.cli.operations.ledger.records import open_archive  # noqa: PLC0415 - as above
    from rung.ledger.archive import parse_location  # noqa: PLC0415 - with what S3 needs
    from rung.ledger.archive import verify as verify_segments  # noqa: PLC0415 - as above
    from rung.ledger.seals.verify import Known  # noqa: PLC0415 - as above
    from rung.ledger.seals.verify import verify as hold  # noqa: PLC0415 - as above

    def read() -> "Report":
        location = parse_location(url)
        store = location.open()
        try:
            return verify_segments(
                store, location.ledger_id, known=earlier or (), keys=keys or frozenset()
            )
        finally:
            store.close()

    report = await asyncio.to_thread(read)
    archived = {
        (name, int(partition)): end
        for place, end in report.signed.items()
        for name, _, partition in [place.partition("/")]
    }
    known = Known(keys=keys, anchors=anchors, archived=archived, holes=report.holes)
    async with open_archive(url, report) as ledger:
        seals = await hold(ledger, known)
    seals.problems[:0] = [
        SealProblem(
            kind="missing" if problem.kind == "missing" else "altered",
            topic=problem.topic,
            partition=problem.partition,
            first=None,
            last=None,
            text=f"{problem.kind}: {problem.text}",
        )
        for problem in report.problems
    ]
    return report, seals


async def _anchors(where: str | None) -> "list[Heads]":
    if where is None:
        return []
    from rung.runtime.sealing.anchor import read_anchor  # noqa: PLC0415 - only where it is needed

    return await read_anchor(where)


def keys_of(source: Path | str | None, public_keys: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the public keys that count for a ledger: those named, or the data folder's own.

    Raises:
        LedgerError: one cannot be read.
    """
    from rung.ledger.seals import ENVIRONMENT, SealKey, parse_public  # noqa: PLC0415 - seldom

    if public_keys:
        return frozenset().union(*map(parse_public, public_keys))
    if isinstance(source, Path):
        file = key_file(source)
        return SealKey.load(file).trusted if file else frozenset()
    text = os.environ.get(ENVIRONMENT)
    if source is not None and source.startswith("kafka://") and text:
        return SealKey.parse(text).trusted
    return frozenset()


def key_of(source: Path | str) -> Any:
    """Return the installation's key where it is at hand for a source, None where it is not."""
    from rung.ledger.seals import ENVIRONMENT, SealKey  # noqa: PLC0415 - seldom

    if isinstance(source, Path):
        file = key_file(source)
        return SealKey.load(file) if file and os.access(file, os.R_OK) else None
    text = os.environ.get(ENVIRONMENT)
    return SealKey.parse(text) if source.startswith("kafka://") and text else None


def key_file(path: Path) -> Path | None:
    """Return the key of the data folder that a path names, or lies in; None if there is none."""
    from rung.ledger.seals import FILE  # noqa: PLC0415 - seldom

    if path.is_dir():
        folders = [path, path.parent] if path.name == "ledger" else [path]
    elif path.name == "ledger.db":
        folders = [path.parent, path.parent.parent]
    else:
        folders = []
    return next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)


def _is_export(path: Path) -> bool:
    from rung.cli.operations.ledger.records import is_export  # noqa: PLC0415 - only where it is needed

    return is_export(path)


def tell_seals(report: "SealReport") -> None:
    """Print what verifying found, for a person."""
    if report.sealed:
        since = f" since {report.since}" if report.since else ""
        click.echo(
            f"{report.records:,} records are as they were sealed, by {report.seals:,} seals{since}"
        )
    elif report.whole:
        click.echo("There are no seals: nothing shows whether records were altered.")
    for problem in report.problems[:_SHOWN]:
        click.echo(f"  {problem.kind}: {printable(problem.text)}")
    if len(report.problems) > _SHOWN:
        click.echo(f"  {len(report.problems) - _SHOWN:,} more problems; --json lists them")
    if report.unsealed and report.sealed:
        count = sum(item.count for item in report.unsealed)
        click.echo(f"not sealed yet: {count:,} record{'s' * (count != 1)}")
    for note in report.notes:
        click.echo(f"  note: {printable(note)}")
    if report.keys and not report.compared:
        click.echo(
            f"  note: signed by the key {', '.join(report.keys)}, which it names itself; compare"
            " it with --key"
        )
    if not report.whole:
        click.echo("The record was altered or damaged.")
