"""Runs a replica of webhooks: `python -m rung.webhooks --ledger FOLDER|kafka://… …`."""

from typing import Any

import click

from rung.runtime.bootstrap import Place, checked, launch_components, placed
from rung.runtime.secrets_key import secrets_key_option
from rung.secrets.master_key import MasterKey
from rung.subscription.address import rule_of
from rung.webhooks.service import NAME, components
from rung.webhooks.settings import Settings, mail_of_url


@click.command(context_settings={"auto_envvar_prefix": "RUNG_WEBHOOKS", "show_default": True})
@placed(objects=True)
@secrets_key_option
@click.option(
    "--allow-network",
    multiple=True,
    metavar="CIDR",
    help="Deliver to this network too, although it is not public; can be repeated.",
)
@click.option("--allow-http/--no-allow-http", default=False, help="Deliver without encryption.")
@click.option("--attempt-seconds", default=15.0, help="Most seconds of one attempt.")
@click.option("--retry-max", default=3600.0, help="Most seconds between two attempts.")
@click.option("--smtp", envvar="RUNG_SMTP", help="smtps://USER:PASSWORD@HOST for e-mail.")
@click.option("--mail-from", envvar="RUNG_MAIL_FROM", default="", help="Sender of e-mail.")
def main(
    place: Place,
    allow_network: tuple[str, ...],
    smtp: str | None,
    secrets_key: MasterKey | None,
    **options: Any,
) -> None:
    """Tell subscribers of what happens, by webhooks, messages and e-mail.

    RUNG_SECRETS_KEY opens the addresses of receivers; without it nothing is delivered.
    """
    settings = checked(
        lambda: Settings(
            rule=rule_of(allow_network, allow_http=options["allow_http"]),
            attempt_s=options["attempt_seconds"],
            retry_max_s=options["retry_max"],
            mail=mail_of_url(smtp, options["mail_from"]) if smtp else None,
        )
    )
    launch_components(place, lambda store: components(store, settings, secrets_key), service=NAME)


if __name__ == "__main__":
    main()
