"""Values that were taken out of a configuration, and its restoration."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

GIVEN: Final = frozenset({"data", "description", "entrypoint", "labels", "name"})
"""Sections whose secrets a trial gets; of `environment`, its variables alone.

Logins of registries and stores have no effect in a trial: no trial gets them."""


class SecretValue(Struct, frozen=True):
    """One value that was taken out of a configuration."""

    path: tuple[str | int, ...]
    """Where it was."""
    value: Any
    """The text, number or flag that was there."""


class ExperimentSecrets(Struct, frozen=True):
    """All values that were taken out of one experiment file."""

    config: list[SecretValue] = []
    """By their paths in the configuration with defaults filled in."""
    source: list[SecretValue] = []
    """By their paths in the file, for a file that is made from it."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(ExperimentSecrets)


def encode(secrets: ExperimentSecrets) -> bytes:
    """Return the bytes that are encrypted."""
    return _encoder.encode(secrets)


def decode(data: bytes) -> ExperimentSecrets:
    """Return the values in such bytes.

    Raises:
        DecodeError: they are others.
    """
    return _decoder.decode(data)


def given(secrets: Sequence[SecretValue]) -> list[SecretValue]:
    """Return the values that a trial gets."""
    return [
        secret
        for secret in secrets
        if secret.path[0] in GIVEN or secret.path[:2] == ("environment", "environment_variables")
    ]


def restored(config: Mapping[str, Any], secrets: Sequence[SecretValue]) -> dict[str, Any]:
    """Return a copy of a configuration with the values in their places."""
    found: Any = dict(config)
    for secret in secrets:
        found = _placed(found, secret.path, secret.value)
    copy: dict[str, Any] = found
    return copy


def texts_of(secrets: Sequence[SecretValue]) -> list[str]:
    """Return the values as they may be printed: of `NAME=value`, the value alone."""
    found = []
    for secret in secrets:
        text = str(secret.value)
        if "environment_variables" in secret.path:
            text = text.partition("=")[2]
        found.append(text)
    return found


def _placed(value: Any, path: Sequence[str | int], secret: Any) -> Any:
    if not path:
        return secret
    part, *rest = path
    copy = value.copy()
    copy[part] = _placed(value[part], rest, secret)
    return copy
