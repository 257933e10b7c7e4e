"""`rung webhook`: webhooks and their deliveries."""

import functools
from typing import Any, Final

import click

from rung import api
from rung.cli.connection_options import Link, linked
from rung.cli.teams.printing import given, say, show, show_all

_WEBHOOK: Final = ("name", "workspace", "format", "to", "active", "events")
_DELIVERY: Final = (
    *("id", "requested_at", "type", "subject", "state", "attempts"),
    *("status", "next_at", "reason"),
)

_linked = functools.partial(linked, address="--server")
"""Of commands whose --url is that of the receiver."""
name_argument = click.argument("name", metavar="WEBHOOK")


def _told(command: Any) -> Any:
    """Add the options for the events and the receiver of a webhook to a command."""
    for option in reversed(
        (
            click.option(
                "--format",
                "format_",
                type=click.Choice(["cloudevents", "slack", "teams", "email"]),
                help="What the receiver gets. [cloudevents]",
            ),
            click.option("--url", "receiver", help="Address of the receiver; it is encrypted."),
            click.option("--mail-to", multiple=True, metavar="ADDRESS", help="Of --format email."),
            click.option(
                "--event", "events", multiple=True, metavar="TYPE", help="Type of an event."
            ),
            click.option(
                "--state", "states", multiple=True, help="Of ends only those in this state."
            ),
            click.option(
                "--metric",
                "metrics",
                multiple=True,
                metavar="METRIC>VALUE",
                help="Tell once of each trial whose metric passes a value: 'accuracy>0.9'.",
            ),
            click.option(
                "--log", "logs", multiple=True, metavar="PATTERN", help="Pattern (RE2) of a line."
            ),
        )
    ):
        command = option(command)
    return command


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return what was given of these options, as fields of the API."""
    fields = {"format": options.pop("format_"), "url": options.pop("receiver")}
    metrics = [_threshold(text) for text in options.pop("metrics")]
    lists = {**{name: list(value) for name, value in options.items()}, "metrics": metrics}
    fields |= {name: value for name, value in lists.items() if value}
    return {name: value for name, value in fields.items() if value is not None}


def _threshold(text: str) -> dict[str, Any]:
    for sign, limit in ((">", "above"), ("<", "below")):
        metric, found, value = text.rpartition(sign)
        if found:
            try:
                return {"metric": metric.strip(), limit: float(value)}
            except ValueError:
                break
    raise click.BadParameter(f"{text!r}: give a metric and a value, such as 'accuracy>0.9'")


@click.group()
def webhook() -> None:
    """Tell others of what happens: by HTTP, Slack, Teams or e-mail."""


@webhook.command(name="list")
@click.option("--workspace", help="Only those of this workspace.")
@linked
async def list_webhooks(workspace: str | None, link: Link) -> None:
    """List the webhooks that you may see."""
    async with link.client() as client:
        show_all(link, await client.webhooks.list(workspace=workspace), *_WEBHOOK)


@webhook.command(name="show")
@name_argument
@linked
async def show_webhook(name: str, link: Link) -> None:
    """Show a webhook; its address and its key are never shown."""
    async with link.client() as client:
        found = await client.webhooks.get(name)
    more = ("states", "metrics", "logs", "project_id", "experiment_id", "id", "version")
    show(link, found, *_WEBHOOK, *more)


@webhook.command(name="create")
@click.argument("name", metavar="NAME")
@click.option("--workspace", "-w", default="default", show_default=True, help="By name or id.")
@click.option("--project", help="Tell of this project alone.")
@click.option("--experiment", help="Tell of this experiment alone.")
@_told
@_linked
async def create_webhook(
    name: str,
    workspace: str,
    project: str | None,
    experiment: str | None,
    link: Link,
    **options: Any,
) -> None:
    """Create a webhook, and print the key that signs its deliveries, which is shown once.

    For example: rung webhook create ops --url https://example.org/hook --event
    rung.experiment.ended.v1 --state errored
    """
    fields = _fields(options)
    async with link.client() as client:
        made = await client.webhooks.create(
            name=name, workspace=workspace, project=project, experiment=experiment, **fields
        )
    _say(link, made, f"Webhook {made.name} is created, and leads to {made.to}.")


@webhook.command(name="edit")
@name_argument
@click.option("--name", "new_name", help="Another name.")
@click.option("--on/--off", "active", default=None, help="Switch it on or off.")
@_told
@_linked
async def edit_webhook(
    name: str, link: Link, *, new_name: str | None, active: bool | None, **options: Any
) -> None:
    """Change a webhook; events, states, metrics and patterns replace those of before."""
    fields = _fields(options)
    given(active=active, name=new_name, fields=fields or None)
    if new_name is not None:
        fields["name"] = new_name
    async with link.client() as client:
        changed: api.Webhook
        if fields:
            changed = await client.webhooks.change(name, **fields)
            name = changed.id
        if active is not None:
            switch = client.webhooks.activate if active else client.webhooks.deactivate
            changed = (await switch(name)) if not fields else _with(changed, await switch(name))
    _say(link, changed, f"Webhook {changed.name} is changed.")


def _with(changed: api.Webhook, switched: api.Webhook) -> api.Webhook:
    """Return a webhook as it was switched, with the key that its change has shown."""
    switched.key = changed.key
    return switched


@webhook.command(name="remove")
@name_argument
@linked
async def remove_webhook(name: str, link: Link) -> None:
    """Remove a webhook; what waits for it is not delivered."""
    async with link.client() as client:
        gone = await client.webhooks.delete(name)
    say(link, gone, f"Webhook {name} is removed.")


@webhook.command(name="rotate")
@name_argument
@linked
async def rotate_webhook(name: str, link: Link) -> None:
    """Draw another key that signs deliveries, and print it; the former one ends at once."""
    async with link.client() as client:
        changed = await client.webhooks.rotate(name)
    _say(link, changed, f"Webhook {changed.name} signs with another key.")


@webhook.command(name="test")
@name_argument
@linked
async def test_webhook(name: str, link: Link) -> None:
    """Deliver a test event; `rung webhook deliveries` shows how that went."""
    async with link.client() as client:
        asked = await client.webhooks.test(name)
    say(link, asked, f"A test is on its way, as {asked.id}: rung webhook deliveries {name}")


@webhook.command(name="deliveries")
@name_argument
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True)
@linked
async def list_deliveries(name: str, limit: int, link: Link) -> None:
    """List what a webhook was told and how that went, the newest first."""
    async with link.client() as client:
        show_all(link, await client.webhooks.deliveries(name, limit=limit), *_DELIVERY)


@webhook.command(name="redeliver")
@name_argument
@click.argument("delivery", metavar="DELIVERY")
@linked
async def redeliver(name: str, delivery: str, link: Link) -> None:
    """Deliver something again, or now where it waits for its next attempt."""
    async with link.client() as client:
        asked = await client.webhooks.redeliver(name, delivery)
    say(link, asked, f"Delivery {asked.id} is on its way again.")


def _say(link: Link, found: api.Webhook, text: str) -> None:
    say(link, found, text)
    if found.key and not link.json:
        click.echo(f"Signing key, shown this once: {found.key}")
