"""Parses the text of an experiment file, which may be hostile, into a tree of JSON values.

YAML events are read one by one onto a stack (no recursion, no object construction). Size, depth
and the number of nodes after expansion of aliases ("billion laughs") are bounded. Duplicate keys,
keys that are not text, foreign tags, several documents and values that JSON cannot hold are
refused with the line.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from rung.config.problem import InvalidExperimentFile, PathPart, Problem, dotted, shortened
from rung.config.secret_name import line_for_message
from rung.config.yaml.tree import Builder, Limit

try:
    from yaml.cyaml import CSafeLoader as _Loader
except ImportError:  # a PyYAML built without libyaml: the same events, more slowly
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

SIZE_MAX: Final = 1024 * 1024
"""Bytes of an experiment file."""
_PAIR: Final = re.compile(
    r"((?<!\\)(?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""An escaped character beyond the first 65,536, as JSON writes it: RFC 8259, section 7."""


class Document(NamedTuple):
    """A parsed file."""

    tree: dict[str, Any]
    lines: dict[tuple[PathPart, ...], int]
    """Path of a value → its line in the file."""
    problems: list[Problem]
    """Of single values, which are missing from the tree."""


def read(text: str | bytes) -> Document:
    """Parse a text.

    Raises:
        InvalidExperimentFile: it is too large, no YAML, or no map.
    """
    source = _decoded(text)
    builder = Builder()
    try:
        events: Iterable[yaml.Event] = yaml.parse(source, Loader=_Loader)
        for event in events:
            builder.take(event)
    except Limit as limit:
        raise InvalidExperimentFile(
            [*builder.problems, Problem(dotted(limit.path), str(limit), None, limit.line)]
        ) from None
    except yaml.YAMLError as error:
        raise InvalidExperimentFile([*builder.problems, _syntax(error, source)]) from None
    tree = builder.root
    if not isinstance(tree, dict):
        what = "empty" if tree is None else "not a map"
        raise InvalidExperimentFile(
            [
                *builder.problems,
                Problem("", f"the file is {what}; it must begin with fields such as `name: …`"),
            ]
        )
    return Document(tree, builder.lines, builder.problems)


def _decoded(text: str | bytes) -> str:
    if len(text) > SIZE_MAX:
        raise InvalidExperimentFile(
            [Problem("", f"the file has {len(text):,} bytes; at most {SIZE_MAX:,} are allowed")]
        )
    if isinstance(text, str):
        return _joined(text.removeprefix("\ufeff"))
    try:
        return _joined(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        problem = Problem(
            "",
            f"the file is not UTF-8: byte {text[error.start]:#04x} at offset {error.start};"
            " save it as UTF-8",
            None,
            line,
        )
        raise InvalidExperimentFile([problem]) from None


def _joined(source: str) -> str:
    """Return JSON with its surrogate pairs of escapes, which YAML lacks, made characters."""
    if not source.lstrip().startswith("{") or not _PAIR.search(source):
        return source
    try:
        msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return source
    return _PAIR.sub(lambda found: found[1] + json.loads(f'"{found[2]}"'), source)


def _syntax(error: yaml.YAMLError, source: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return Problem("", f"the file is not YAML: {shortened(_first_line(error), 160)}")
    lines = source.splitlines()
    text = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in text[: len(text) - len(text.lstrip())]:
        message = "indented with a tab; YAML allows only spaces"
    else:
        said = getattr(error, "problem", None) or _first_line(error)
        context = getattr(error, "context", None)
        message = f"not YAML: {said}" + (f" {context}" if context else "")
        message = f"{shortened(message, 160)}, near {shortened(line_for_message(text).strip())!r}"
    return Problem("", message, None, mark.line + 1)


def _first_line(error: yaml.YAMLError) -> str:
    return (str(error).splitlines() or ["unreadable"])[0]
