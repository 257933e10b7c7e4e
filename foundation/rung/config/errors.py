"""Turns pydantic's errors into paths in the file and sentences for its author."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rung.config.problem import PROBLEMS_MAX, PathPart, Problem, dotted, shown
from rung.config.secret_name import for_message
from rung.config.sections.experiment import Experiment
from rung.config.sections.hyperparameter import KINDS, Group
from rung.config.sections.searcher import RETIRED
from rung.config.sections.section import Section
from rung.methods.table import NAMES

_FIELDS_LISTED: Final = 16

Path = tuple[PathPart, ...]
Lines = Mapping[Path, int]
_Tagged = tuple[str | None, type[BaseModel]]


def problems_of(error: ValidationError, tree: dict[str, Any], lines: Lines) -> list[Problem]:
    """Return one problem per field, in pydantic's order."""
    found: dict[str, Problem] = {}
    for detail in error.errors(include_url=False, include_context=True):
        if len(found) > PROBLEMS_MAX:
            break  # enough for a refusal, and bounds its time
        path = _path(detail["loc"], tree)
        problem = at(path, _message(detail, path), lines, value=_value(detail, path))
        found.setdefault(problem.path, problem)
    return list(found.values())


def at(path: Path, message: str, lines: Lines, value: str | None = None) -> Problem:
    """Return a problem, with the line of the nearest part of its path that is in the file."""
    known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in lines), ())
    return Problem(dotted(path), message, value, lines.get(known))


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the name that was probably meant, None if none is close."""
    close = difflib.get_close_matches(name.lower()[:80], names, n=1, cutoff=0.6)
    return close[0] if close else None


def _path(loc: tuple[PathPart, ...], tree: Any) -> Path:
    """Return the path in the file, without the names of union members that pydantic adds."""
    path: list[PathPart] = []
    current = tree
    for part in loc:
        if _holds(current, part):
            path.append(part)
            current = current[part]
        elif isinstance(current, dict | type(None)) and not _is_tag(part):
            path.append(part)
            current = None
    return tuple(path)


def _holds(container: Any, part: PathPart) -> bool:
    if isinstance(container, list):
        return isinstance(part, int) and part < len(container)
    return isinstance(container, dict) and part in container


def _is_tag(part: PathPart) -> bool:
    return isinstance(part, str) and part[:1] in {"<", "["}


def _value(detail: ErrorDetails, path: Path) -> str | None:
    return None if detail["type"] == "missing" else shown(for_message(detail["input"], path))


def _message(detail: ErrorDetails, path: Path) -> str:
    kind = detail["type"]
    given = for_message(detail["input"], path)
    if kind == "extra_forbidden":
        return _unknown(detail["loc"], str(path[-1]))
    if kind == "missing":
        return _missing(detail["loc"])
    if kind == "searcher_name":
        return _searcher_name(given)
    context = detail.get("ctx", {})
    known = _SENTENCES.get(kind)
    wanted = known(context) if known else detail["msg"]
    hint = ""
    if kind == "string_type" and isinstance(given, int | float):
        hint = f'; write it in quotes: "{given}"'.replace("True", "true").replace("False", "false")
    if kind == "literal_error" and isinstance(given, str):
        close = nearest(given, str(context.get("expected", "")).replace("'", "").split(", "))
        hint = f"; did you mean `{close}`?" if close else ""
    if kind == "hyperparameter_type":
        given = given["type"]
    elif known is None and isinstance(given, dict):
        return wanted
    return f"{wanted}, not {shown(given)}{hint}"


def _unknown(loc: tuple[PathPart, ...], name: str) -> str:
    fields = _fields(loc[:-1])
    close = nearest(name, list(fields))
    if close:
        return f"there is no field of this name; did you mean `{close}`?"
    if len(fields) > _FIELDS_LISTED:
        return "there is no field of this name; `rung schema` prints those that there are"
    return f"there is no field of this name; there are {', '.join(fields)}"


def _missing(loc: tuple[PathPart, ...]) -> str:
    field = _fields(loc[:-1]).get(str(loc[-1]))
    about = (field.description or "") if field else ""
    sentence = about.split(". ")[0].replace("\n", " ").rstrip(".")
    return f"is required: {sentence[:1].lower()}{sentence[1:]}" if sentence else "is required"


def _searcher_name(given: Any) -> str:
    methods = ", ".join(NAMES)
    if not isinstance(given, dict):
        return f"must be a map such as `name: random`, not {shown(given)}"
    name = given.get("name")
    if isinstance(name, str) and name in RETIRED:
        return f"`{name}` was retired; use `name: {RETIRED[name]}`"
    close = nearest(name, NAMES) if isinstance(name, str) else None
    asked = f"`name` is {shown(name)}; " if name is not None else "`name` is required; "
    if close:
        return f"{asked}did you mean `{close}`?"
    return f"{asked}it must be one of {methods}"


def _fields(loc: Sequence[PathPart]) -> dict[str, FieldInfo]:
    """Return the fields of the section at the location."""
    sections: list[_Tagged] = [(None, Experiment)]
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = [found for found in sections if found[0] == part]
        if tagged:
            sections = tagged
        elif part.startswith("<"):
            sections = [(part, KINDS.get(part.strip("<>"), Group))]
        elif issubclass(sections[0][1], Section):
            field = sections[0][1].model_fields.get(part)
            sections = (_sections(field.annotation) if field else []) or sections
    return sections[0][1].model_fields


def _sections(annotation: Any, tag: str | None = None) -> list[_Tagged]:
    """Return the sections in an annotation, with their tags in a union."""
    if isinstance(annotation, type) and issubclass(annotation, Section | Group):
        return [(tag, annotation)]
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        marks = [mark.tag for mark in arguments[1:] if isinstance(mark, Tag)]
        return _sections(arguments[0], marks[0] if marks else tag)
    return [found for argument in arguments for found in _sections(argument, tag)]


def _at_least(context: dict[str, Any]) -> str:
    return f"must be at least {context.get('ge')}"


_Sentence = Callable[[dict[str, Any]], str]

_SENTENCES: Final[dict[str, _Sentence]] = {
    "int_type": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "bool_type": lambda _: "must be true or false",
    "string_type": lambda _: "must be text",
    "string_too_short": lambda _: "must not be empty",
    "list_type": lambda _: "must be a list",
    "dict_type": lambda _: "must be a map",
    "model_type": lambda _: "must be a map",
    "model_attributes_type": lambda _: "must be a map",
    "too_short": lambda context: f"must have at least {context.get('min_length')} item",
    "too_long": lambda context: f"must have at most {context.get('max_length')} items",
    "greater_than_equal": _at_least,
    "greater_than": lambda context: f"must be greater than {context.get('gt'):g}",
    "less_than_equal": lambda context: f"must be at most {context.get('le'):,}",
    "literal_error": lambda context: f"must be one of {context.get('expected')}",
}
