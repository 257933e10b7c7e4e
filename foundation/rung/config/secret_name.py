"""Names of secrets, and values in messages about a file that is refused."""

import re
from typing import Any, Final

_PathPart = str | int

HIDDEN: Final = "********"
"""Shown in place of a secret."""

_BELOW: Final = ("data", "secrets")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS: Final = re.compile(r"[^a-z0-9]+")
_PLAIN: Final = frozenset({"file", "path", "dir", "name", "names", "type", "length", "size", "id"})
"""Last words of names that describe a secret without holding it: `DB_PASSWORD_FILE`."""
_STRONG: Final = re.compile(r".*(password|passwd|passphrase|secrets?|credentials?)|pwd|passcode")
_LAST: Final = re.compile(r".*token|.*apikey|key")
_URL_INSIDE: Final = re.compile(
    r"((?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,20}://[^/?#@\s:]*:)[^/?#@\s]+(?=@|$)"
)
_ASSIGNED: Final = re.compile(
    r"""(?<![\w.-])["']?-{0,2}([A-Za-z_][\w.-]{0,80})["']?(\s*[=:]\s*)("[^"]*"?|'[^']*'?|[^\s,}\]]+)"""
)
"""`NAME=value`, `name: value`, `--name=value` inside a text."""
_LENGTH_MAX: Final = 400
"""Letters of a text that a message shows the beginning of."""
_KEY: Final = re.compile(r"""\s*(?:-\s+)*["']?[A-Za-z_][\w. -]{0,40}["']?\s*[:=]?""")


def for_message(value: Any, path: tuple[_PathPart, ...] = ()) -> Any:
    """Return a value as a message may show it that is not known to be where it belongs.

    Args:
        value: given in a file that is refused, so of any shape.
        path: where it was given.
    """
    if is_secret(path):
        return HIDDEN if isinstance(value, str | int | float | list) else value
    match value:
        case str():
            return text_for_message(value)
        case list():
            return [for_message(item, (*path, index)) for index, item in enumerate(value)]
        case dict():
            return {name: for_message(item, (*path, str(name))) for name, item in value.items()}
        case _:
            return value


def is_secret(path: tuple[_PathPart, ...]) -> bool:
    """Return whether a path is that of a secret by its names, or below one."""
    return path[:2] == _BELOW or any(looks_secret(str(part)) for part in path)


def text_for_message(text: str) -> str:
    """Return a text without the values that it assigns to what looks like a secret."""

    def replaced(found: re.Match[str]) -> str:
        if not looks_secret(found[1]):
            return found[0]
        return found[0][: found.start(3) - found.start(0)] + HIDDEN

    if len(text) > _LENGTH_MAX:
        text = f"{text[:_LENGTH_MAX]}…"
    return _ASSIGNED.sub(replaced, _URL_INSIDE.sub(rf"\1{HIDDEN}", text))


def looks_secret(name: str) -> bool:
    """Return whether a name is that of a secret: `AWS_SECRET_ACCESS_KEY`, `apiKey`."""
    words = [word for word in _WORDS.split(_CAMEL.sub("_", name).lower()) if word]
    if not words or words[-1] in _PLAIN:
        return False
    if any(_STRONG.fullmatch(word) for word in words):
        return True
    if _LAST.fullmatch(words[-1]):
        return True
    return words == ["auth"] or words[-2:] == ["connection", "string"]


def line_for_message(text: str) -> str:
    """Return a line of a file that cannot be parsed, up to the value in it."""
    text = text[:_LENGTH_MAX]
    name = _KEY.match(text)
    if name is None:
        return "…"
    return text if name[0] == text else f"{name[0]} …"
