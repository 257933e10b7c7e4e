"""`rung audit --from-archive`: an archive is verified, then what it holds is decided again."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from rung.cli.exit_code import FAILED, OK
from rung.cli.operations.deciders import audit_all
from rung.cli.operations.ledger.audit import tell
from rung.cli.operations.ledger.records import open_archive, resolve
from rung.cli.operations.ledger.verify import keys_of, verify_archive
from rung.cli.output import print_json, printable, size
from rung.events import RungError
from rung.runtime.sealing.anchor import read_anchor

if TYPE_CHECKING:
    from rung.ledger.archive import Report

_SHOWN: Final = 20


class _Earlier(msgspec.Struct):
    """What is needed of what an earlier audit printed."""

    class Archive(msgspec.Struct):
        """Of what verifying found."""

        ends: list[str]

    archive: Archive


async def audit_archive(
    url: str,
    experiment_id: str | None,
    earlier: Path | None,
    compared: tuple[tuple[str, ...], str | None],
    *,
    as_json: bool,
) -> int:
    """Verify an archive, decide again what can be read of it, and say what differs.

    Args:
        url: of its object store, with `#LEDGER` behind it where several ledgers are archived.
        experiment_id: of the only experiment to be decided again.
        earlier: what this printed as JSON some time ago.
        compared: the public keys and the anchor to hold it against.
        as_json: whether to print JSON.

    Raises:
        RungError: there is no such archive, or it cannot be reached.
    """
    known = [] if earlier is None else await asyncio.to_thread(_ends_in, earlier)
    public_keys, anchor = compared
    keys = await asyncio.to_thread(keys_of, url, public_keys)
    anchors = [] if anchor is None else await read_anchor(anchor)
    report, seals = await verify_archive(url, keys, anchors, known)
    if not as_json:
        _tell(report)
    async with open_archive(url, report) as ledger:
        name = None if experiment_id is None else await resolve(ledger, experiment_id)
        verdict = await audit_all(ledger, name, seals=seals)
    if as_json:
        print_json(msgspec.structs.asdict(verdict) | {"archive": report})
    else:
        tell(verdict)
    return OK if verdict.same and report.whole else FAILED


def _ends_in(file: Path) -> list[str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Earlier).archive.ends
    except (OSError, msgspec.DecodeError) as error:
        raise RungError(
            f"--since {file}: give what `rung audit --from-archive … --json` printed ({error})"
        ) from error


def _tell(report: "Report") -> None:
    click.echo(
        f"Archive of the ledger {report.ledger}: {report.records:,} events in"
        f" {report.segments:,} segments ({size(report.size_bytes)} unpacked)"
    )
    for problem in report.problems[:_SHOWN]:
        where = f" [{problem.object}]" if problem.object else ""
        click.echo(f"  {problem.kind}: {printable(problem.text)}{where}")
    if len(report.problems) > _SHOWN:
        click.echo(f"  {len(report.problems) - _SHOWN} more problems; --json lists them")
    for note in report.notes:
        click.echo(f"  note: {note}")
    if report.whole:
        click.echo("Every segment and every chain is whole.")
    else:
        click.echo("The archive was damaged or altered; what can be read of it is decided again.")
