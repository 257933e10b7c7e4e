"""Runs a replica of checkpoint-gc: `python -m rung.checkpoint_gc --ledger FOLDER|kafka://… …`."""

import click

from rung.archive import ArchiveSettings
from rung.checkpoint_gc.config import Settings
from rung.checkpoint_gc.service import NAME, TOPICS, TOPICS_ARCHIVING, serve
from rung.host.launch import Place, checked, launch, placed


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
def main(
    place: Place,
    retry_max: float,
    snapshot_every: int,
    *,
    archive: bool | None,
    archive_every: float,
) -> None:
    """Delete the checkpoints that nobody wants any more, and archive the ledger, until SIGTERM.

    Several replicas of it share the partitions of a ledger on Kafka.
    """
    settings = checked(Settings, retry_max=retry_max, snapshot_every=snapshot_every)
    archiving = place.ledger.startswith("kafka://") if archive is None else archive
    kept = checked(ArchiveSettings, every_s=archive_every) if archiving else None
    launch(
        place,
        lambda opened: serve(
            opened.ledger, opened.objects, settings, share=opened.share, archive=kept
        ),
        service=NAME,
        topics=TOPICS_ARCHIVING if archiving else TOPICS,
    )


if __name__ == "__main__":
    main()
