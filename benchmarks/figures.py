"""Figures beside their aims and peers: what `make bench` prints as one table at its end.

Each script reports its figures with `figure`. Where the environment variable RUNG_FIGURES names a
file, they are appended to it, one line of JSON each.

    python -m benchmarks.figures FILE
"""

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """What was measured, and what it should be."""

    work: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    """The aim is a maximum or a minimum. Without one, the figure is information only."""
    beside: str = ""
    """What it is compared with in the same run: a peer, a limit, or a smaller size."""

    @property
    def met(self) -> bool:
        """Whether the aim is met; also where there is none."""
        if self.at_most is not None and self.value > self.at_most:
            return False
        return self.at_least is None or self.value >= self.at_least

    @property
    def aim(self) -> str:
        """The aim in words."""
        if self.at_most is not None:
            return f"at most {self.at_most:,g} {self.unit}"
        return "" if self.at_least is None else f"at least {self.at_least:,g} {self.unit}"


def figure(  # noqa: PLR0913 - a row of the table
    work: str,
    value: float,
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    beside: str = "",
) -> bool:
    """Print a figure, and keep it for the table; return whether its aim is met."""
    told = Figure(
        work=work, value=value, unit=unit, at_most=at_most, at_least=at_least, beside=beside
    )
    aim = f"; aim {told.aim}: {'met' if told.met else 'missed'}" if told.aim else ""
    print(f"{work}: {_number(value)} {unit}{aim}{'; ' + beside if beside else ''}", flush=True)
    if name := os.environ.get("RUNG_FIGURES"):
        with Path(name).open("ab") as file:
            file.write(msgspec.json.encode(told) + b"\n")
    return told.met


def table(figures: list[Figure]) -> str:
    """Return the figures as a table in Markdown."""
    rows = ["| work | measured | aim | | beside it |", "| --- | --- | --- | --- | --- |"]
    for it in figures:
        verdict = "" if not it.aim else "met" if it.met else "**missed**"
        rows.append(
            f"| {it.work} | {_number(it.value)} {it.unit} | {it.aim} | {verdict} | {it.beside} |"
        )
    return "\n".join(rows)


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_bytes().splitlines()
    print(table([msgspec.json.decode(line, type=Figure) for line in lines]))
