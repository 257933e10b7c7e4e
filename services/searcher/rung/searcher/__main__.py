"""Runs a replica of the searcher: `python -m rung.searcher --ledger FOLDER|kafka://…`."""

import click

from rung.runtime.bootstrap import Place, checked, launch_components, placed
from rung.searcher.service import NAME, components
from rung.searcher.settings import Settings


@click.command(context_settings={"auto_envvar_prefix": "RUNG_SEARCHER", "show_default": True})
@placed()
@click.option("--snapshot-every", default=10_000, help="Facts between two snapshots.")
def main(place: Place, snapshot_every: int) -> None:
    """Run the searches of a ledger until SIGTERM.

    Several replicas of it share the partitions of a ledger on Kafka.
    """
    settings = checked(Settings, snapshot_every=snapshot_every)
    launch_components(place, lambda _: components(settings), service=NAME)


if __name__ == "__main__":
    main()
