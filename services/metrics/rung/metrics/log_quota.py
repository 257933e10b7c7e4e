"""Quota of logs: where all printed lines exceed a number of bytes, the oldest logs are deleted.

Logs of whole trials are deleted, by the time of their last line. Each deletion is the same fact
that `rung gc logs` writes, but without an actor; the series, a rebuild of them and the trimming of
the ledger follow it.
"""

import asyncio
import uuid
from collections.abc import Iterable, Iterator
from typing import Final

import structlog

from rung.api import TrialLines
from rung.events import LedgerError
from rung.events.metric import EVER_MS, LogsDeleted
from rung.ledger import Ledger
from rung.metrics.clickhouse.errors import SeriesError
from rung.metrics.store import SeriesStore
from rung.runtime import FactWriter

EVERY_S: Final = 600.0

_log = structlog.get_logger()


async def keep_within(
    ledger: Ledger, store: SeriesStore, max_bytes: int, *, every_s: float = EVERY_S
) -> None:
    """Delete the oldest logs where all together are too large, until cancelled.

    Args:
        ledger: the deletions are appended to it.
        store: the series, which hold the lines.
        max_bytes: of the text of all lines.
        every_s: seconds between two checks.
    """
    writer = FactWriter(ledger, source="/rung/metrics", origin=f"logs/{uuid.uuid4().hex}")
    while True:
        try:
            for trial in excess(await store.log_sizes(None, EVER_MS), max_bytes):
                await writer.write(
                    LogsDeleted(
                        experiment_id=trial.experiment_id,
                        trial_id=trial.trial_id,
                        before_ms=trial.last_ms + 1,
                        lines=trial.lines,
                        size_bytes=trial.size_bytes,
                    )
                )
                _log.info("log deleted", trial=trial.trial_id, size_bytes=trial.size_bytes)
        except (LedgerError, SeriesError) as error:
            _log.warning("logs not kept within their quota", reason=str(error))
        await asyncio.sleep(every_s)


def excess(sizes: Iterable[TrialLines], max_bytes: int) -> Iterator[TrialLines]:
    """Yield the logs to delete, so that the others have at most `max_bytes` of text."""
    oldest = sorted(sizes, key=lambda trial: (trial.last_ms, trial.trial_id))
    left = sum(trial.size_bytes for trial in oldest)
    for trial in oldest:
        if left <= max_bytes:
            return
        left -= trial.size_bytes
        yield trial
