"""`rung deadletter list`, `show`, `retry` and `drop`."""

from typing import TYPE_CHECKING, Any, Final

import click

from rung.cli.link import Link, asynchronous, linked
from rung.cli.output import local_time, print_facts, print_json, print_table, printable
from rung.cli.terminal import escape

if TYPE_CHECKING:
    from rung.client import DeadLetter

_PARTS: Final = 4
_LIMIT_MAX: Final = 1_000


class _LetterId(click.ParamType):
    """Takes READER/TOPIC/PARTITION/POSITION."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the id as it is."""
        text = str(value)
        parts = text.split("/")
        if len(parts) != _PARTS or not all(part.strip(".") for part in parts):
            self.fail(
                f"{text!r} is no id of a dead letter: give READER/TOPIC/PARTITION/POSITION, such"
                " as searcher/experiments/3/217; `rung deadletter list` prints them",
                param,
                ctx,
            )
        return text


_letter_id: Final = click.argument("letter_id", metavar="ID", type=_LetterId())


@click.group()
def deadletter() -> None:
    """See to messages that a service could not take in."""


@deadletter.command("list")
@click.option("--all", "everything", is_flag=True, help="Those that are not open, too.")
@click.option("--limit", default=100, type=click.IntRange(1, _LIMIT_MAX), show_default=True)
@linked
@asynchronous
async def list_(link: Link, limit: int, *, everything: bool) -> None:
    """List open dead letters, the newest first.

    ID is READER/TOPIC/PARTITION/POSITION: which component could not take the message, and where
    in the ledger it lies. Several may reject one message; each writes a letter of its own.
    """
    async with link.client() as client:
        found = await client.dead_letters(limit, state=None if everything else "open")
    if link.json:
        print_json(found)
        return
    if not found.items:
        click.echo("There is none." if everything else "None is open.")
        return
    print_table(
        ["id", "state", "of", "at", "because"],
        [
            (item.id, item.state, item.key, local_time(item.at), item.reason)
            for item in found.items
        ],
    )
    if found.next_cursor is not None:
        click.echo("and older ones; --limit lists more")


@deadletter.command()
@_letter_id
@linked
@asynchronous
async def show(letter_id: str, link: Link) -> None:
    """Show a dead letter: the message, why it was not taken, and what can be done."""
    async with link.client() as client:
        letter = await client.dead_letter(letter_id)
    if link.json:
        print_json(letter)
        return
    print_facts(
        [
            ("dead letter", letter.id),
            ("state", letter.state),
            ("of", letter.key),
            ("at", local_time(letter.at)),
            ("not taken in by", letter.reader),
            ("because", letter.reason),
            ("meanwhile", _meanwhile(letter)),
            ("retry", _on_retry(letter)),
            ("drop", _on_drop(letter)),
        ]
    )
    click.echo("\nThe message:")
    click.echo(escape(letter.value))


@deadletter.command()
@_letter_id
@linked
@asynchronous
async def retry(letter_id: str, link: Link) -> None:
    """Have a service take a message again that it rejected.

    Useful once what kept it from taking the message is mended: another release runs, or what it
    depends on answers again. A decider tries all that it left alone by itself when it starts.
    """
    async with link.client() as client:
        asked = await client.retry_dead_letter(letter_id)
    if link.json:
        print_json(asked)
        return
    told = printable(asked.id)
    click.echo(f"{told} is tried again; `rung deadletter show {told}` says what came of it.")


@deadletter.command()
@_letter_id
@click.option("--yes", is_flag=True, help="Do not ask.")
@linked
@asynchronous
async def drop(letter_id: str, link: Link, *, yes: bool) -> None:
    """Have a service pass over a message that it rejected, for ever.

    It stays in the ledger, but nothing is decided of it: not now, not by a later release, and not
    by an audit, which passes over it as well. There is no way back. For a message that is of no
    use to anybody; where a later release could take it, wait for that one.
    """
    async with link.client() as client:
        if not yes:
            letter = await client.dead_letter(letter_id)
            about = f"{printable(letter.id)} (of {printable(letter.key)}, because of"
            click.echo(f"{about} {printable(letter.reason)})", err=True)
            effect = _on_drop(letter)
            if effect is not None:
                click.echo(f"If it is dropped, {printable(effect)}.", err=True)
            if not click.confirm("Drop it for ever?", err=True):
                raise click.ClickException("nothing was dropped")
        asked = await client.drop_dead_letter(letter_id)
    if link.json:
        print_json(asked)
    else:
        click.echo(f"{printable(asked.id)} is dropped: the message is passed over for ever.")


def _meanwhile(letter: "DeadLetter") -> str | None:
    """Return what an unsettled letter keeps from going on."""
    if letter.state not in {"open", "retrying"}:
        return None
    match letter.reader_kind:
        case "processor":
            return f"{letter.key} is quarantined: {letter.reader} decides nothing more about it"
        case "relay" | "sink":
            return f"{letter.reader} went on with the next message; nothing was made of this one"
        case "projection":
            return f"{letter.reader} shows everything but what the message says"
        case None:
            return "nothing waits: the message was passed over, and its reader takes no requests"


def _on_retry(letter: "DeadLetter") -> str | None:
    if letter.state not in {"open", "retrying"}:
        return None
    match letter.reader_kind:
        case "processor":
            return (
                f"{letter.reader} folds {letter.key} again, from before the message on, with the"
                " code that it runs now, and goes on with it if it can"
            )
        case "relay" | "sink":
            return f"{letter.reader} takes the message now, behind those that came since"
        case "projection":
            return (
                f"{letter.reader} folds all of {letter.topic} again beside what it shows, with the"
                " code that it runs now, and shows that then"
            )
        case None:
            return None


def _on_drop(letter: "DeadLetter") -> str | None:
    if letter.state not in {"open", "retrying"}:
        return None
    match letter.reader_kind:
        case "processor":
            return (
                f"{letter.reader} passes over the message for ever and goes on with {letter.key};"
                " audits pass over it, too"
            )
        case "relay" | "sink":
            return "nothing is ever made of the message"
        case "projection":
            return "what the message says is never shown"
        case None:
            return None
