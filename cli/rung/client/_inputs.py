"""What is submitted, in each form that a caller may have it in."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rung.client._error import ClientError

Config = str | bytes | os.PathLike[str] | Mapping[str, Any]
"""An experiment file: its path, its fields, or its text."""
Code = bytes | str | os.PathLike[str]
"""A code folder: its path, or packed."""


def read_config(config: Config) -> bytes:
    """Return an experiment file's bytes.

    A text with a line break, a colon and a space, or a brace is YAML; any other one is a path.

    Raises:
        ClientError: the file cannot be read, or a field is no JSON value.
    """
    match config:
        case bytes():
            return config
        case str() if any(mark in config for mark in ("\n", ": ", "{")):
            return config.encode()
        case str() | os.PathLike():
            return _read(Path(config).expanduser())
        case _:
            return encoded(config)


def read_code(code: Code, *, follow_links: bool = False) -> tuple[bytes, list[str]]:
    """Return a code folder as it is submitted, and warnings: what of it is left out.

    Raises:
        InvalidCode: it cannot be packed.
    """
    if isinstance(code, bytes):
        return code, []
    from rung.config.code_folder import LeftOut, listed, pack  # noqa: PLC0415 - only for code

    left_out: list[LeftOut] = []
    packed = pack(Path(code).expanduser(), follow_links=follow_links, left_out=left_out)
    return packed.data, [f"not sent: {listed(left_out)}"] if left_out else []


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ClientError(f"{file} cannot be read ({error.strerror})") from error


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Return fields of an experiment file as JSON.

    Raises:
        ClientError: a value is no JSON value.
    """
    try:
        return msgspec.json.encode(dict(fields), enc_hook=_scalar)
    except (TypeError, ValueError) as error:
        raise ClientError(f"the experiment cannot be submitted: {error}") from error


def _scalar(value: Any) -> Any:
    """Return the plain number of a NumPy scalar, or the text of a path."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(
        f"{value!r} is a {type(value).__name__}; an experiment file has numbers, texts, truth"
        " values, lists and maps"
    )
