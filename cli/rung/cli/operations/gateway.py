"""`rung service gateway`: the gateway with the functions of other services that it calls."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import click

from rung.cli.operations.components import READERS, audit_all
from rung.gateway.command import CONTEXT, options, run
from rung.gateway.context import Parts
from rung.ledger import Ledger
from rung.scheduler.policies import policy_of


@click.command(name="gateway", context_settings=CONTEXT)
@options
@click.option(
    "--series",
    envvar="RUNG_SERIES",
    help="clickhouse://USER@HOST/DATABASE, or a folder that no metrics service has open. "
    "[default: no curves and logs]",
)
def gateway(series: str | None, host_name: tuple[str, ...], **options: Any) -> None:
    """Serve the API and the page of a ledger until SIGTERM."""
    run(names=host_name, compose=lambda ledger: _parts(ledger, series), **options)


@contextlib.asynccontextmanager
async def _parts(ledger: Ledger, series: str | None) -> AsyncIterator[Parts]:
    """Yield the functions and the store that the gateway needs from other services.

    Raises:
        RungError: the series cannot be opened.
    """

    async def audit(experiment_id: str) -> Any:
        return await audit_all(ledger, experiment_id)

    if series is None:
        yield Parts(audit=audit, policy_of=policy_of, readers=READERS)
        return
    from rung.metrics import SeriesStore  # noqa: PLC0415 - needs the extra of its engine

    try:
        store = SeriesStore(series, ledger_id=ledger.id, read_only=True)
    except ValueError as error:
        raise click.UsageError(f"--series: {error}") from error
    try:
        yield Parts(store, audit, policy_of, READERS)
    finally:
        await store.close()
