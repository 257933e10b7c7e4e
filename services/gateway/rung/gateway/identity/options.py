"""Options of the command line about signing in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypedDict

import click

from rung.gateway.identity.oidc.provider import ProviderSettings
from rung.gateway.identity.settings import IdentitySettings
from rung.runtime.bootstrap import checked

_OPTIONS: Final = (
    click.option(
        "--public-url",
        help="Address under which browsers reach this server; https:// makes cookies `Secure`.",
    ),
    click.option(
        "--passwords/--no-passwords",
        default=True,
        help="Whether local accounts may sign in with passwords.",
    ),
    click.option(
        "--session-hours",
        type=float,
        default=IdentitySettings().session_hours,
        help="How long a session lasts.",
    ),
    click.option("--oidc-issuer", help="Address of the identity provider (OpenID Connect)."),
    click.option("--oidc-client-id", help="Client of the page there."),
    click.option(
        "--oidc-client-secret-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with the secret of that client. [default: a public client]",
    ),
    click.option(
        "--oidc-cli-client-id",
        help="Public client of `rung login` there. [default: that of the page]",
    ),
    click.option("--oidc-name", default="single sign-on", help="Its name on the page's button."),
    click.option("--oidc-groups-claim", default="groups", help="Claim with a user's groups."),
    click.option(
        "--oidc-name-claim", default="preferred_username", help="Claim with a user's name."
    ),
    click.option(
        "--oidc-external-id-claim",
        default="sub",
        help="Claim with what SCIM calls `externalId`; `oid` for Entra ID.",
    ),
)


class IdentityOptions(TypedDict):
    """What these options are on a command line."""

    public_url: str | None
    passwords: bool
    session_hours: float
    oidc_issuer: str | None
    oidc_client_id: str | None
    oidc_client_secret_file: Path | None
    oidc_cli_client_id: str | None
    oidc_name: str
    oidc_groups_claim: str
    oidc_name_claim: str
    oidc_external_id_claim: str


def identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options about signing in."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def identity_settings(given: IdentityOptions) -> IdentitySettings:
    """Return the settings that options stand for.

    Raises:
        UsageError: they cannot be, or not together; the message says what would be right.
    """
    issuer, client_id = given["oidc_issuer"], given["oidc_client_id"]
    provider = None
    if (issuer is None) != (client_id is None):
        raise click.UsageError("give --oidc-issuer and --oidc-client-id, or neither")
    if issuer is not None:
        file = given["oidc_client_secret_file"]
        provider = checked(
            ProviderSettings,
            issuer=issuer,
            client_id=client_id,
            client_secret=None if file is None else file.read_text().strip(),
            cli_client_id=given["oidc_cli_client_id"],
            name=given["oidc_name"],
            groups_claim=given["oidc_groups_claim"],
            name_claim=given["oidc_name_claim"],
            external_id_claim=given["oidc_external_id_claim"],
        )
    return checked(
        IdentitySettings,
        public_url=given["public_url"],
        passwords=given["passwords"],
        session_hours=given["session_hours"],
        provider=provider,
    )
