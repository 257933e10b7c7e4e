"""Runs a replica of checkpoint-gc: `python -m rung.checkpoint_gc --ledger FOLDER|kafka://… …`."""

from typing import Any

import click

from rung.checkpoint_gc.service import NAME, table
from rung.checkpoint_gc.settings import Sealing, Settings
from rung.ledger.archive import ArchiveSettings
from rung.runtime.bootstrap import Place, checked, launch_components, placed


@click.command(context_settings={"auto_envvar_prefix": "RUNG_CHECKPOINT_GC", "show_default": True})
@placed(objects=True)
@click.option("--retry-max", default=60.0, help="Most seconds between two tries of a deletion.")
@click.option("--snapshot-every", default=10_000, help="Facts between two snapshots.")
@click.option(
    "--archive/--no-archive",
    default=None,
    help="Archive the ledger in the object store.  [default: where it is on Kafka]",
)
@click.option("--archive-every", default=300.0, help="Seconds between two looks for what is new.")
@click.option(
    "--seal-key",
    envvar="RUNG_SEAL_KEY",
    show_default=False,
    help="Seal the ledger with this key: a file, PEM, or a secret of 32 characters or more."
    "  [default: it is not sealed]",
)
@click.option("--seal-every", default=5.0, help="Seconds between two seals of a partition.")
@click.option("--anchor", envvar="RUNG_ANCHOR", help="File or URL that gets the signed heads.")
def main(
    place: Place, retry_max: float, snapshot_every: int, archive_every: float, **options: Any
) -> None:
    """Delete the checkpoints that nobody wants any more, seal and archive the ledger.

    Several replicas of it share the partitions of a ledger on Kafka.
    """
    settings = checked(Settings, retry_max=retry_max, snapshot_every=snapshot_every)
    cluster = place.ledger.startswith("kafka://")
    archiving = cluster if options["archive"] is None else options["archive"]
    kept = checked(ArchiveSettings, every_s=archive_every) if archiving else None
    sealing = checked(
        Sealing,
        key=options["seal_key"] or None,
        every_s=options["seal_every"],
        anchor=options["anchor"],
        cluster=cluster,
    )
    launch_components(place, lambda store: table(store, settings, kept, sealing), service=NAME)


if __name__ == "__main__":
    main()
