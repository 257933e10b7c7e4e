"""Problems of an experiment file, in words for its author."""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rung.events.errors import InvalidConfig

PROBLEMS_MAX: Final = 100
"""Problems that a refusal lists."""

_VALUE_LENGTH: Final = 60

PathPart = str | int
"""The name of a field, or the index of a list's item."""


class Problem(NamedTuple):
    """One problem."""

    path: str
    """Of the field, `searcher.max_trials`; empty for the file as a whole."""
    message: str
    """What would be right, and what was given instead."""
    value: str | None = None
    """The given value, shortened; None where there is none."""
    line: int | None = None
    """In the file, counted from 1."""


class InvalidExperimentFile(InvalidConfig):
    """An experiment file that cannot be run.

    Attributes:
        details: its problems, sorted by line.
    """

    def __init__(self, details: Sequence[Problem]) -> None:
        assert details, "refused without a reason"
        self.details = list(details[:PROBLEMS_MAX])
        if len(details) > PROBLEMS_MAX:
            self.details.append(Problem("", f"there are more problems than these {PROBLEMS_MAX}"))
        super().__init__([(problem.path, problem.message) for problem in self.details])

    def __str__(self) -> str:
        """Return one line per problem: `path (line 3): message`."""
        return "\n".join(_line(problem) for problem in self.details)


def dotted(path: Sequence[PathPart]) -> str:
    """Return a path as text: `environment.ports[2].name`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return shortened(text, 120)


def shown(value: Any) -> str:
    """Return a value for a message: JSON, shortened."""
    match value:
        case dict():
            return f"a map with {_few(list(map(str, value)))}" if value else "an empty map"
        case list() if len(value) > 8:
            return f"a list of {len(value)} items"
        case int() if not isinstance(value, bool) and abs(value) >= 10**40:
            return "a number of more than 40 digits"
        case _:
            return shortened(json.dumps(value, ensure_ascii=False, default=repr))


def shortened(text: str, length: int = _VALUE_LENGTH) -> str:
    """Return the text on one line, cut in its middle if it is long."""
    text = text.encode(errors="replace").decode()
    text = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    if len(text) <= length:
        return text
    return f"{text[: length // 2]}…{text[-length // 2 + 1 :]}"


def _few(names: list[str]) -> str:
    listed = ", ".join(shortened(name, 20) for name in names[:3])
    return f"{listed}, …" if len(names) > 3 else listed


def _line(problem: Problem) -> str:
    where = problem.path
    if problem.line is not None:
        where = f"{where} (line {problem.line})" if where else f"line {problem.line}"
    return f"{where}: {problem.message}" if where else problem.message
