"""The table of the gateway's components, and what serves on a socket until cancelled."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from rung.gateway.app import make_app
from rung.gateway.context import CONTEXT, Parts
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.settings import Settings
from rung.ledger import Ledger
from rung.runtime.http.connection import Connections
from rung.runtime.service import Component, Decider, Service
from rung.secrets.master_key import MasterKey
from rung.storage import ObjectStore

NAME: Final = "gateway"
SHUTDOWN_S: Final = 5.0
_SNAPSHOT_EVERY: Final = 1_000
"""Requests between two snapshots of the directory, of which each replica starts."""

_log = structlog.get_logger()


def components(store: ObjectStore | None) -> tuple[Component, ...]:  # noqa: ARG001 - none needs it
    """Return what decides on the directory of a ledger."""
    return (Decider(DirectoryProcessor(), _SNAPSHOT_EVERY),)


async def serve(  # noqa: PLR0913 - the parts that it is composed of
    ledger: Ledger,
    store: ObjectStore,
    *,
    listener: socket.socket,
    local: socket.socket | None = None,
    token: str,
    parts: Parts | None = None,
    settings: Settings | None = None,
    started: Callable[[], object] | None = None,
    folder: Path | None = None,
    publishes: bool = False,
    secrets_key: MasterKey | None = None,
) -> None:
    """Serve the API and the page until cancelled.

    Args:
        ledger: read from, and appended to.
        store: where code goes and checkpoints lie.
        listener: a socket that listens; closed at the end.
        local: a Unix socket that listens, for clients on this machine; closed at the end.
        token: what a client must know.
        parts: of other services; none if not given.
        settings: limits and time-outs.
        started: called once requests are answered.
        folder: where the projections' files lie; in a temporary one if not given.
        publishes: whether replicas publish copies of these files in the object store.
        secrets_key: encrypts secrets; without one, files that have some are refused.

    Raises:
        LedgerError: the ledger cannot be followed any more.
    """
    app = make_app(
        ledger,
        store,
        token=token,
        parts=parts,
        settings=settings,
        folder=folder,
        publishes=publishes,
        secrets_key=secrets_key,
    )
    connections = Connections(app[CONTEXT].settings.limits, port="http")
    listeners = [listener] if local is None else [listener, local]
    async with connections.serve(app, listeners, shutdown_s=SHUTDOWN_S):
        address, port = listener.getsockname()[:2]
        _log.info("gateway serves", address=f"{address}:{port}")
        if started is not None:
            started()
        await app[CONTEXT].models.failed()


SERVICE: Final = Service(NAME, components)
