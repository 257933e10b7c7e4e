"""Output of the command line: JSON for scripts, tables and texts for people."""

import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final

import click
import msgspec

from rung.cli.terminal import escape, escape_json

_PIPE_WIDTH: Final = 200
_TERMINAL_WIDTH: Final = 80
"""Of a terminal that does not tell its own."""
_GAP: Final = 2
"""Spaces between two columns of a table."""
_WHOLE: Final = frozenset({"id", "experiment", "trial", "checkpoint"})
"""Columns of what is copied from the terminal, which is not broken while others can be."""
_SPACES: Final = {ord("\n"): " ", ord("\t"): " "}
_WRITTEN: Final = 200
"""Characters of a value that are shown; `--json` has all."""
_PLAIN: Final = re.compile(r"[A-Za-z_][\w./-]*(?: [\w./-]+)*", re.ASCII)
"""Text that YAML reads as itself, unless it is one of `_WORDS`."""
_WORDS: Final = frozenset(
    {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "none", "nan", "inf", "infinity"}
)
_STATE_COLORS: Final = {
    "active": "green",
    "running": "green",
    "stored": "green",
    "completed": "cyan",
    "open": "red",
    "errored": "red",
    "damaged": "red",
    "lost": "red",
    "canceled": "yellow",
    "canceling": "yellow",
    "stopping": "yellow",
    "paused": "yellow",
}


def print_json(value: Any) -> None:
    """Print a record as indented JSON."""
    encoded = msgspec.json.encode(value)
    click.echo(escape_json(msgspec.json.format(encoded, indent=2)).decode())


def print_json_line(value: Any) -> None:
    """Print a record as one line of JSON, at once."""
    click.echo(escape_json(msgspec.json.encode(value)).decode())
    sys.stdout.flush()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> list[str]:
    """Print rows under headings; the column `state` is coloured. Return the columns left out.

    Args:
        columns: the headings.
        rows: values; they are printed without markup.
        right: headings of columns to be aligned right.
        spare: headings of columns that are left out where the terminal is too narrow, the first
            of them first.
    """
    cells = [[printable(value) for value in row] for row in rows]
    natural = [
        max([_width(column), *(_width(row[place]) for row in cells)])
        for place, column in enumerate(columns)
    ]
    room = _room()
    left_out = _left_out(dict(zip(columns, natural, strict=True)), spare, room)
    kept = [place for place, column in enumerate(columns) if column not in left_out]
    widths = _fitting(
        [natural[place] for place in kept], [columns[place] in _WHOLE for place in kept], room
    )
    right_ones = [columns[place] in right for place in kept]
    state = [columns[place] == "state" for place in kept]
    headings = [(columns[place], {"bold": True}) for place in kept]
    _print_row(headings, widths, right_ones)
    for row in cells:
        texts = [row[place] for place in kept]
        styled = [
            (text, _style_of(text) if coloured else {})
            for text, coloured in zip(texts, state, strict=True)
        ]
        _print_row(styled, widths, right_ones)
    return left_out


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print names with their values, leaving out values of None."""
    rows = [(name, printable(value)) for name, value in facts if value is not None]
    natural = [max((_width(row[place]) for row in rows), default=0) for place in (0, 1)]
    widths = _fitting(natural, [True, False], _room())
    for name, text in rows:
        _print_row([(name, {"dim": True}), (text, _style_of(text))], widths, [False, False])


def _left_out(widths: Mapping[str, int], spare: Sequence[str], room: int) -> list[str]:
    """Return the columns that have no room beside the others."""
    left_out = []
    needed = sum(widths.values()) + _GAP * (len(widths) - 1)
    for column in spare:
        if needed <= room:
            break
        if column in widths:
            needed -= widths[column] + _GAP
            left_out.append(column)
    return left_out


def _fitting(natural: Sequence[int], whole: Sequence[bool], room: int) -> list[int]:
    """Return the widths of columns that fit into a line: the widest ones are narrowed.

    Args:
        natural: the widths that they would have.
        whole: for each, whether it is narrowed only once no other one can be.
        room: the width of the line.
    """
    room -= _GAP * (len(natural) - 1)
    widths = [min(width, max(room, 1)) for width in natural]
    for last in (False, True):
        places = [place for place in range(len(widths)) if last or not whole[place]]
        while places and sum(widths) > room:
            widest = max(places, key=widths.__getitem__)
            if widths[widest] == 1:
                break
            widths[widest] -= 1
    return widths


def _print_row(
    cells: Sequence[tuple[str, dict[str, Any]]], widths: Sequence[int], right: Sequence[bool]
) -> None:
    """Print a row of texts with their styles; what is too wide goes on below."""
    folded = [_folded(text, width) for (text, _), width in zip(cells, widths, strict=True)]
    colors = _has_colors()
    for lines in zip_longest(*folded, fillvalue=""):
        line = ""
        for text, (_, style), width, at_right in zip(lines, cells, widths, right, strict=True):
            room = " " * (width - _width(text))
            shown = click.style(text, **style) if style and text and colors else text
            line += (room + shown if at_right else shown + room) + " " * _GAP
        click.echo(line.rstrip(), color=colors)


def _folded(text: str, width: int) -> list[str]:
    """Return a text in lines of at most a width, broken between words where that is possible."""
    if _width(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if _width(longer) > width and line:
            lines.append(line)
            longer = word
        while _width(longer) > width and len(longer) > 1:
            count = 1
            while _width(longer[: count + 1]) <= width:
                count += 1
            lines.append(longer[:count])
            longer = longer[count:]
        line = longer
    return [*lines, line]


def _width(text: str) -> int:
    """Return the columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"F", "W"} else 1


def _style_of(state: str) -> dict[str, Any]:
    color = _STATE_COLORS.get(state)
    return {"fg": color} if color else {}


def _has_colors() -> bool:
    """Return whether standard output is a terminal that shows colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout.isatty()


def _room() -> int:
    """Return the width of the terminal; without one, that of a wide one.

    As `shutil.get_terminal_size`, whose module imports three compression libraries.
    """
    if not sys.stdout.isatty():
        return _PIPE_WIDTH
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _TERMINAL_WIDTH
    except OSError:
        return _TERMINAL_WIDTH


def printable(value: Any) -> str:
    """Return a value as the cell of a table: on one line, without control characters.

    Newlines and tabs become spaces; other characters are escaped as in `rung.cli.terminal`.
    """
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case float():
            text = number(value)
        case dict():
            text = " ".join(f"{name}={printable(item)}" for name, item in flat(value))
        case list():
            text = ",".join(printable(item) for item in value) or "-"
        case _:
            text = str(value)
    return text if text.isprintable() else escape(text.translate(_SPACES))


def written(value: Any, *, digits: int | None = None, width: int = _WRITTEN) -> str:
    """Return a hyperparameter's value as an experiment file has it, so that it can be told apart.

    Text is quoted where it could be another value.

    Args:
        value: of the hyperparameter.
        digits: significant ones of a number that is not whole; None: all.
        width: what is longer is cut, and ends in `…` with its size.
    """
    text = _written(value, digits)
    if not text.isprintable():
        text = escape(text.translate(_SPACES))
    if len(text) <= width:
        return text
    many = f", {len(value):,} items" if isinstance(value, list | dict) else ""
    return f"{text[:width]}… ({len(text):,} characters{many})"


def _written(value: Any, digits: int | None) -> str:
    match value:
        case float() if digits is not None and math.isfinite(value):
            text = f"{value:.{digits}g}"
            return text if set(text) & {".", "e"} else f"{text}.0"
        case dict():
            items = (
                f"{_written(name, None)}: {_written(it, digits)}" for name, it in value.items()
            )
            return f"{{{', '.join(items)}}}"
        case list():
            return f"[{', '.join(_written(item, digits) for item in value)}]"
        case str() if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)


def settings(hparams: dict[str, Any]) -> str:
    """Return the hyperparameters of a trial on one line, numbers in five significant digits."""
    return " ".join(f"{name}={written(value, digits=5)}" for name, value in flat(hparams))


def flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested values by dotted names."""
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            rows += flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows


def number(value: float | str) -> str:
    """Return a metric's value in five significant digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.5g}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the singular or the plural."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def lasting(count: float, unit: str) -> str:
    """Return so many of a time metric: `1 batch`, `2.5 epochs`."""
    one = "batch" if unit == "batches" else unit.removesuffix("s")
    return f"{number(count)} {one if count == 1 else unit}"


def share(fraction: float) -> str:
    """Return a fraction in percent."""
    return f"{fraction:.0%}"


def size(value: int) -> str:
    """Return a number of bytes in binary units."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(amount, 1) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(seconds: float) -> str:
    """Return a span of time in hours, minutes and seconds."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def local_time(moment: str) -> str:
    """Return an RFC 3339 time in the local time zone, to the second."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return moment


def seconds_between(start: str, end: str | None) -> float:
    """Return the seconds from one time to another, or to now."""
    begun = datetime.fromisoformat(start)
    until = datetime.fromisoformat(end) if end else datetime.now(tz=begun.tzinfo)
    return max((until - begun).total_seconds(), 0.0)
