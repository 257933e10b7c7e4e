"""Secrets of a run: decrypted by the agent at its start, in memory alone.

The configuration in the object store names them (`internal`). What was taken out of the experiment
file is put back into the variables and into what the script reads as its configuration; secrets of
the workspace become variables, or files that the process writes into a folder in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rung.agent.logs.masking import Masked
from rung.events.errors import SecretError
from rung.secrets.master_key import ENVIRONMENT, MasterKey
from rung.secrets.secret_store import SecretStore, workspace_object
from rung.secrets.values import SecretValue, decode, given, restored, texts_of
from rung.storage import ObjectStore

HIDDEN_VARIABLES: Final = frozenset({"VAULT_TOKEN", "VAULT_TOKEN_FILE"})
"""Variables with the way to the key of secrets, which no run must inherit."""
_MASKED_MIN: Final = 6
"""Letters of a secret that is masked in logs; a shorter one may be any word."""


class RunSecrets(NamedTuple):
    """What a run gets."""

    values: Sequence[SecretValue] = ()
    """By their paths in the configuration."""
    variables: Mapping[str, str] = {}
    """Environment variables with secrets of the workspace."""
    files: Mapping[str, str] = {}
    """Files with secrets of the workspace, by name."""

    def opened(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with the secrets in it."""
        return restored(config, self.values)

    def masked(self) -> Masked:
        """Return what replaces the secrets in texts."""
        texts = [*texts_of(self.values), *self.variables.values(), *self.files.values()]
        lines = [line.strip() for text in texts for line in text.splitlines()]
        return Masked(sorted({line for line in lines if len(line) >= _MASKED_MIN}, key=len))


def open_secrets(
    config: Mapping[str, Any], store: ObjectStore, key: MasterKey | None
) -> RunSecrets:
    """Return the secrets that a configuration names.

    Raises:
        SecretError: one is missing or altered, or this agent has no key for it.
        ObjectUnavailable: the object store does not answer.
    """
    internal = config.get("internal") or {}
    if not internal:
        return RunSecrets()
    if key is None:
        raise SecretError(
            f"the experiment has secrets, and this agent has no key for them: set {ENVIRONMENT}"
            " for agents as for gateways"
        )
    secrets = SecretStore(store, key)
    values: list[SecretValue] = []
    if (reference := internal.get("secrets")) is not None:
        data = secrets.get(reference["object"], reference["digest"])
        try:
            values = given(decode(data).config)
        except msgspec.DecodeError:
            raise SecretError(f"{reference['object']} was written by a newer release") from None
    section = config.get("secrets") or {}
    workspace = internal.get("workspace", "")

    def named(names: Mapping[str, str]) -> dict[str, str]:
        return {
            place: secrets.get(workspace_object(workspace, name)).decode()
            for place, name in names.items()
        }

    return RunSecrets(
        values, named(section.get("environment") or {}), named(section.get("files") or {})
    )
