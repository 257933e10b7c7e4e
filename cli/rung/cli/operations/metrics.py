"""`rung metrics migrate`: the tables of metrics and log lines."""

import time
from typing import TYPE_CHECKING, Any, Final

import click

from rung.cli.connection_options import asynchronous
from rung.cli.output import print_json, print_table

if TYPE_CHECKING:
    from rung.metrics import Plan

_DAYS: Final = click.IntRange(0, 36_500)


@click.group()
def metrics() -> None:
    """Migrate the tables of metrics and log lines."""


@metrics.command()
@click.option(
    "--series",
    required=True,
    envvar="RUNG_SERIES",
    help="clickhouse://USER@HOST/DB (password in RUNG_CLICKHOUSE_PASSWORD), or a chDB folder.",
)
@click.option("--metrics-days", type=_DAYS, help="Drop reports older than this; 0: none.")
@click.option("--logs-days", type=_DAYS, help="Drop log lines older than this; 0: none.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@asynchronous
async def migrate(
    *,
    series: str,
    metrics_days: int | None,
    logs_days: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show and apply the migrations of the tables, and set how long rows are kept.

    The metrics service does the same at its start, unless it gets --no-migrate, for a user that
    may not change tables.
    """
    from rung.metrics import migrate_series  # noqa: PLC0415 - only where it is needed
    from rung.metrics.retention import KNOWS_TTL  # noqa: PLC0415 - see above

    days = {"metrics": metrics_days, "logs": logs_days}
    try:
        plan = await migrate_series(
            series,
            days={table: kept for table, kept in days.items() if kept is not None},
            now_ms=int(time.time() * 1_000),
            dry_run=dry_run,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    rows = _rows(plan, applied="pending" if dry_run else "applied")
    if as_json:
        print_json({"clickhouse": _release(plan.version), "migrations": rows})
        return
    print_table(["number", "name", "state"], [list(row.values()) for row in rows])
    if not dry_run and any(days.values()) and plan.version < KNOWS_TTL:
        click.echo(
            f"ClickHouse {_release(plan.version)} does not drop old rows by itself: give the "
            "metrics service the same days; it deletes them periodically.",
            err=True,
        )


def _rows(plan: "Plan", *, applied: str) -> list[dict[str, Any]]:
    states = {item.number: "done" for item in plan.done}
    states |= {item.number: applied for item in plan.pending}
    for item in plan.later:
        assert item.since is not None, item
        states[item.number] = (
            f"left out: needs ClickHouse {_release(item.since)}, this is {_release(plan.version)}"
        )
    everyone = sorted([*plan.done, *plan.pending, *plan.later])
    return [
        {"number": item.number, "name": item.name, "state": states[item.number]}
        for item in everyone
    ]


def _release(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
