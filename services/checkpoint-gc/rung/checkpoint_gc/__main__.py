"""Runs a replica of checkpoint-gc: `python -m rung.checkpoint_gc --ledger FOLDER|kafka://… …`."""

import click

from rung.checkpoint_gc.config import Settings
from rung.checkpoint_gc.service import NAME, TOPICS, serve
from rung.host.launch import Place, checked, launch, placed


@click.command(context_settings={"auto_envvar_prefix": "RUNG_CHECKPOINT_GC", "show_default": True})
@placed(objects=True)
@click.option("--retry-max", default=60.0, help="Most seconds between two tries of a deletion.")
@click.option("--snapshot-every", default=10_000, help="Facts between two snapshots.")
def main(place: Place, retry_max: float, snapshot_every: int) -> None:
    """Delete the checkpoints that nobody wants any more, until SIGTERM.

    Several replicas of it share the partitions of a ledger on Kafka.
    """
    settings = checked(Settings, retry_max=retry_max, snapshot_every=snapshot_every)
    launch(
        place,
        lambda opened: serve(opened.ledger, opened.objects, settings, share=opened.share),
        service=NAME,
        topics=TOPICS,
    )


if __name__ == "__main__":
    main()
