"""The option --secrets-key, by which gateways, agents and commands get the key of secrets."""

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from rung.events.errors import SecretError
from rung.secrets.master_key import ENVIRONMENT, MasterKey, master_key_of

_LISTED = ("/", "./", "~/", "vault+")


def secrets_key_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option, as its argument `secrets_key`; None if it is not set."""
    return click.option(
        "--secrets-key",
        envvar=ENVIRONMENT,
        callback=_master_key,
        metavar="FILE|URL",
        help="Key of secrets: a key file by its path, or a KMS as vault+https://HOST/MOUNT/KEY; in"
        " the variable also keys themselves.",
    )(command)


def _master_key(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> MasterKey | None:
    if not value:
        return None
    source = context.get_parameter_source(parameter.name or "")
    if source is ParameterSource.COMMANDLINE and not value.startswith(_LISTED):
        raise click.UsageError(
            "--secrets-key names a file (./secrets.key) or a KMS (vault+https://…); a key itself"
            f" would be in the list of processes: put it into {ENVIRONMENT}"
        )
    try:
        return master_key_of(value)
    except SecretError as error:
        raise click.UsageError(f"--secrets-key: {error}") from error
