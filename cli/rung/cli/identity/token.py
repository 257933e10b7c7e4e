"""`rung token list|create|rotate|revoke`: tokens for programs."""

import click

from rung import api
from rung.cli.connection_options import Link, linked
from rung.cli.output import local_time, print_json, print_table, printable


@click.group()
def token() -> None:
    """Create, list, rotate and revoke tokens for programs."""


@token.command(name="list")
@click.option("--user", help="Of this user or service account. [you]")
@linked
async def list_(user: str | None, link: Link) -> None:
    """List tokens and sessions, without their secrets."""
    async with link.client() as client:
        found = await client.identity.tokens(user)
    if link.json:
        print_json(api.TokenList(items=found))
        return
    print_table(
        ["id", "name", "kind", "scope", "workspace", "used", "expires", ""],
        [
            (
                it.id,
                it.name,
                it.kind,
                "all" if it.scope is None else it.scope,
                it.workspace or "all",
                "never" if it.used_at is None else local_time(it.used_at),
                "never" if it.expires_at is None else local_time(it.expires_at),
                "this one" if it.current else "",
            )
            for it in found
        ],
        spare=["scope", "workspace", "used"],
    )


@token.command()
@click.argument("name")
@click.option("--user", help="For this service account. [for yourself]")
@click.option(
    "--scope",
    multiple=True,
    help="A permission that it is limited to, or `read`, or `people`; may be given several times. "
    "[all that you may]",
)
@click.option("--workspace", help="The one workspace that it is limited to. [all]")
@click.option("--expires-days", type=click.IntRange(1, 3650), default=90, show_default=True)
@click.option("--never-expires", is_flag=True, help="In place of --expires-days.")
@linked
async def create(  # noqa: PLR0913 - its options
    name: str,
    user: str | None,
    scope: tuple[str, ...],
    workspace: str | None,
    expires_days: int,
    *,
    never_expires: bool,
    link: Link,
) -> None:
    """Create a token; its secret is printed this once, alone on standard output."""
    wanted = api.TokenWanted(
        name=name,
        user=user,
        scope=list(scope) or None,
        workspace=workspace,
        expires_days=None if never_expires else expires_days,
    )
    async with link.client() as client:
        _show(await client.identity.create_token(wanted), link)


@token.command()
@click.argument("name", metavar="TOKEN")
@click.option(
    "--overlap-hours",
    type=click.FloatRange(0, 168),
    default=0.0,
    help="How long the secret before is valid, too. [0]",
)
@click.option("--expires-days", type=click.IntRange(1, 3650), help="From now on. [as before]")
@linked
async def rotate(name: str, overlap_hours: float, expires_days: int | None, link: Link) -> None:
    """Give a token, by its id or name, another secret."""
    wanted = api.TokenRotation(overlap_s=round(overlap_hours * 3600), expires_days=expires_days)
    async with link.client() as client:
        _show(await client.identity.rotate_token(name, wanted), link)


@token.command()
@click.argument("name", metavar="TOKEN")
@linked
async def revoke(name: str, link: Link) -> None:
    """Revoke a token or session, by its id or name."""
    async with link.client() as client:
        revoked = await client.identity.revoke_token(name)
    if link.json:
        print_json(revoked)
    else:
        click.echo(f"Token {revoked.id} is revoked.")


def _show(issued: api.TokenIssued, link: Link) -> None:
    if link.json:
        print_json(issued)
        return
    it = issued.token
    until = "never" if it.expires_at is None else local_time(it.expires_at)
    notes = f"Token {it.name} ({it.id}) of {it.user}; expires: {until}. Keep the secret:"
    if issued.before_until is not None:
        notes = f"The secret before is valid until {local_time(issued.before_until)}. {notes}"
    click.echo(printable(notes), err=True)
    click.echo(issued.secret)
