"""Output of the command line: JSON for scripts, tables and texts for people."""

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import click
import msgspec

from rung.cli.terminal import escape, escape_json, raw_stream

_PIPE_WIDTH: Final = 200
_SPACES: Final = {ord("\n"): " ", ord("\t"): " "}
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
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()
) -> None:
    """Print rows under headings; the column `state` is coloured.

    Args:
        columns: the headings.
        rows: values; they are printed without markup.
        right: headings of columns to be aligned right.
    """
    from rich.table import Table  # noqa: PLC0415 - a tenth of a second
    from rich.text import Text  # noqa: PLC0415 - see above

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        cells = [printable(value) for value in row]
        styles = [
            _STATE_COLORS.get(cell, "") if column == "state" else ""
            for column, cell in zip(columns, cells, strict=True)
        ]
        table.add_row(*(Text(cell, style) for cell, style in zip(cells, styles, strict=True)))
    _print(table)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print names with their values, leaving out values of None."""
    from rich.table import Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts:
        if value is not None:
            cell = printable(value)
            table.add_row(name, Text(cell, _STATE_COLORS.get(cell, "")))
    _print(table)


def _print(table: Any) -> None:
    """Print a table without the spaces that would fill its last column."""
    here = console()
    with here.capture() as captured:
        here.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=here.is_terminal)


def console(*, stderr: bool = False) -> Any:
    """Return a console as wide as the terminal, or wide enough for a pipe.

    It writes to the stream without escaping: texts must have been made `printable` before.
    """
    from rich.console import Console  # noqa: PLC0415 - see above

    stream = raw_stream(sys.stderr if stderr else sys.stdout)
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


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


def share(fraction: float) -> str:
    """Return a fraction in percent."""
    return f"{fraction:.0%}"


def size(value: int) -> str:
    """Return a number of bytes in binary units."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
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
