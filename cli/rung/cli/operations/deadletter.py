"""`rung deadletter list`, `show`, `retry` and `drop`: messages that a component rejected."""

from typing import Any, Final, NamedTuple

import click

from rung.cli.connection_options import Link, linked
from rung.cli.output import local_time, print_facts, print_json, print_table, printable
from rung.cli.terminal import escape
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
    """List, retry and drop messages that a component rejected."""


@deadletter.command("list")
@click.option("--all", "everything", is_flag=True, help="Those that are not open, too.")
@click.option("--limit", default=100, type=click.IntRange(1, _LIMIT_MAX), show_default=True)
@linked
async def list_(link: Link, limit: int, *, everything: bool) -> None:
    """List open dead letters, the newest first.

    ID is READER/TOPIC/PARTITION/POSITION: the component that rejected the message, and the
    message's position in the ledger. If several reject one message, each writes a dead letter.
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
async def show(letter_id: str, link: Link) -> None:
    """Show a dead letter: the message, why it was rejected, and what can be done."""
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
            ("rejected by", letter.reader),
            ("because", letter.reason),
            *_effects(letter)._asdict().items(),
        ]
    )
    click.echo("\nThe message:")
    click.echo(escape(letter.value))


@deadletter.command()
@_letter_id
@linked
async def retry(letter_id: str, link: Link) -> None:
    """Have a component process a message again that it rejected.

    Useful once the cause is repaired: another release runs, or what the component depends on
    answers again. A processor decides the rejected fact and those that waited after it.
    """
    async with link.client() as client:
        asked = await client.retry_dead_letter(letter_id)
    if link.json:
        print_json(asked)
        return
    name = printable(asked.id)
    click.echo(f"{name} is tried again; `rung deadletter show {name}` shows the result.")


@deadletter.command()
@_letter_id
@click.option("--yes", is_flag=True, help="Do not ask.")
@linked
async def drop(letter_id: str, link: Link, *, yes: bool) -> None:
    """Have a component skip a message that it rejected, for ever.

    It stays in the ledger, but no release decides anything of it, and audits skip it. This cannot
    be undone. If a later release could process the message, wait for that one.
    """
    async with link.client() as client:
        if not yes:
            letter = await client.dead_letter(letter_id)
            about = f"{printable(letter.id)} (of {printable(letter.key)}, because of"
            click.echo(f"{about} {printable(letter.reason)})", err=True)
            effect = _effects(letter).drop
            if effect is not None:
                click.echo(f"If it is dropped, {printable(effect)}.", err=True)
            if not click.confirm("Drop it for ever?", err=True):
                raise click.ClickException("nothing was dropped")
        asked = await client.drop_dead_letter(letter_id)
    if link.json:
        print_json(asked)
    else:
        click.echo(f"{printable(asked.id)} is dropped: the message is skipped for ever.")


class _Effects(NamedTuple):
    """What an open dead letter prevents, and what retrying or dropping it does; None: nothing."""

    meanwhile: str | None = None
    retry: str | None = None
    drop: str | None = None


def _effects(letter: DeadLetter) -> _Effects:
    if letter.state not in {"open", "retrying"}:
        return _Effects()
    reader, key = letter.reader, letter.key
    match letter.reader_kind:
        case "processor":
            return _Effects(
                f"{key} stands still: {reader} decides nothing more about it",
                f"{reader} decides the message with its present code, and then all of {key} that"
                " waited after it",
                f"{reader} skips the message for ever and goes on with {key}; audits skip it, too",
            )
        case "relay" | "sink":
            return _Effects(
                f"{reader} went on with the next message; nothing was made of this one",
                f"{reader} processes the message now, behind those that came since",
                "nothing is ever made of the message",
            )
        case "projection":
            return _Effects(
                f"{reader} shows everything except the contents of this message",
                f"nothing: {reader} folds everything again by itself, once it is started in"
                " another release",
                "the letter is listed as open no more; another release may show the message",
            )
        case None:
            return _Effects("the message was skipped, and its reader takes no requests")
