"""`rung service NAME`: one service as a process of its own, where others run elsewhere."""

import contextlib
from collections.abc import AsyncIterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rung.gateway.command import Parts
    from rung.ledger import Ledger

SERVICES: Final = {
    "gateway": "Serve the API and the page.",
    "searcher": "Run the searches.",
    "scheduler": "Give slots to trials.",
    "checkpoint-gc": "Delete the checkpoints that nobody wants any more.",
    "metrics": "Keep metrics and logs in ClickHouse.",
    "agent": "Offer this machine's slots.",
}
"""In the order in which `rung service --help` lists them."""


class ServiceGroup(click.Group):
    """Imports a service when it is called, for an image carries what its service needs alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all services."""
        return list(SERVICES)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Return a service by name, None if there is none."""
        if cmd_name not in SERVICES:
            return None
        if cmd_name == "gateway":
            return _gateway()
        try:
            module = import_module(f"rung.{cmd_name.replace('-', '_')}.__main__")
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"the {cmd_name} is not installed here: {error.name} is missing"
            ) from error
        command: Any = module.main
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of services."""
        with formatter.section("Services"):
            formatter.write_dl(list(SERVICES.items()))


@click.command(cls=ServiceGroup)
def service() -> None:
    """Run one service until SIGTERM, as `rung up` runs all of them.

    On a ledger on Kafka (--ledger kafka://host:9092,other:9092) several replicas of a service
    share its partitions, and each works on all of them if it is alone. `rung cluster init` makes
    the ledger.
    """


def _gateway() -> click.Command:
    """Return the gateway with what other services add to it: series and audits."""
    from rung.gateway.command import CONTEXT, options, run  # noqa: PLC0415 - see ServiceGroup

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

    return gateway


@contextlib.asynccontextmanager
async def _parts(ledger: "Ledger", series: str | None) -> AsyncIterator["Parts"]:
    """Give the gateway what it asks of others.

    Raises:
        RungError: the series cannot be opened.
    """
    from rung.cli.deciders import audit_all  # noqa: PLC0415 - see ServiceGroup
    from rung.gateway.command import Parts  # noqa: PLC0415 - see ServiceGroup

    async def audit(experiment_id: str) -> Any:
        return await audit_all(ledger, experiment_id)

    if series is None:
        yield Parts(audit=audit)
        return
    from rung.metrics import open_series  # noqa: PLC0415 - needs the extra of its engine

    try:
        store = open_series(series, ledger_id=ledger.id, read_only=True)
    except ValueError as error:
        raise click.UsageError(f"--series: {error}") from error
    try:
        yield Parts(store, audit)
    finally:
        await store.close()
