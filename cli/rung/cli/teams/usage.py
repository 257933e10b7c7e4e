"""How `rung workspace usage` shows its numbers."""

import csv
import sys
from typing import Final

from rung import api
from rung.cli.connection_options import Link
from rung.cli.output import print_json, print_table, printable

_COLUMNS: Final = (
    "slot_hours",
    "running_slot_hours",
    "slots_running",
    "slots_waiting",
    "experiments",
    "trials",
    "checkpoints",
    "checkpoint_bytes",
)


def print_usage(link: Link, found: api.UsageReport, *, as_csv: bool) -> None:
    """Print a report: a table with a total, comma-separated values without, or JSON."""
    if link.json:
        print_json(found)
        return
    named = ["workspace", "project"] if found.by == "project" else [found.by]
    rows = [
        [*(getattr(it, column) or "-" for column in named), *_numbers(it)] for it in found.items
    ]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*named, *_COLUMNS])
        writer.writerows([[_plain(value) for value in row] for row in rows])
        return
    total = ["all", *("" for _ in named[1:]), *_numbers(found.total)]
    heads = [it.replace("_", " ") for it in (*named, *_COLUMNS)]
    print_table(heads, [*rows, total], right=heads[len(named) :])


def _numbers(it: api.Usage) -> list[float | int | str]:
    return [
        round(it.slot_hours, 3),
        round(it.running_slot_hours, 3),
        it.slots_running,
        it.slots_waiting,
        _states(it.experiments),
        _states(it.trials),
        it.checkpoint_count,
        it.checkpoint_bytes,
    ]


def _states(counts: dict[str, int]) -> str:
    """Return numbers by state, the more common first: `12 completed, 1 errored`."""
    ordered = sorted(counts.items(), key=lambda it: (-it[1], it[0]))
    return ", ".join(f"{count} {state}" for state, count in ordered) or "0"


def _plain(value: float | str) -> float | str:
    """Return a value that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value if value == "-" else f"'{value}"
    return printable(value) if isinstance(value, str) else value
