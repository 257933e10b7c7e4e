"""Names of objects: relative, `/`-separated, never leaving the store's root."""

from typing import Final

from rung.events.errors import ObjectError

MAX_LENGTH: Final = 1024
"""Bytes of a name in UTF-8; the limit of S3."""
INCOMING: Final = ".incoming"
"""The folder of incomplete files; no object may lie in it."""


def check_name(name: str) -> str:
    """Return the name if it is valid.

    Raises:
        ObjectError: it is empty, absolute, too long, or would leave the store.
    """
    if not name:
        raise ObjectError("an object's name is empty")
    _check_text(name)
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts) or parts[0] == INCOMING:
        raise ObjectError(
            f"object name {name!r}: names are relative, such as `code/abc.tar.gz`, "
            "without empty parts, `.` or `..`"
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return the prefix if it is valid; the empty one matches all objects.

    Raises:
        ObjectError: no name can begin with it.
    """
    _check_text(prefix)
    *parents, _last = prefix.split("/")
    if any(part in {"", ".", ".."} for part in parents) or parents[:1] == [INCOMING]:
        raise ObjectError(f"object prefix {prefix!r}: a prefix is relative, without `.` or `..`")
    return prefix


def _check_text(name: str) -> None:
    if "\\" in name or any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise ObjectError(f"object name {name!r}: backslashes and control characters are refused")
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise ObjectError(f"object name {name!r}: is not valid Unicode") from error
    if length > MAX_LENGTH:
        raise ObjectError(f"object name {name[:60]!r}…: longer than {MAX_LENGTH} bytes")
