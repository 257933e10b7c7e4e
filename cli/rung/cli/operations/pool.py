"""`rung pool configure`: the scheduling policy of a pool."""

from typing import Any

import click
import msgspec

from rung.cli.connection_options import Link, linked
from rung.cli.output import print_json, printable


@click.group()
def pool() -> None:
    """Choose by which policy a pool's slots are given."""


@pool.command()
@click.argument("name", metavar="POOL")
@click.option("--policy", required=True, help="Its name, such as `priority`, the default.")
@click.option(
    "--option",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the policy; may be given several times. VALUE is JSON, or else text.",
)
@linked
async def configure(name: str, policy: str, given: tuple[str, ...], link: Link) -> None:
    """Choose by which policy a pool's slots are given, from now on.

    Running trials go on, unless the new policy preempts them. The choice is on record, so that
    `rung audit` decides each moment by the policy of that moment.
    """
    options = dict(map(_option, given))
    async with link.client() as client:
        configured = await client.configure_pool(name, policy=policy, options=options)
    if link.json:
        print_json(configured)
        return
    with_options = "".join(f", {key} {value}" for key, value in configured.options.items())
    text = f"Pool {configured.pool} is configured: policy {configured.policy}{with_options}."
    click.echo(printable(text))
    for warning in configured.warnings:
        click.echo(f"Warning: {printable(warning)}", err=True)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--option {text}: give NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
