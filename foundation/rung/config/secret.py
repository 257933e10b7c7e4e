"""Secrets in an experiment file: found, and taken out before anything of the file is stored.

A value is a secret

* below `data.secrets`, whatever it is;
* under a name that looks like one, in any section: `HF_TOKEN=…` among environment variables,
  `password`, `auth` and `identitytoken` of `registry_auth`, `secret_key` and `connection_string`
  of a storage section, a map of a pod's `{name: DB_PASSWORD, value: …}`;
* of an environment variable that `secrets.variables` names;
* if it is an URL with a password in it;
* if it is repeated elsewhere in the file, there as well.

What was taken out is encrypted (decision 0047). Hyperparameters named like secrets stay, because
they are shown with every trial; they get a warning. An experiment of a release before this one has
its secrets on record in clear: they are hidden where it is shown.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from rung.config.problem import InvalidExperimentFile, PathPart, dotted
from rung.config.secret_name import HIDDEN, looks_secret
from rung.config.yaml import document

_PATH: Final = ("data", "secrets")
_SHOWN: Final = "hyperparameters"
_NAMES: Final = "secrets"
"""The section with the names of a workspace's secrets, which are none themselves."""
_REPEATING: Final = (
    "name", "description", "labels", "entrypoint", "environment", "data", "integrations", "slurm",
    "pbs",
)  # fmt: skip
"""Sections in which a secret is looked for that another section has."""
_REPEATED_MIN: Final = 8
"""Letters of a secret that is looked for; a shorter one may be any word."""
_NOTE: Final = "# The file as JSON, without its comments: its secrets are hidden."

_NAMED_MAX: Final = 8
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s:]*:)([^/?#@\s]+)(@.*)", re.DOTALL)
_OPTION: Final = re.compile(r"(?<!\S)--?([A-Za-z][\w.-]{0,80})(?:=|\s{1,8})([^\s-]\S*)")

_Path = tuple[PathPart, ...]


class _Secret(NamedTuple):
    """The place of a secret."""

    path: _Path
    """Of the value; of an environment variable, of the text that assigns it."""
    named: _Path
    """Its path in a message."""
    shown: str = HIDDEN
    """Shown in its place."""
    text: str = ""
    """What is to be found nowhere else."""


class Separated(NamedTuple):
    """A configuration, and what was taken out of it."""

    config: dict[str, Any]
    """The same object as before if it has no secrets."""
    values: list[tuple[_Path, Any]]
    """Path and value of each secret: of an environment variable, of the text that assigns it."""


def separate(config: dict[str, Any]) -> Separated:
    """Take the secrets out of a configuration."""
    found = [secret for secret in _secrets(config, ()) if secret.path[0] != _SHOWN]
    if not found:
        return Separated(config, [])
    left: Any = config
    for secret in found:
        left = _replaced(left, secret.path, secret.shown)
    texts = {secret.text for secret in found if len(secret.text) >= _REPEATED_MIN}
    paths = [secret.path for secret in found]
    for path, text in _repeats(left, sorted(texts, key=len, reverse=True)):
        left = _replaced(left, path, text)
        paths.append(path)
    return Separated(left, [(path, _at(config, path)) for path in dict.fromkeys(paths)])


def hide(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its secrets hidden; the same object if it has none."""
    return separate(config).config


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
    """Return the warnings about what looks like a secret and is not kept as one."""
    named = list(dict.fromkeys(secret.named for secret in _secrets(tree, ())))
    shown = [dotted(path) for path in named if path[0] == _SHOWN]
    found = []
    if shown:
        found.append(
            f"{_listed(shown)} shown with every trial and kept in clear, as hyperparameters are,"
            " but named like a secret; write it among environment.environment_variables or below"
            " data.secrets instead"
        )
    options = _options(tree.get("entrypoint"))
    if options:
        found.append(
            f"entrypoint: the values of {', '.join(options)} are kept in clear, and `ps` shows"
            " them; let the script read an environment variable instead"
        )
    return found


def _secrets(
    value: Any, path: _Path, *, inside: bool = False, marked: frozenset[str] | None = None
) -> Iterator[_Secret]:
    """Yield the secrets in the value at a path.

    Args:
        value: there.
        path: of a file.
        inside: whether the path has the name of a secret.
        marked: environment variables that the file declares to be secrets.
    """
    if marked is None:
        marked = _marked(value)
    match value:
        case _ if path == _PATH:
            yield from _declared(value)
        case dict():
            named = value.get("name")
            for name, item in value.items() if path != (_NAMES,) else ():
                # The `type` of a hyperparameter is its kind.
                if name == "type" and inside and path[0] == _SHOWN:
                    continue
                whose = named if name == "value" and isinstance(named, str) else name
                below = inside or looks_secret(whose)
                yield from _secrets(item, (*path, name), inside=below, marked=marked)
        case list():
            for index, item in enumerate(value):
                yield from _secrets(item, (*path, index), inside=inside, marked=marked)
        case str() if value:
            yield from _text(value, path, inside=inside, marked=marked)
        case _:
            pass


def _declared(value: Any) -> Iterator[_Secret]:
    """Yield what is below `data.secrets`."""
    for leaf, it in _leaves(value, _PATH):
        if it is not None:
            yield _Secret(leaf, _PATH, text=it if isinstance(it, str) else "")


def _text(value: str, path: _Path, *, inside: bool, marked: frozenset[str]) -> Iterator[_Secret]:
    name, equals, assigned = value.partition("=")
    named = path
    if "environment_variables" in path and equals:
        named, inside = (*path[:-1], name), inside or looks_secret(name) or name in marked
    else:
        name, equals, assigned = "", "", value
    if assigned and inside:
        yield _Secret(path, named, f"{name}{equals}{HIDDEN}", assigned)
    elif url := _URL.fullmatch(assigned):
        yield _Secret(path, named, f"{name}{equals}{url[1]}{HIDDEN}{url[3]}", url[2])


def _marked(tree: Any) -> frozenset[str]:
    """Return the environment variables that a file declares to be secrets."""
    section = tree.get(_NAMES) if isinstance(tree, dict) else None
    names = section.get("variables") if isinstance(section, dict) else None
    return frozenset(map(str, names)) if isinstance(names, list) else frozenset()


def _repeats(config: dict[str, Any], texts: Sequence[str]) -> Iterator[tuple[_Path, str]]:
    """Yield texts in which a secret is repeated: their paths, and the texts without it."""
    if not texts:
        return
    pattern = re.compile("|".join(map(re.escape, texts)))
    for section in _REPEATING:
        for path, value in _leaves(config.get(section), (section,)):
            if isinstance(value, str) and pattern.search(value):
                yield path, pattern.sub(HIDDEN, value)


def _options(entrypoint: Any) -> list[str]:
    """Return the options of a command that look like secrets with a value, and no reference."""
    words = entrypoint if isinstance(entrypoint, list) else [entrypoint]
    text = " ".join(word for word in words if isinstance(word, str))
    return [
        f"--{name}"
        for name, value in dict(_OPTION.findall(text)).items()
        if looks_secret(name) and not value.startswith(("$", '"$', "/", "./", HIDDEN))
    ]


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
