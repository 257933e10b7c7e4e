"""What lies under `data.secrets`: the script gets it, who looks at the experiment does not.

As in Determined, this is about what is shown. The ledger holds the file as it was handed in, so
who may read the ledger, or an export of it, reads the secrets too; the author is told so.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from rung.expconf import document
from rung.expconf.problem import InvalidExperimentFile, PathPart

HIDDEN: Final = "********"
"""What is shown in place of a secret."""

_PATH: Final = ("data", "secrets")
_NOTE: Final = "# The file as JSON, without its comments: what is under data.secrets is hidden."


def hide(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its secrets hidden; the very same if it has none."""
    data = config.get("data")
    if not isinstance(data, dict) or data.get("secrets") in (None, {}, []):
        return config
    return {**config, "data": {**data, "secrets": _hidden(data["secrets"])}}


def text_without(source: str) -> str:
    """Return what a file with secrets says, with these hidden.

    Nothing can be cut out of the text itself safely: YAML writes one value in many ways, and a
    comment may say it again.
    """
    try:
        tree = document.read(source).tree
    except InvalidExperimentFile:
        return f"{_NOTE}\n# It cannot be read any more.\n"
    return f"{_NOTE}\n{json.dumps(hide(tree), indent=2, ensure_ascii=False)}\n"


def hidden_in(tree: dict[str, Any]) -> list[tuple[PathPart, ...]]:
    """Return where a file says what is shown in place of a secret, and not the secret."""
    data = tree.get("data")
    return list(_found(data.get("secrets"), _PATH)) if isinstance(data, dict) else []


def _hidden(value: Any) -> Any:
    match value:
        case dict():
            return {name: _hidden(item) for name, item in value.items()}
        case list():
            return [_hidden(item) for item in value]
        case None:
            return None
        case _:
            return HIDDEN


def _found(value: Any, path: tuple[PathPart, ...]) -> Iterator[tuple[PathPart, ...]]:
    match value:
        case dict():
            for name, item in value.items():
                yield from _found(item, (*path, name))
        case list():
            for index, item in enumerate(value):
                yield from _found(item, (*path, index))
        case str() if value == HIDDEN:
            yield path
        case _:
            pass
