"""`rung audit`: checks the record against its seals, and decides every decision again."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from rung.api import Audit
from rung.cli.connection_options import Link, linked, optional_experiment_argument
from rung.cli.exit_code import FAILED, OK
from rung.cli.operations.ledger.source import (
    has_ledger,
    ledger_option,
    open_archive,
    open_source,
    resolve,
)
from rung.cli.operations.ledger.verify import (
    anchor_option,
    key_option,
    keys_of,
    print_seals,
    read_anchors,
    verify_archive,
    verify_source,
)
from rung.cli.output import counted, flat, local_time, print_json, printable, size
from rung.events import LedgerError, LedgerTrimmed, RungError
from rung.ledger.seals.verify import require_cover

if TYPE_CHECKING:
    from rung.ledger.archive import Report

_SHOWN: Final = 20
"""Differences and problems that are printed in full."""
_VALUE_MAX: Final = 300
"""Characters of a value that are printed."""
_ABSENT: Final = object()


class _Earlier(msgspec.Struct):
    """The part that is needed of an earlier audit's JSON."""

    class Archive(msgspec.Struct):
        """The report on the archive."""

        ends: list[str]

    archive: Archive


@click.command()
@optional_experiment_argument
@ledger_option
@click.option(
    "--from-archive",
    "archive",
    metavar="URL",
    help="Audit an archive: file:///…, s3://BUCKET/PREFIX; with #LEDGER where there are several.",
)
@click.option(
    "--since",
    "earlier",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What --json printed for that archive before: all that was there must still be.",
)
@key_option
@anchor_option
@linked
async def audit(  # noqa: PLR0913, PLR0917 - what can be chosen
    experiment_id: str | None,
    source: Path | str | None,
    archive: str | None,
    earlier: Path | None,
    public_keys: tuple[str, ...],
    anchor: str | None,
    link: Link,
) -> int:
    """Check the record against its seals, then decide every decision on it again, and compare.

    The ledger of a data folder is read directly, also while no server runs; that of a server
    elsewhere is audited there, one experiment (ID) at a time. Of an archive, each segment and
    the chain that they make are verified first. Exit code 0: nothing differs; 1: something does.
    With --json: `same`, `decisions`, `differences` (process, key, position, index, recorded,
    decided), `verdicts`, one per decider, and `seals`, see `rung verify`; of an archive also
    `archive`: what verifying found.
    """
    if archive is not None:
        if source is not None:
            raise click.UsageError("name the ledger by --ledger or by --from-archive, not by both")
        return await _audit_archive(link, archive, experiment_id, earlier, (public_keys, anchor))
    if earlier is not None:
        raise click.UsageError("--since goes with --from-archive")
    if source is None and link.url is None and has_ledger(link.data):
        source = link.data
    if source is not None:
        verdict = await _audit_source(source, experiment_id, public_keys, anchor)
    elif experiment_id is None:
        raise click.UsageError(
            "name the experiment to audit, or with --ledger or --data the ledger to audit whole"
        )
    else:
        async with link.client() as client:
            verdict = await client.audit(experiment_id)
    if link.json:
        print_json(verdict)
    else:
        _print(verdict)
    return OK if verdict.same else FAILED


async def _audit_source(
    source: Path | str, name: str | None, public_keys: tuple[str, ...], anchor: str | None
) -> Audit:
    from rung.cli.operations.components import audit_all  # noqa: PLC0415 - imports all services

    seals = await verify_source(source, public_keys, anchor)
    try:
        async with open_source(source) as ledger:
            experiment_id = None if name is None else await resolve(ledger, name)
            return await audit_all(ledger, experiment_id, seals=seals)
    except LedgerTrimmed as error:
        raise RungError(
            f"{error}. What the ledger no longer keeps is in its archive:"
            " rung audit --from-archive URL"
        ) from error
    except LedgerError as error:
        if seals.whole:
            raise
        seals.notes.append(f"nothing could be decided again: {error}")
        return Audit(same=False, decisions=0, differences=[], verdicts=[], seals=seals)


async def _audit_archive(
    link: Link,
    url: str,
    experiment_id: str | None,
    earlier: Path | None,
    trusted: tuple[tuple[str, ...], str | None],
) -> int:
    """Verify an archive, decide again what can be read of it, and print what differs.

    Args:
        link: says how to print.
        url: of its object store, with `#LEDGER` behind it where several ledgers are archived.
        experiment_id: of the only experiment to be decided again.
        earlier: what this printed as JSON some time ago.
        trusted: public keys and the anchor.
    """
    from rung.cli.operations.components import audit_all  # noqa: PLC0415 - imports all services

    known = [] if earlier is None else await asyncio.to_thread(_ends_in, earlier)
    public_keys, anchor = trusted
    keys = await asyncio.to_thread(keys_of, url, public_keys)
    report, seals = await verify_archive(url, keys, await read_anchors(anchor), known)
    require_cover(seals)
    if not link.json:
        _print_archive(report)
    async with open_archive(url, report) as ledger:
        name = None if experiment_id is None else await resolve(ledger, experiment_id)
        verdict = await audit_all(ledger, name, seals=seals)
    if link.json:
        print_json(msgspec.structs.asdict(verdict) | {"archive": report})
    else:
        _print(verdict)
    return OK if verdict.same and report.whole else FAILED


def _ends_in(file: Path) -> list[str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Earlier).archive.ends
    except (OSError, msgspec.DecodeError) as error:
        raise RungError(
            f"--since {file}: give what `rung audit --from-archive … --json` printed ({error})"
        ) from error


def _print_archive(report: "Report") -> None:
    click.echo(
        f"Archive of the ledger {report.ledger}: {counted(report.records, 'event')} in"
        f" {counted(report.segments, 'segment')} ({size(report.size_bytes)} unpacked)"
    )
    for problem in report.problems[:_SHOWN]:
        where = f" [{problem.object}]" if problem.object else ""
        click.echo(f"  {problem.kind}: {printable(problem.text)}{where}")
    if len(report.problems) > _SHOWN:
        more = counted(len(report.problems) - _SHOWN, "more problem")
        click.echo(f"  {more}; --json lists all")
    for note in report.notes:
        click.echo(f"  note: {note}")
    if report.whole:
        click.echo("Every segment and every chain is whole.")
    else:
        click.echo("The archive was damaged or altered; what can be read of it is decided again.")


def _print(found: Audit) -> None:
    if found.seals is not None:
        print_seals(found.seals)
    for verdict in found.verdicts:
        decisions = counted(verdict.decisions, "decision")
        later = f", {verdict.pending:,} not yet decided" if verdict.pending else ""
        click.echo(
            f"{verdict.process}: {decisions} on {counted(verdict.facts, 'fact')} decided again,"
            f" {_count(verdict.differences)}{later}"
        )
        for line in verdict.unreadable:
            click.echo(f"  cannot be decided again: {printable(line)}")
    for line in found.imports:
        click.echo(f"import: {printable(line)}")
    for item in found.differences[:_SHOWN]:
        click.echo(
            f"{item.process} differs: {item.key}, fact at position {item.position},"
            f" decision {item.index}"
        )
        for line in _changes(item.recorded, item.decided):
            click.echo(f"  {line}")
    if len(found.differences) > _SHOWN:
        click.echo(f"{len(found.differences) - _SHOWN} more differ; --json lists them")
    _print_deleted(found)
    if found.verdicts:
        click.echo(_conclusion(found))


def _print_deleted(found: Audit) -> None:
    for experiment_id, moment in list(found.deleted.items())[:_SHOWN]:
        click.echo(f"Experiment {experiment_id} was deleted at {local_time(moment)}.")
    if len(found.deleted) > _SHOWN:
        click.echo(f"{len(found.deleted) - _SHOWN} more were deleted; --json lists them")


def _conclusion(found: Audit) -> str:
    if found.differences:
        return "The record differs from what is decided today."
    if found.imports:
        return "The record contradicts what was imported."
    if any(verdict.unreadable for verdict in found.verdicts):
        return "None differs, but not all of the record can be decided again."
    return f"All {found.decisions:,} decisions are the same."


def _count(differences: int) -> str:
    if not differences:
        return "none differs"
    return "one differs" if differences == 1 else f"{differences:,} differ"


def _changes(recorded: dict[str, Any] | None, decided: dict[str, Any] | None) -> list[str]:
    """Return one line for each field that differs."""
    if recorded is None or decided is None or recorded["type"] != decided["type"]:
        return [f"on record: {_decision(recorded)}", f"decided:   {_decision(decided)}"]
    then, today = dict(flat(recorded["data"])), dict(flat(decided["data"]))
    return [
        f"{recorded['type']}: {name} is {_value(then, name)} on record,"
        f" and {_value(today, name)} as decided today"
        for name in dict.fromkeys((*then, *today))
        if then.get(name, _ABSENT) != today.get(name, _ABSENT)
    ]


def _value(fields: dict[str, Any], name: str) -> str:
    if name not in fields:
        return "absent"
    return printable(msgspec.json.encode(fields[name]).decode())[:_VALUE_MAX]


def _decision(decision: dict[str, Any] | None) -> str:
    if decision is None:
        return "nothing"
    data = msgspec.json.encode(decision["data"]).decode()
    return printable(f"{decision['type']} {data}")[:_VALUE_MAX]
