"""`rung service NAME`: one service as a process of its own, where others run elsewhere."""

from typing import Final

import click

from rung.cli.lazy_group import Entry, LazyGroup

SERVICES: Final = {
    "gateway": Entry("rung.cli.gateway:gateway", "Serve the API and the page."),
    "searcher": Entry("rung.searcher.__main__:main", "Run the searches."),
    "scheduler": Entry("rung.scheduler.__main__:main", "Give slots to trials."),
    "checkpoint-gc": Entry(
        "rung.checkpoint_gc.__main__:main", "Delete the checkpoints that nobody wants any more."
    ),
    "metrics": Entry("rung.metrics.__main__:main", "Keep metrics and logs in ClickHouse."),
    "agent": Entry("rung.agent.__main__:main", "Offer this machine's slots."),
}
"""In the order in which `rung service --help` lists them. An image carries what its service needs
alone: each is imported when it is called."""


@click.command(cls=LazyGroup, entries=SERVICES, kind="service")
def service() -> None:
    """Run one service until SIGTERM, as `rung up` runs all of them.

    On a ledger on Kafka (--ledger kafka://host:9092,other:9092) several replicas of a service
    share its partitions, and each works on all of them if it is alone. `rung cluster init` makes
    the ledger.
    """
