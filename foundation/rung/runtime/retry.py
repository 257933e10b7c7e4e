"""Retries of services: what may pass by itself is tried again, logged once, and counted.

How long to wait is `rung.backoff`. An outage is logged where it begins, where its reason changes,
and where it ends; in between `rung_retries_total` grows.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import structlog

from rung.backoff import Backoff, Note, Patience, while_retriable
from rung.events import Fenced, LedgerError, LedgerRefused
from rung.runtime.health.checks import VITALS
from rung.runtime.metrics import catalog

T = TypeVar("T")

_USUAL: Final = Backoff()
_CALM_S: Final = 60.0
"""A loop that ran for so long was healthy: its next failure is the first one again."""

_log = structlog.get_logger()


class Outage:
    """Something that fails again and again: said once, and once more when it is over."""

    def __init__(self, what: str, **about: Any) -> None:
        """Take what is said of it.

        Args:
            what: the line of the log, such as "archive behind".
            about: its further fields.
        """
        self._what = what
        self._about = about
        self._reason: str | None = None
        self._begun = 0.0
        self._tries = 0

    def note(self, error: BaseException, wait_s: float, *, level: str = "warning") -> None:
        """Take note of a failure, and of how long it is until the next try.

        Where that is at once, it worked meanwhile: this is another outage.
        """
        if wait_s == 0:
            self._reason, self._tries = None, 0
        catalog.RETRIES.labels(self._what).inc()
        if self._reason is None:
            self._begun = asyncio.get_running_loop().time()
        self._tries += 1
        if self._reason != (reason := str(error)):
            getattr(_log, level)(self._what, reason=reason, wait_s=round(wait_s, 2), **self._about)
        self._reason = reason

    def end(self) -> None:
        """Take note that it works, or never failed."""
        if self._reason is None:
            return
        lasted_s = round(asyncio.get_running_loop().time() - self._begun, 1)
        _log.info(f"no longer: {self._what}", tries=self._tries, lasted_s=lasted_s, **self._about)
        self._reason, self._tries = None, 0


async def retry(
    call: Callable[[], Awaitable[T]],
    what: str,
    *,
    backoff: Backoff = _USUAL,
    patience_s: Patience = while_retriable,
    level: str = "warning",
    **about: Any,
) -> T:
    """Return what a call returns, made again while it fails for what may pass.

    Args:
        call: safe to repeat.
        what: what a failure means; the line of the log.
        backoff: how long to wait in between.
        patience_s: for how long an error is worth another try.
        level: of the line of the log.
        about: its further fields.
    """
    outage = Outage(what, **about)

    def note(error: BaseException, wait_s: float) -> None:
        outage.note(error, wait_s, level=level)

    result = await backoff.retry(call, patience_s, note=note)
    outage.end()
    return result


async def keep_running(
    run: Callable[[], Awaitable[None]],
    note: Note,
    *,
    patience_s: Patience = while_retriable,
    backoff: Backoff = _USUAL,
) -> None:
    """Run a loop for ever, again after each error that is worth it.

    A loop that was well for a while before it failed starts again at once.

    Args:
        run: the loop.
        note: told of each error that another start follows.
        patience_s: for how long an error is worth another try.
        backoff: how long to wait in between.
    """
    clock = asyncio.get_running_loop().time

    async def attempt() -> None:
        started = clock()
        try:
            await run()
        except Exception as error:
            if not patience_s(error) or clock() - started <= _CALM_S:
                raise
            note(error, 0.0)

    while True:
        await backoff.retry(attempt, patience_s, note=note)


def of_ledger(error: BaseException) -> float:
    """Return an endless patience with all that a ledger may say, and none with anything else."""
    return math.inf if isinstance(error, LedgerError) else 0.0


async def supervise(
    run: Callable[[], Awaitable[None]],
    *,
    name: str,
    follows: bool = True,
    awaited: bool = True,
    patient: bool = False,
) -> None:
    """Run `run` for ever, again after each error of the ledger that may pass.

    Args:
        run: the loop.
        name: for people; a partition's number comes last, behind a slash.
        follows: whether it follows partitions, once it has begun.
        awaited: whether the process is ready only once it has caught up with them.
        patient: whether to wait also while the ledger lets this process not in, which a new start
            of it might mend; for a process whose end would cost more.

    Raises:
        LedgerError: one that does not pass by itself.
    """

    def patience_s(error: BaseException) -> float:
        waits = isinstance(error, Fenced) or (isinstance(error, LedgerRefused) and patient)
        passes = isinstance(error, LedgerError) and error.retriable
        return math.inf if waits or passes else 0.0

    outage = Outage("starting again")
    with VITALS.pulse(name, follows=follows, awaited=awaited) as pulse:

        async def begin() -> None:
            pulse.start()
            await run()

        def note(error: BaseException, wait_s: float) -> None:
            pulse.rest(str(error))
            catalog.LOOP_RESTARTS.labels(pulse.loop).inc()
            if isinstance(error, Fenced):
                catalog.LEDGER_ERRORS.labels("Fenced").inc()
            level = "error" if isinstance(error, LedgerRefused) else "warning"
            outage.note(error, wait_s, level=level)

        await keep_running(begin, note, patience_s=patience_s)
