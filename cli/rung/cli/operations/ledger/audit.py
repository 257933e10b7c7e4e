"""`rung audit`: the record is held against its seals, and every decision is decided again."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from rung.cli.commands.complete import experiment_ids
from rung.cli.exit_code import FAILED, OK
from rung.cli.link import Link, asynchronous, ledger_option, linked
from rung.cli.operations.ledger.verify import anchor_option, key_option, tell_seals
from rung.cli.output import flat, print_json, printable
from rung.events import LedgerError, LedgerTrimmed, RungError

if TYPE_CHECKING:
    from rung.client import Audit

_SHOWN: Final = 20
"""Differences in full."""
_LETTERS: Final = 300
"""Of a value."""
_ABSENT: Final = object()
Known = tuple[tuple[str, ...], str | None]
"""The public keys and the anchor that a command names."""


@click.command()
@click.argument("experiment_id", metavar="[ID]", required=False, shell_complete=experiment_ids)
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
@asynchronous
async def audit(  # noqa: PLR0913, PLR0917 - what can be chosen
    experiment_id: str | None,
    source: Path | str | None,
    archive: str | None,
    earlier: Path | None,
    public_keys: tuple[str, ...],
    anchor: str | None,
    link: Link,
) -> int:
    """Hold the record against its seals, then decide every decision on it again, and compare.

    The ledger of a data folder is read directly, also while no server runs; that of a server
    elsewhere is audited there, one experiment (ID) at a time. Of an archive, each segment and
    the chain that they make are verified first. Exit code 0: nothing differs; 1: something does.
    With --json: `same`, `decisions`, `differences` (process, key, position, index, recorded,
    decided), `verdicts`, one per decider, and `seals`, see `rung verify`; of an archive also
    `archive`: what verifying found.
    """
    if archive is not None:
        from rung.cli.operations.ledger.audit_archive import audit_archive  # noqa: PLC0415 - only where it is needed

        if source is not None:
            raise click.UsageError("name the ledger by --ledger or by --from-archive, not by both")
        return await audit_archive(
            archive, experiment_id, earlier, (public_keys, anchor), as_json=link.json
        )
    if earlier is not None:
        raise click.UsageError("--since goes with --from-archive")
    verdict = await _audit(link, experiment_id, source, (public_keys, anchor))
    if link.json:
        print_json(verdict)
    else:
        tell(verdict)
    return OK if verdict.same else FAILED


async def _audit(
    link: Link, experiment_id: str | None, source: Path | str | None, known: Known
) -> "Audit":
    from rung.cli.operations.ledger.records import has_ledger  # noqa: PLC0415 - only where it is needed

    if source is None and link.url is None and has_ledger(link.data):
        source = link.data
    if source is not None:
        return await _audit_here(source, experiment_id, known)
    if experiment_id is None:
        raise click.UsageError(
            "name the experiment to audit, or with --ledger or --data the ledger to audit whole"
        )
    async with link.client() as client:
        return await client.audit(experiment_id)


async def _audit_here(source: Path | str, name: str | None, known: Known) -> "Audit":
    from rung import api  # noqa: PLC0415 - only where it is needed
    from rung.cli.operations.deciders import audit_all  # noqa: PLC0415 - see above
    from rung.cli.operations.ledger.records import open_ledger, resolve  # noqa: PLC0415 - see above
    from rung.cli.operations.ledger.verify import verify_source  # noqa: PLC0415 - see above

    seals = await verify_source(source, *known)
    try:
        async with open_ledger(source) as ledger:
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
        return api.Audit(same=False, decisions=0, differences=[], verdicts=[], seals=seals)


def tell(found: "Audit") -> None:
    """Print an audit's verdict for a person."""
    if found.seals is not None:
        tell_seals(found.seals)
    for verdict in found.verdicts:
        said = _count(verdict.differences)
        later = f", {verdict.pending:,} not yet decided" if verdict.pending else ""
        click.echo(
            f"{verdict.process}: {verdict.decisions:,} decisions on {verdict.facts:,} facts"
            f" decided again, {said}{later}"
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
    if found.verdicts:
        click.echo(_conclusion(found))


def _conclusion(found: "Audit") -> str:
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
    return printable(msgspec.json.encode(fields[name]).decode())[:_LETTERS]


def _decision(decision: dict[str, Any] | None) -> str:
    if decision is None:
        return "nothing"
    data = msgspec.json.encode(decision["data"]).decode()
    return printable(f"{decision['type']} {data}")[:_LETTERS]
