"""The filter language of lists of experiments, and the SQL that it stands for.

    state:errored owner:anna older:30d -label:keep metric.error<0.1 "learning rate"

A filter is a list of terms, all of which must hold; a `-` in front negates one.

    term   = ["-"] (word | "quoted words" | field ":" value {"," value} | field operator value)
    value  = text without spaces, commas and quotes | "quoted text"
    operator = "=" | "!=" | "<" | "<=" | ">" | ">="

A word is searched for in name, id, labels, description, notes and hyperparameters. With `:` any
of the values may be the field's; a `*` stands for any text. Operators compare numbers and times.
A number may have a decimal point, an exponent, and of sizes a unit (`10GiB`); a time is a date or
a date and time in UTC (`2026-11-23`, `2026-11-23T12:00`), or so long ago (`30m`, `12h`, `7d`,
`2w`).

A hyperparameter is compared with what the experiment file allows: its value, one of its values,
or its range. A metric is that of the experiment's best validation. Archived experiments are left
out unless the filter has the field `archived`.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, get_args

from rung import api

LENGTH_MAX: Final = 2_000
TERMS_MAX: Final = 50


class InvalidFilter(ValueError):
    """A filter that cannot be read; the message names the term and what would be right."""


class Condition(NamedTuple):
    """A condition on rows of the table of experiments, and the values of its parameters."""

    sql: str
    values: tuple[Any, ...]
    by_row: str = ""
    """The same for a query that looks at few rows, one by one; empty: as `sql`."""


IdsOf = Callable[[str, str], Sequence[str]]
"""Returns the ids of what a value of a field names, in which `*` stands for any text.

Of `owner` those of users, of `project` those of projects, of `workspace` those of its projects."""


def as_written(field: str, value: str) -> Sequence[str]:  # noqa: ARG001 - as `IdsOf`
    """Return a value as the id that it is."""
    return (value,)


class _Asked(NamedTuple):
    """A term, in its parts."""

    text: str
    """As it was written."""
    field: str
    operator: str
    values: list[str]
    now: datetime
    me: str
    ids_of: IdsOf


_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_VALUE: Final = rf'(?:{_QUOTED}|[^\s",]+)'
_TERM: Final = re.compile(
    rf"(?P<minus>-?)(?:(?P<field>[A-Za-z_][^\s\":=!<>,]*)(?P<operator>:|!=|<=|>=|=|<|>)"
    rf"(?P<values>{_VALUE}(?:,{_VALUE})*)?|(?P<word>{_VALUE}))(?=\s|$)"
)
_ITEM: Final = re.compile(_VALUE)
_SPACE: Final = re.compile(r"\s*")
_AGO: Final = re.compile(r"(\d{1,6})([mhdw])")
_AGO_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_NUMBER: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([A-Za-z]*)")
_SIZES: Final = {"": 1, "B": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("KMGT", 1)
    for unit, base in (("iB", 1024), ("B", 1000))
}
_ORDERS: Final = ("<", "<=", ">", ">=")
_COMPARISONS: Final = ("=", "!=", *_ORDERS)
_OPPOSITE: Final = {"<": "low", "<=": "low", ">": "high", ">=": "high"}


def conditions_of(
    text: str, *, now: datetime, me: str = "", ids_of: IdsOf = as_written
) -> list[Condition]:
    """Return the conditions that a filter stands for.

    Args:
        text: the filter.
        now: the time, for times that are so long ago.
        me: id of the user who asks, for `owner:me`.
        ids_of: returns the ids of the users and projects that a value names.

    Raises:
        InvalidFilter: it cannot be read.
    """
    if len(text) > LENGTH_MAX:
        raise InvalidFilter(f"it has {len(text):,} characters; at most {LENGTH_MAX:,} are read")
    if "\0" in text:  # where SQLite takes a text to end
        raise InvalidFilter("it has a NUL character")
    found: list[Condition] = []
    words: list[str] = []
    is_archived = False
    start = _end_of(_SPACE.match(text))
    while start < len(text):
        term = _TERM.match(text, start)
        if term is None:
            raise InvalidFilter(_unreadable(text[start:]))
        word = term["word"]
        if word is not None and not term["minus"]:
            words.append(_unquoted(word))
        else:
            found.append(_condition(term, now, me, ids_of))
            is_archived = is_archived or term["field"] == _ARCHIVED
        if len(found) + len(words) > TERMS_MAX:
            raise InvalidFilter(f"it has more than {TERMS_MAX} terms")
        start = _end_of(_SPACE.match(text, term.end()))
    if not is_archived:
        found.append(Condition("NOT archived", ()))
    # The last word may be the beginning of one: who types sees what there is.
    return [*found, *([full_text(" ".join(words), begins=True)] if words else [])]


def equal(field: str, value: str, ids_of: IdsOf = as_written) -> Condition:
    """Return the condition that a field of text has a value, in which `*` stands for any text."""
    if field not in _BY_ID:
        return _TEXTS[field](value)
    ids = ids_of(field, value)
    return _any_of([_TEXTS[field](each) for each in ids]) if ids else Condition("0", ())


def full_text(words: str, *, begins: bool = False) -> Condition:
    """Return the condition that an experiment's texts have all of these words.

    Args:
        words: separated by spaces.
        begins: whether the last one may be a beginning.
    """
    words = words.replace("\0", " ")  # where SQLite takes a query of full text to end
    found = [word.replace('"', '""') for word in words.split() if any(map(str.isalnum, word))]
    if not found:
        return Condition("0", ())
    match = " ".join(f'"{word}"' for word in found) + ("*" if begins else "")
    return Condition("number IN (SELECT rowid FROM texts WHERE texts MATCH ?)", (match,))


def _condition(term: "re.Match[str]", now: datetime, me: str, ids_of: IdsOf) -> Condition:
    if term["word"] is not None:
        found = full_text(_unquoted(term["word"]))
    else:
        values = [_unquoted(each) for each in _ITEM.findall(term["values"] or "")]
        asked = _Asked(term[0], term["field"], term["operator"], values, now, me, ids_of)
        if not values:
            raise InvalidFilter(f"{asked.text!r} has no value")
        found = _read(asked)
    return _not(found) if term["minus"] else found


def _read(asked: _Asked) -> Condition:
    for prefix, read in _NAMED.items():
        if asked.field.startswith(prefix) and len(asked.field) > len(prefix):
            return read(asked)
    if asked.field in _TEXTS:
        return _text(asked)
    if asked.field in _OTHERS:
        return _OTHERS[asked.field](asked)
    known = [*_TEXTS, *_OTHERS, *(f"{prefix}NAME" for prefix in _NAMED)]
    near = difflib.get_close_matches(asked.field[:100], known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise InvalidFilter(
        f"{asked.text[:100]!r} names no field; {hint} (text with {asked.operator!r} in it is found"
        ' in quotes: "…")'
    )


def _text(asked: _Asked) -> Condition:
    if asked.operator not in {":", "=", "!="}:
        raise InvalidFilter(
            f"{asked.text[:100]!r}: {asked.field} is text; write {asked.field}:VALUE"
        )
    if asked.field == "state":
        _check_states(asked)
    is_owner = asked.field == "owner"
    found = _any_of(
        [
            equal("owner", asked.me)
            if is_owner and value == "me"
            else equal(asked.field, value, asked.ids_of)
            for value in asked.values
        ]
    )
    return found if asked.operator != "!=" else _not(found)


def _check_states(asked: _Asked) -> None:
    """Refuse a state that there is not: negated, it would select every experiment."""
    for value in asked.values:
        if value not in _STATES and "*" not in value:
            raise InvalidFilter(
                f"{asked.text[:100]!r}: {value[:50]!r} is no state; there are {', '.join(_STATES)}"
            )


def _not(condition: Condition) -> Condition:
    """Return the condition that another does not hold, also where there is nothing to compare."""
    by_row = condition.by_row and f"NOT ifnull(({condition.by_row}), 0)"
    return Condition(f"NOT ifnull(({condition.sql}), 0)", condition.values, by_row)


def _any_of(conditions: list[Condition]) -> Condition:
    if len(conditions) == 1:
        return conditions[0]
    sql = " OR ".join(each.sql for each in conditions)
    return Condition(f"({sql})", tuple(value for each in conditions for value in each.values))


def _column(name: str) -> Callable[[str], Condition]:
    def make(value: str) -> Condition:
        is_pattern = "*" in value and "\0" not in value  # where SQLite takes a pattern to end
        if is_pattern:
            return Condition(f"{name} GLOB ?", (_pattern(value),))
        return Condition(f"{name} = ?", (value,))

    return make


def _label(value: str) -> Condition:
    chosen = _column("label")(value)
    return Condition(
        f"number IN (SELECT experiment FROM labels WHERE {chosen.sql})",  # noqa: S608 - as above
        chosen.values,
    )


def _pattern(value: str) -> str:
    return value.replace("[", "[[]").replace("?", "[?]")


def _number_of(asked: _Asked, units: Mapping[str, int] | None = None) -> float:
    (value,) = _one(asked)
    found = _NUMBER.fullmatch(value)
    if found is None or found[2] not in (units or {"": 1}):
        example = "10GiB" if units else "0.01"
        raise InvalidFilter(
            f"{asked.text[:100]!r}: {value[:50]!r} is no number; write it as in"
            f" {asked.field}>{example}"
        )
    return float(found[1]) * (units or {"": 1})[found[2]]


def _one(asked: _Asked) -> list[str]:
    if len(asked.values) > 1:
        raise InvalidFilter(f"{asked.text[:100]!r}: {asked.field} is compared with one value")
    return asked.values


def _operator(asked: _Asked) -> str:
    if asked.operator not in _COMPARISONS:
        raise InvalidFilter(
            f"{asked.text[:100]!r}: {asked.field} is compared by one of {' '.join(_COMPARISONS)}"
        )
    return asked.operator


def _compared(sql: str, units: Mapping[str, int] | None = None) -> Callable[[_Asked], Condition]:
    def make(asked: _Asked) -> Condition:
        return Condition(f"{sql} {_operator(asked)} ?", (_number_of(asked, units),))

    return make


def _moment(asked: _Asked) -> str:
    """Return the time that is meant, as times are written in the tables."""
    (value,) = _one(asked)
    try:
        return time_of(value, asked.now)
    except InvalidFilter as error:
        raise InvalidFilter(f"{asked.text[:100]!r}: {error}") from None


def time_of(value: str, now: datetime) -> str:
    """Return the time that a text means, as times are written in the tables.

    Args:
        value: a date, a date and time, or so long ago.
        now: the time.

    Raises:
        InvalidFilter: it is none of them.
    """
    ago = _AGO.fullmatch(value)
    try:
        if ago:
            moment = now - timedelta(**{_AGO_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = datetime.fromisoformat(value)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    except (ValueError, OverflowError):
        raise InvalidFilter(
            f"{value[:50]!r} is no time; write 2026-11-23, 2026-11-23T12:00 (UTC), or how long"
            " ago: 30m, 12h, 7d, 2w"
        ) from None


def _time(column: str, operator: str | None = None) -> Callable[[_Asked], Condition]:
    def make(asked: _Asked) -> Condition:
        if operator is None and asked.operator not in _ORDERS:
            raise InvalidFilter(
                f"{asked.text[:100]!r}: {asked.field} is compared by one of {' '.join(_ORDERS)}"
            )
        if operator is not None and asked.operator != ":":
            raise InvalidFilter(f"{asked.text[:100]!r}: write {asked.field}:30d")
        chosen = operator or asked.operator
        return Condition(f"({column} != '' AND {column} {chosen} ?)", (_moment(asked),))

    return make


def _archived(asked: _Asked) -> Condition:
    if asked.operator != ":" or len(asked.values) > 1 or asked.values[0] not in _CHOICES:
        raise InvalidFilter(f"{asked.text[:100]!r}: write archived:true, or archived:any for all")
    return Condition(_CHOICES[asked.values[0]], ())


def _metric(asked: _Asked) -> Condition:
    operator, value = _operator(asked), _number_of(asked)
    return Condition(
        "number IN (SELECT experiment FROM best_metrics WHERE name = ? AND"  # noqa: S608 - an operator
        f" value {operator} ?)",
        (asked.field.partition(".")[2], value),
        "EXISTS (SELECT 1 FROM best_metrics WHERE experiment = experiments.number AND name = ?"  # noqa: S608 - as above
        f" AND value {operator} ?)",
    )


def _hyperparameter(asked: _Asked) -> Condition:
    name = asked.field.partition(".")[2]
    if asked.operator == ":" or _NUMBER.fullmatch(asked.values[0]) is None:
        return _hyperparameter_text(asked, name)
    operator, value = _operator(asked), _number_of(asked)
    values: tuple[float, ...] = (value,)
    if operator in _OPPOSITE:
        allowed = f"{_OPPOSITE[operator]} {operator} ?"
    elif operator == "=":
        allowed = "? BETWEEN low AND high"
    else:
        allowed, values = "(low != ? OR high != ?)", (value, value)
    return Condition(
        f"number IN (SELECT experiment FROM hyperparameters WHERE name = ? AND {allowed})",  # noqa: S608 - named above
        (name, *values),
        "EXISTS (SELECT 1 FROM hyperparameters INDEXED BY hyperparameters_by_experiment"  # noqa: S608 - as above
        f" WHERE experiment = experiments.number AND name = ? AND {allowed})",
    )


def _hyperparameter_text(asked: _Asked, name: str) -> Condition:
    if asked.operator not in {":", "=", "!="}:
        raise InvalidFilter(
            f"{asked.text[:100]!r}: {asked.values[0][:50]!r} is no number; text is found by"
            f" {asked.field}:VALUE"
        )
    chosen = _any_of([_column("text")(value) for value in asked.values])
    found = "number IN (SELECT experiment FROM hyperparameters WHERE name = ? AND "
    condition = Condition(f"{found}{chosen.sql})", (name, *chosen.values))
    return _not(condition) if asked.operator == "!=" else condition


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def _unreadable(rest: str) -> str:
    if rest.count('"') % 2:
        return f"a quotation mark is not closed: {rest[:100]!r}"
    first = rest.split(maxsplit=1)[0]
    return f"{first[:100]!r} cannot be read; quote text that has commas or quotation marks"


def _end_of(found: "re.Match[str] | None") -> int:
    assert found is not None
    return found.end()


_STATES: Final[tuple[str, ...]] = get_args(api.ExperimentPhase)
_ARCHIVED: Final = "archived"
_CHOICES: Final = {"true": "archived", "false": "NOT archived", "any": "1"}
_KEPT: Final = (
    "(SELECT total(kept_bytes) FROM checkpoints WHERE experiment = experiments.number"
    " AND kept_bytes IS NOT NULL)"
)
_TEXTS: Final[Mapping[str, Callable[[str], Condition]]] = {
    "id": _column("id"),
    "name": _column("name"),
    "state": _column("state"),
    "owner": _column("owner"),
    "label": _label,
    "workspace": _column("project_id"),
    "project": _column("project_id"),
    "pool": _column("pool"),
    "method": _column("method"),
}
_BY_ID: Final = frozenset({"owner", "workspace", "project"})
_OTHERS: Final[Mapping[str, Callable[[_Asked], Condition]]] = {
    "submitted": _time("submitted_at"),
    "ended": _time("ended_at"),
    "older": _time("submitted_at", "<"),
    "newer": _time("submitted_at", ">="),
    "trials": _compared("trials"),
    "best": _compared("best"),
    "size": _compared(_KEPT, _SIZES),
    _ARCHIVED: _archived,
}
_NAMED: Final[Mapping[str, Callable[[_Asked], Condition]]] = {
    "metric.": _metric,
    "hp.": _hyperparameter,
}
