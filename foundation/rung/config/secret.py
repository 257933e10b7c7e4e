"""Secrets in an experiment file: hidden where the experiment is shown, with a warning.

A value is a secret

* below `data.secrets`, whatever it is;
* under a name that looks like one, in any section: `HF_TOKEN=…` among environment variables,
  `password`, `auth` and `identitytoken` of `registry_auth`, `secret_key` and `connection_string`
  of a storage section, a map of a pod's `{name: DB_PASSWORD, value: …}`;
* if it is an URL with a password in it.

As in Determined, secrets are hidden in what is shown alone. The ledger and its exports hold the
file as it was submitted, and so the secrets; a warning says so. Hyperparameters named like secrets
are not hidden, because they are shown with every trial; they get a warning.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from rung.config.problem import InvalidExperimentFile, PathPart, dotted
from rung.config.yaml import document

HIDDEN: Final = "********"
"""Shown in place of a secret."""

_PATH: Final = ("data", "secrets")
_SHOWN: Final = "hyperparameters"
_NOTE: Final = "# The file as JSON, without its comments: its secrets are hidden."

_NAMED_MAX: Final = 8
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS: Final = re.compile(r"[^a-z0-9]+")
_PLAIN: Final = frozenset({"file", "path", "dir", "name", "names", "type", "length", "size", "id"})
"""Last words of names that describe a secret without holding it: `DB_PASSWORD_FILE`."""
_STRONG: Final = re.compile(r".*(password|passwd|passphrase|secrets?|credentials?)|pwd|passcode")
_LAST: Final = re.compile(r".*token|.*apikey|key")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s:]*:)[^/?#@\s]+(@.*)", re.DOTALL)

_Path = tuple[PathPart, ...]


class _Secret(NamedTuple):
    """The place of a secret."""

    path: _Path
    """Of the value; of an environment variable, of the text that assigns it."""
    named: _Path
    """Its path in a message."""
    shown: str = HIDDEN
    """Shown in its place."""


def hide(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its secrets hidden; the same object if it has none."""
    hidden: Any = config
    for secret in _secrets(config, ()):
        if secret.path[0] != _SHOWN:
            hidden = _replaced(hidden, secret.path, secret.shown)
    found: dict[str, Any] = hidden
    return found


def text_without(source: str) -> str:
    """Return a file as JSON with its secrets hidden.

    They cannot be cut out of the text safely: YAML writes one value in many ways, and a comment
    may repeat it.
    """
    try:
        tree = document.read(source).tree
    except InvalidExperimentFile:
        return f"{_NOTE}\n# It cannot be read any more.\n"
    return f"{_NOTE}\n{json.dumps(hide(tree), indent=2, ensure_ascii=False)}\n"


def hidden_in(tree: dict[str, Any]) -> list[_Path]:
    """Return the paths of secrets in place of which a file has `HIDDEN`."""
    return [
        secret.path
        for secret in _secrets(tree, ())
        if secret.path[0] != _SHOWN and _at(tree, secret.path) == secret.shown
    ]


def warnings_of(tree: dict[str, Any]) -> list[str]:
    """Return the warnings about the secrets in a file."""
    named = list(dict.fromkeys(secret.named for secret in _secrets(tree, ())))
    hidden = [dotted(path) for path in named if path[0] != _SHOWN]
    shown = [dotted(path) for path in named if path[0] == _SHOWN]
    found = []
    if hidden:
        found.append(
            f"{_listed(hidden)} hidden where the experiment is shown, but the ledger, its exports"
            " and its event streams hold it in clear; let the script read it from its machine"
            " instead"
        )
    if shown:
        found.append(
            f"{_listed(shown)} shown with every trial and kept in clear, as hyperparameters are,"
            " but named like a secret; let the script read it from its machine instead"
        )
    return found


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


def _secrets(value: Any, path: _Path, *, inside: bool = False) -> Iterator[_Secret]:
    """Yield the secrets in the value at a path; `inside`: the path has the name of a secret."""
    if path == _PATH:
        yield from (_Secret(leaf, _PATH) for leaf, it in _leaves(value, path) if it is not None)
        return
    match value:
        case dict():
            named = value.get("name")
            for name, item in value.items():
                # The `type` of a hyperparameter is its kind.
                if name == "type" and inside and path[0] == _SHOWN:
                    continue
                whose = named if name == "value" and isinstance(named, str) else name
                yield from _secrets(item, (*path, name), inside=inside or looks_secret(whose))
        case list():
            for index, item in enumerate(value):
                yield from _secrets(item, (*path, index), inside=inside)
        case str() if value:
            yield from _text(value, path, inside=inside)
        case _:
            pass


def _text(value: str, path: _Path, *, inside: bool) -> Iterator[_Secret]:
    name, equals, assigned = value.partition("=")
    named = path
    if "environment_variables" in path and equals:
        named, inside = (*path[:-1], name), inside or looks_secret(name)
    else:
        name, equals, assigned = "", "", value
    if assigned and inside:
        yield _Secret(path, named, f"{name}{equals}{HIDDEN}")
    elif url := _URL.fullmatch(assigned):
        yield _Secret(path, named, f"{name}{equals}{url[1]}{HIDDEN}{url[2]}")


def _at(value: Any, path: _Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _leaves(value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    match value:
        case dict():
            for name, item in value.items():
                yield from _leaves(item, (*path, name))
        case list():
            for index, item in enumerate(value):
                yield from _leaves(item, (*path, index))
        case _:
            yield path, value


def _replaced(value: Any, path: Sequence[PathPart], shown: str) -> Any:
    """Return a copy of a value in which another value has replaced the secret at a path."""
    if not path:
        return shown
    part, *rest = path
    copy = value.copy()
    copy[part] = _replaced(value[part], rest, shown)
    return copy


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is"
    listed = ", ".join(names[:_NAMED_MAX])
    return (
        f"{listed} and {len(names) - _NAMED_MAX} more are"
        if names[_NAMED_MAX:]
        else f"{listed} are"
    )
