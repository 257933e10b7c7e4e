"""The table of services, and `rung service NAME`: one as a process of its own."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rung.cli.lazy_group import LazyGroup

if TYPE_CHECKING:
    from rung.runtime.service import Component, Service
    from rung.storage import ObjectStore


class Listed(NamedTuple):
    """A service. At least one of `table` and `command` is given, as `module:name`."""

    help: str
    table: str | None = None
    """Its `Service`, whose components `rung up` runs with those of the others."""
    command: str | None = None
    """Its command, if that has options of its own."""

    @property
    def home(self) -> str:
        """Return where its command is, or the `Service` of which a command is made."""
        home = self.command or self.table
        assert home, self
        return home


SERVICES: Final[dict[str, Listed]] = {
    "gateway": Listed(
        "Serve the API and the page; decide on users, rights and workspaces.",
        "rung.gateway.service:SERVICE",
        "rung.cli.operations.gateway:gateway",
    ),
    "searcher": Listed(
        "Run the searches.", "rung.searcher.service:SERVICE", "rung.searcher.__main__:main"
    ),
    "scheduler": Listed(
        "Give slots to trials.", "rung.scheduler.service:SERVICE", "rung.scheduler.__main__:main"
    ),
    "checkpoint-gc": Listed(
        "Delete checkpoints by their retention policy, seal and archive.",
        "rung.checkpoint_gc.service:SERVICE",
        "rung.checkpoint_gc.__main__:main",
    ),
    "metrics": Listed(
        "Keep metrics and logs in ClickHouse.", command="rung.metrics.__main__:main"
    ),
    "webhooks": Listed(
        "Tell subscribers of what happens.",
        "rung.webhooks.service:SERVICE",
        "rung.webhooks.__main__:main",
    ),
    "agent": Listed("Offer this machine's slots.", command="rung.agent.__main__:main"),
}
"""In the order of `rung service --help`. Each is imported when it is called, since an image has
the dependencies of its own service alone."""


def tables(store: "ObjectStore | None" = None) -> "Mapping[str, Sequence[Component]]":
    """Return the tables of components by service.

    Args:
        store: the object store; None if the tables are only read.
    """
    return {name: _table(it.table).components(store) for name, it in SERVICES.items() if it.table}


def _table(home: str) -> "Service":
    module, _, name = home.partition(":")
    found: Service = getattr(import_module(module), name)
    return found


def _command(found: Any, text: str) -> click.Command:
    """Return a command made of a `Service`."""
    from rung.runtime.bootstrap import command_of  # noqa: PLC0415 - only where one is made

    return command_of(found, text)


@click.command(cls=LazyGroup, entries=SERVICES, kind="service", adapt=_command)
def service() -> None:
    """Run one service until SIGTERM, as `rung up` runs all of them.

    On a ledger on Kafka (--ledger kafka://host:9092,other:9092) several replicas of a service
    share its partitions, and each works on all of them if it is alone. `rung cluster init` makes
    the ledger.
    """
