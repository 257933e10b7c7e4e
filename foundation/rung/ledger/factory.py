"""Opens the ledger at a URL or a path."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from rung.events.errors import LedgerError
from rung.ledger.port import Ledger
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.ledger.sqlite.remote_append import RemoteAppendLedger
from rung.storage import ObjectStore

_KAFKA: Final = "kafka://"
_SQLITE: Final = "sqlite:"


async def open_ledger(where: str | Path, snapshots: ObjectStore | None = None) -> Ledger:
    """Open a ledger.

    Args:
        where: a folder, `sqlite:FOLDER`, or `kafka://host:9092,other:9092/prefix`; settings of
            a Kafka cluster come from the environment (`RUNG_KAFKA_…`).
        snapshots: where a ledger on Kafka keeps snapshots; one in a file stores them itself.

    Raises:
        LedgerUnavailable: it does not answer.
        LedgerMissing: it does not exist.
        LedgerError: it cannot be used.
    """
    url = str(where)
    if url.startswith(_KAFKA):
        try:
            from rung.ledger.kafka import KafkaLedger  # noqa: PLC0415 - an extra, not always there
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"a ledger on Kafka needs the extra `kafka` ({error}): pip install 'rung[kafka]'"
            ) from error
        return await KafkaLedger.open(url, snapshots)
    return await SqliteLedger.open(_folder(url))


async def open_remote_append(
    where: str, connection: socket.socket, disconnected: Callable[[], None]
) -> Ledger:
    """Open a ledger in a file, appending through the parent process.

    Args:
        where: a folder, or `sqlite:FOLDER`.
        connection: to the parent.
        disconnected: called when it closes.

    Raises:
        LedgerError: it cannot be used.
    """
    ledger = await RemoteAppendLedger.open(_folder(where), create=False)
    await ledger.connect(connection, disconnected)
    return ledger


def _folder(url: str) -> Path:
    if not url.startswith(_SQLITE):
        if "://" in url or not url:
            raise LedgerError(
                f"ledger {url!r}: known are a folder, sqlite:FOLDER and kafka://host:9092/prefix"
            )
        return Path(url)
    path = unquote(url.removeprefix(_SQLITE))
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path or path.startswith("//"):
        raise LedgerError(f"ledger {url!r}: a folder is wanted, as in sqlite:/srv/rung/ledger")
    return Path(path)
