"""Changes fields of an experiment file, by dotted paths, and writes it again."""

from collections.abc import Mapping
from typing import Any

import yaml

from rung.config.yaml import document
from rung.events.errors import RungError


class InvalidChange(RungError):
    """A field that cannot be set."""


def changed(source: str, changes: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> str:
    """Return an experiment file with some fields changed, as YAML without comments.

    Args:
        source: the file.
        changes: dotted path → value; maps on the way are made, items of lists have numbers.
        without: dotted paths of fields to leave out.

    Raises:
        InvalidExperimentFile: the file cannot be read.
        InvalidChange: there is no such field to set.
    """
    tree = document.read(source).tree
    for path in without:
        _remove(tree, path.split("."))
    for path, value in changes.items():
        _set(tree, path, value)
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes texts that an experiment file, which is YAML 1.2, reads as numbers: `1e-3`."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        style = '"' if data[:1] in set("+-.0123456789") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _remove(tree: dict[str, Any], path: list[str]) -> None:
    *way, last = path
    here: Any = tree
    for part in way:
        here = here.get(part)
        if not isinstance(here, dict):
            return
    here.pop(last, None)


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.split(".")
    here: Any = tree
    for part in way:
        here = _below(here, part, path)
    if isinstance(here, list):
        here[_index(here, last, path)] = value
    else:
        here[last] = value


def _below(here: Any, part: str, path: str) -> Any:
    if isinstance(here, list):
        found = here[_index(here, part, path)]
    else:
        found = here.setdefault(part, {})
        if found is None:
            found = here[part] = {}
    if not isinstance(found, dict | list):
        raise InvalidChange(f"{path}: {part} is {found!r}, which has no fields")
    return found


def _index(items: list[Any], part: str, path: str) -> int:
    if not (part.isascii() and part.isdigit() and int(part) < len(items)):
        raise InvalidChange(f"{path}: {part} is no item of a list of {len(items)}")
    return int(part)
