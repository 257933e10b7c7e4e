"""Retries with back-off (`rung.backoff`) that are logged and counted.

An outage is logged when it begins, when its reason changes, and when it ends; every retry counts
in `rung_retries_total`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import structlog

from rung.backoff import Backoff, Note, Patience, while_retriable
from rung.events import Fenced, LedgerError, LedgerRefused
from rung.runtime.health.checks import HEALTH
from rung.runtime.metrics import catalog

T = TypeVar("T")

_USUAL: Final = Backoff()
_CALM_S: Final = 60.0
"""After a run of this length a loop's next failure counts as its first one."""

_log = structlog.get_logger()


class Outage:
    """A series of failures, which is logged once, and once more when it is over."""

    def __init__(self, what: str, **about: Any) -> None:
        """Take the line of the log, such as "archive behind", and its further fields."""
        self._what = what
        self._about = about
        self._reason: str | None = None
        self._begun = 0.0
        self._tries = 0

    def note(self, error: BaseException, wait_s: float, *, level: str = "warning") -> None:
        """Note a failure, and how long it is until the next try.

        A next try at once means that the call worked for a while: this is another outage.
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
        """Note a success."""
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
    """Return what a call returns, which is retried while patience with its errors lasts.

    Args:
        call: safe to repeat.
        what: the line of the log.
        backoff: between two tries.
        patience_s: for how long an error is retried.
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
    """Run a loop for ever, again after each error that patience allows.

    `note` is called with each such error. A loop that worked for a while before it failed starts
    again at once.
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
    """Return an endless patience with errors of the ledger, and none with others."""
    return math.inf if isinstance(error, LedgerError) else 0.0


async def supervise(
    run: Callable[[], Awaitable[None]],
    *,
    name: str,
    follows: bool = True,
    awaited: bool = True,
    patient: bool = False,
) -> None:
    """Run a loop for ever, again after each transient error of the ledger, and monitor its health.

    Args:
        run: the loop.
        name: for people; a partition's number comes last, behind a slash.
        follows: whether it follows partitions.
        awaited: whether readiness requires that it has caught up with them.
        patient: whether to retry also while the ledger refuses this process; for a process whose
            end would cost more than waiting.

    Raises:
        LedgerError: one that does not pass by itself.
    """

    def patience_s(error: BaseException) -> float:
        waits = isinstance(error, Fenced) or (isinstance(error, LedgerRefused) and patient)
        passes = isinstance(error, LedgerError) and error.retriable
        return math.inf if waits or passes else 0.0

    outage = Outage("starting again")
    with HEALTH.loop(name, follows=follows, awaited=awaited) as loop:

        async def begin() -> None:
            loop.start()
            await run()

        def note(error: BaseException, wait_s: float) -> None:
            loop.failed(str(error))
            catalog.LOOP_RESTARTS.labels(loop.base_name).inc()
            if isinstance(error, Fenced):
                catalog.LEDGER_ERRORS.labels("Fenced").inc()
            level = "error" if isinstance(error, LedgerRefused) else "warning"
            outage.note(error, wait_s, level=level)

        await keep_running(begin, note, patience_s=patience_s)
