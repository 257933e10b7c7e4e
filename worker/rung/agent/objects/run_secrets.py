"""Secrets of a run: decrypted by the agent at its start, in memory alone.

The configuration in the object store names them (`internal`). What was taken out of the experiment
file is put back into the variables and into what the script reads as its configuration; secrets of
the workspace become variables, or files that the process writes into a folder in memory.
"""

import glob
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
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
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - names in it have a part that is drawn


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


def files_folder(allocation_id: str, drawn: str, rank: int) -> Path:
    """Return the folder in memory in which a process of a run makes its files.

    Args:
        allocation_id: of the run, by which a later session of the agent finds the folder.
        drawn: what nobody else can know, so that nobody takes the name before.
        rank: of the process.
    """
    return _MEMORY / f"{_prefix(allocation_id)}{drawn}-{rank}"


def remove_files_left(allocation_ids: Iterable[str]) -> None:
    """Delete the files of runs that an earlier session of the agent left, and that are gone.

    Blocks; call it from a thread.
    """
    for allocation_id in allocation_ids:
        for folder in _MEMORY.glob(f"{glob.escape(_prefix(allocation_id))}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _prefix(allocation_id: str) -> str:
    return f"rung-secrets-{allocation_id}-"


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
