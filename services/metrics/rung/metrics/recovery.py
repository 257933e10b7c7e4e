"""Recovery of a series folder: one that cannot be used is set aside and rebuilt from the ledger.

A folder that is damaged, or derived from another ledger or another state of this one, is renamed,
with the time in its name, and built again. Where that does not help, because another process has
the folder open or because it breaks again and again, it is retried later; training goes on.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from rung.backoff import Backoff
from rung.events import LedgerError
from rung.ledger import Ledger
from rung.ledger.seals import SealKey
from rung.metrics.clickhouse.errors import SeriesDamaged, SeriesError, SeriesLocked
from rung.metrics.service import serve
from rung.metrics.settings import Settings
from rung.metrics.store import SeriesStore
from rung.runtime.assignment.assignment import Assignment
from rung.runtime.retry import retry

_SET_ASIDE_MAX: Final = 3
_SET_ASIDE_S: Final = 3600.0
"""Seconds in which a folder is set aside so many times at most."""
_BACKOFF: Final = Backoff(5.0, 300.0)

_log = structlog.get_logger()


async def keep_series(
    ledger: Ledger, store: SeriesStore, settings: Settings, *, assignment: Assignment
) -> None:
    """Keep a store up to date with the ledger until cancelled, with recovery where it is a folder.

    Raises:
        SeriesError: the store cannot be used, and is not this process's to rebuild.
        LedgerError: the ledger cannot be used, and will not be by waiting.
    """
    if store.rebuilds:
        await Recovery(ledger, store, settings, assignment=assignment).run()
    else:
        await serve(ledger, store, settings, assignment=assignment)


class Recovery:
    """Serves a series store, and rebuilds its folder where it cannot be used."""

    def __init__(  # noqa: PLR0913 - what `serve` takes, and a clock
        self,
        ledger: Ledger,
        store: SeriesStore,
        settings: Settings | None = None,
        *,
        assignment: Assignment | None = None,
        key: SealKey | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare it.

        Args:
            ledger: which the series derive from.
            store: in a folder of this machine, that makes its tables; the caller closes it.
            settings: as `serve` takes them.
            assignment: as `serve` takes it.
            key: as `serve` takes it.
            clock: in seconds, monotonic.
        """
        self._ledger = ledger
        self._store = store
        self._settings = settings
        self._assignment = assignment
        self._key = key
        self._clock = clock
        self._renamed: deque[float] = deque()
        self.settled: Final = asyncio.Event()
        """Set once the series are open, or cannot be."""
        self.problem: str | None = None
        """Why curves and logs are not kept at this moment; None if they are."""

    async def run(self) -> None:
        """Keep the series up to date with the ledger until cancelled.

        Raises:
            LedgerError: the ledger cannot be used, and will not be by waiting.
        """

        async def attempt() -> None:
            """Serve until the series fail; return where an empty folder took their place."""
            error = await self._serve()
            if await self._set_aside(error):
                return
            self.problem = f"curves and logs are not kept for now: {error}"
            self.settled.set()
            raise error

        while True:
            await retry(
                attempt,
                "series cannot be kept",
                backoff=_BACKOFF,
                patience_s=lambda error: math.inf if isinstance(error, SeriesError) else 0.0,
                level="error",
            )

    async def _serve(self) -> SeriesError:
        """Serve until the series fail, for the service or for a reader; return why."""
        serving = asyncio.create_task(
            serve(
                self._ledger,
                self._store,
                self._settings,
                assignment=self._assignment,
                key=self._key,
            )
        )
        damaged = asyncio.create_task(self._store.damaged())
        opened = asyncio.create_task(self._opened())
        tasks = (serving, damaged, opened)
        try:
            await asyncio.wait((serving, damaged), return_when=asyncio.FIRST_COMPLETED)
            if damaged.done():
                return damaged.result()
            await serving
        except LedgerError:
            raise
        except SeriesError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the process goes on
            _log.exception("the series failed with an unexpected error")
            return SeriesError(f"{type(error).__name__}: {error}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise AssertionError("the service ends by an error only")

    async def _opened(self) -> None:
        await self._store.opened.wait()
        self.problem = None
        self.settled.set()

    async def _set_aside(self, error: SeriesError) -> bool:
        """Set the folder aside; return False where that would not help, or did not."""
        now = self._clock()
        while self._renamed and now - self._renamed[0] > _SET_ASIDE_S:
            self._renamed.popleft()
        if isinstance(error, SeriesLocked) or len(self._renamed) >= _SET_ASIDE_MAX:
            return False
        self._renamed.append(now)
        try:
            aside = await self._store.set_aside(f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
        except SeriesDamaged:
            return False
        _log.error(
            "series set aside; they are rebuilt from the ledger", reason=str(error), aside=aside
        )
        return True
