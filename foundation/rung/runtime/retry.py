"""Starts a loop again when the ledger failed it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rung.events import Fenced, LedgerError, LedgerRefused
from rung.runtime.health.checks import VITALS
from rung.runtime.metrics import catalog

_WAIT_S_MIN: Final = 0.1
_WAIT_S_MAX: Final = 10.0
_CALM_S: Final = 60.0
"""A run that lasted this long is taken as healthy: the next failure waits briefly again."""

_log = structlog.get_logger()


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
    clock = asyncio.get_running_loop().time
    wait_s = _WAIT_S_MIN
    with VITALS.pulse(name, follows=follows, awaited=awaited) as pulse:
        while True:
            started = clock()
            pulse.start()
            try:
                await run()
            except LedgerError as error:
                refused = isinstance(error, LedgerRefused) and patient
                if not (error.retriable or refused or isinstance(error, Fenced)):
                    raise
                if clock() - started > _CALM_S:
                    wait_s = _WAIT_S_MIN
                pulse.rest(str(error))
                catalog.LOOP_RESTARTS.of(pulse.loop).inc()
                if isinstance(error, Fenced):
                    catalog.LEDGER_ERRORS.of("Fenced").inc()
                say = _log.error if refused else _log.warning
                say("starting again", error=str(error), wait_s=wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_S_MAX)
