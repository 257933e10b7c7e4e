"""`rung verify`: checks a ledger, an export or an archive against its seals."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rung.api import SealProblem, SealReport
from rung.cli.connection_options import Link, linked
from rung.cli.exit_code import FAILED, OK, TROUBLE
from rung.cli.operations.ledger.source import (
    FILE,
    KAFKA,
    has_ledger,
    is_export,
    ledger_option,
    open_archive,
    open_source,
)
from rung.cli.output import counted, print_json, printable
from rung.events import RungError, topic
from rung.ledger.seals import ENVIRONMENT, SealKey, parse_public
from rung.ledger.seals import FILE as KEY_FILE
from rung.ledger.seals.exported import verify_export
from rung.ledger.seals.verify import Known, require_cover
from rung.ledger.seals.verify import verify as verify_seals

if TYPE_CHECKING:
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
strict_option: Final = click.option(
    "--strict/--no-strict",
    default=None,
    help="Whether records that neither a seal nor a signature covers are a failure."
    "  [default: of exports and archives; of a ledger they are sealed within seconds]",
)


@click.command("verify")
@ledger_option
@key_option
@anchor_option
@strict_option
@linked
async def verify(
    source: Path | str | None,
    public_keys: tuple[str, ...],
    anchor: str | None,
    strict: bool | None,  # noqa: FBT001 - an option
    link: Link,
) -> int:
    """Check the records of a ledger against its seals.

    Names each record that was altered, each range that is missing, each end that was cut off, and
    each seal that is wrong; and, apart, what is not sealed yet, which in a copy must be signed.
    It can run while Rung does. Exit code 0: all is as it was sealed; 1: something is not; 6: there
    are no seals, so nothing can be said. `rung audit` does this first, and then decides every
    decision again.
    """
    if source is None:
        if not has_ledger(link.data):
            raise RungError(
                f"{link.data} holds no ledger; name the data folder with --data, or a ledger, an"
                " export or an archive with --ledger"
            )
        source = link.data
    report = await verify_source(source, public_keys, anchor, strict=strict)
    if link.json:
        print_json(report)
    else:
        print_seals(report)
    if not report.whole:
        return FAILED
    return OK if report.sealed else TROUBLE


async def verify_source(
    source: Path | str,
    public_keys: tuple[str, ...] = (),
    anchor: str | None = None,
    *,
    strict: bool | None = None,
) -> SealReport:
    """Check the ledger that a path or an URL names against its seals.

    Args:
        source: what to check.
        public_keys: the trusted public keys, if not the installation's own.
        anchor: where signed heads were kept.
        strict: whether records that neither a seal nor a signature covers are a problem; by
            default those of exports and archives are.

    Raises:
        RungError: it is no ledger, export or archive; a key or the anchor cannot be read.
    """
    anchors = await read_anchors(anchor)
    keys = await asyncio.to_thread(keys_of, source, public_keys)
    cluster = isinstance(source, str) and source.startswith(KAFKA)  # noqa: ASYNC240 - a string is no path
    copy = True
    if isinstance(source, str) and not cluster:
        report = (await verify_archive(source, keys, anchors))[1]
    elif isinstance(source, Path) and await asyncio.to_thread(is_export, source):
        with await asyncio.to_thread(source.open, "rb") as lines:
            report = await verify_export(lines, keys, anchors)
    else:
        copy = False
        expiring = (topic.METRICS, topic.LOGS) if cluster else ()
        async with open_source(source) as ledger:
            report = await verify_seals(
                ledger, Known(keys=keys, anchors=anchors, expiring=expiring)
            )
    if copy if strict is None else strict:
        require_cover(report)
    return report


async def verify_archive(
    url: str, keys: frozenset[str], anchors: "list[Heads]", earlier: list[str] | None = None
) -> "tuple[Report, SealReport]":
    """Verify an archive, its segments and then its seals.

    Args:
        url: of its object store, with `#LEDGER` behind it where several ledgers are archived.
        keys: the trusted public keys.
        anchors: heads that were kept elsewhere.
        earlier: `ends` of an earlier report.

    Raises:
        RungError: there is no such archive, or it cannot be reached.
    """
    from rung.ledger.archive import parse_location  # noqa: PLC0415 - an eighth of a second
    from rung.ledger.archive import verify as verify_segments  # noqa: PLC0415 - as above

    def read() -> "Report":
        location = parse_location(url)
        store = location.open()
        try:
            return verify_segments(store, location.ledger_id, known=earlier or (), keys=keys)
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
        seals = await verify_seals(ledger, known)
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


async def read_anchors(where: str | None) -> "list[Heads]":
    """Return the heads that an anchor has, if one is named.

    Raises:
        RungError: it cannot be read, or has none.
    """
    if where is None:
        return []
    from rung.runtime.sealing.anchor import read_anchor  # noqa: PLC0415 - the runtime, seldom

    heads = await read_anchor(where)
    if not heads:
        raise RungError(
            f"the anchor {where} holds no signed heads: nothing can be compared with it"
        )
    return heads


def keys_of(source: Path | str, public_keys: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the trusted public keys of a source: those named, or its installation's own.

    Raises:
        LedgerError: one cannot be read.
    """
    if public_keys:
        return frozenset().union(*map(parse_public, public_keys))
    key = key_of(source, readable_only=False)
    return key.trusted if key else frozenset()


def key_of(source: Path | str, *, readable_only: bool = True) -> SealKey | None:
    """Return the signing key of a source's installation, None if there is none here.

    Args:
        source: a path, or the URL of a cluster.
        readable_only: whether a key file that may not be read counts as none.

    Raises:
        LedgerError: it cannot be read.
    """
    if isinstance(source, Path):
        file = _key_file(source)
        if file is None or (readable_only and not os.access(file, os.R_OK)):
            return None
        return SealKey.load(file)
    text = os.environ.get(ENVIRONMENT)
    return SealKey.parse(text) if text and source.startswith(KAFKA) else None


def _key_file(path: Path) -> Path | None:
    """Return the key of the data folder that a path names, or lies in; None if there is none."""
    if path.is_dir():
        folders = [path, path.parent] if path.name == "ledger" else [path]
    elif path.name == FILE:
        folders = [path.parent, path.parent.parent]
    else:
        folders = []
    return next((folder / KEY_FILE for folder in folders if (folder / KEY_FILE).is_file()), None)


def print_seals(report: SealReport) -> None:
    """Print the result of verifying seals."""
    if report.sealed:
        since = f" since {report.since}" if report.since else ""
        are = "is as it was" if report.records == 1 else "are as they were"
        records, seals = counted(report.records, "record"), counted(report.seals, "seal")
        click.echo(f"{records} {are} sealed, by {seals}{since}")
    elif report.whole:
        click.echo("There are no seals: nothing shows whether records were altered.")
    for problem in report.problems[:_SHOWN]:
        click.echo(f"  {problem.kind}: {printable(problem.text)}")
    if len(report.problems) > _SHOWN:
        more = counted(len(report.problems) - _SHOWN, "more problem")
        click.echo(f"  {more}; --json lists all")
    if report.unsealed and report.sealed:
        count = sum(item.count for item in report.unsealed)
        click.echo(f"not sealed yet: {counted(count, 'record')}")
        for item in report.unsealed[:_SHOWN]:
            covered = ", covered by a signature" if item.signed else ""
            place = f"{item.topic}/{item.partition}"
            click.echo(f"  {place}: {item.count:,} from position {item.first} on{covered}")
    for note in report.notes:
        click.echo(f"  note: {printable(note)}")
    if report.keys and not report.compared:
        click.echo(
            f"  note: signed by the key {', '.join(report.keys)}, which it names itself; compare"
            " it with --key"
        )
    if not report.whole:
        click.echo("The record was altered or damaged.")
