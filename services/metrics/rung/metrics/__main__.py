"""Runs a replica of metrics: `python -m rung.metrics --ledger FOLDER|kafka://… --series PLACE`."""

from typing import Any

import click

from rung.metrics.recovery import keep_series
from rung.metrics.service import NAME, TOPICS
from rung.metrics.settings import Settings
from rung.metrics.store import SeriesStore
from rung.runtime.bootstrap import Opened, Place, checked, launch, placed
from rung.runtime.health.checks import HEALTH


@click.command(context_settings={"auto_envvar_prefix": "RUNG_METRICS", "show_default": True})
@placed()
@click.option(
    "--series",
    required=True,
    envvar="RUNG_SERIES",
    help="clickhouse://USER@HOST/DATABASE (password in RUNG_CLICKHOUSE_PASSWORD), or a folder.",
)
@click.option("--flush-seconds", default=1.0, help="Longest wait of a record.")
@click.option("--flush-bytes", default=8 << 20, help="Size of a batch.")
@click.option("--metrics-days", type=int, help="Drop older reports, 0: none.  [default: as it is]")
@click.option(
    "--logs-keep-days",
    "--logs-days",
    "logs_days",
    type=int,
    help="Drop older lines, also from the ledger; 0: none.  [default: as it is]",
)
@click.option(
    "--logs-total-bytes",
    type=int,
    help="Drop the oldest logs where the text of all has more bytes.  [default: no limit]",
)
@click.option("--migrate/--no-migrate", default=True, help="Bring the tables to this version.")
def main(*, place: Place, series: str, migrate: bool, **settings: Any) -> None:
    """Keep the metrics and logs of a ledger in ClickHouse until SIGTERM.

    Several replicas of it share the partitions of a ledger on Kafka, and one ClickHouse server.
    """
    chosen = checked(Settings, **settings)

    async def keep(opened: Opened) -> None:
        store = checked(SeriesStore, place=series, ledger_id=opened.ledger.id, migrates=migrate)
        try:
            with HEALTH.check("series", store.unready):
                await keep_series(opened.ledger, store, chosen, assignment=opened.assignment)
        finally:
            await store.close()

    launch(place, keep, service=NAME, topics=TOPICS)


if __name__ == "__main__":
    main()
