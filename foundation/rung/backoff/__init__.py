"""Retries with exponential back-off and jitter, for coroutines and for threads.

Configures the library `tenacity` for all of Rung: each wait is drawn at random from a range that
doubles up to a maximum, so that callers that failed together do not retry together. The caller
decides for how long each error is retried. The library is imported at the first failure: most
calls of a short command succeed.

Services use `rung.runtime.retry`, which also logs and counts.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from rung.events.errors import RungError

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

Patience = Callable[[BaseException], float]
"""For how many seconds since the first attempt an error is retried; 0: not at all."""
Note = Callable[[BaseException, float], None]
"""Called before each retry with the error and the wait in seconds."""

CHANCE: Final[ContextVar[random.Random]] = ContextVar("chance")
"""Spreads retries over time, in a simulation; elsewhere `_chance` does."""

_chance: Final = random.Random()  # noqa: S311 - spreads retries over time, guards nothing


def while_retriable(error: BaseException) -> float:
    """Return infinity for errors of Rung that are retriable, 0 for others."""
    return math.inf if isinstance(error, RungError) and error.retriable else 0.0


class Backoff(NamedTuple):
    """The waits between attempts."""

    first_s: float = 0.1
    """Bound of the first wait; it doubles with each attempt."""
    most_s: float = 10.0
    """Bound of all waits."""

    async def retry(
        self,
        call: Callable[[], Awaitable[T]],
        patience_s: Patience = while_retriable,
        *,
        least_s: Callable[[BaseException], float] | None = None,
        note: Note | None = None,
    ) -> T:
        """Return the result of a call, retried while the patience with its errors lasts.

        The clock is the event loop's, also where that is simulated. `least_s` is the least wait
        after an error; `note` is called before each retry.
        """
        rules = _Rules(self, patience_s, least_s, asyncio.get_running_loop().time)
        try:
            return await call()
        except Exception as error:
            if not rules.retries(error):
                raise
            failed: list[Exception] = [error]

        from tenacity import AsyncRetrying, retry_if_exception  # noqa: PLC0415 - 20 ms

        trying = AsyncRetrying(
            sleep=asyncio.sleep,
            wait=rules,
            stop=rules.stop,
            retry=retry_if_exception(rules.retries),
            before_sleep=_noted(note),
            reraise=True,
        )

        async def attempt() -> T:
            if failed:
                raise failed.pop()
            return await call()

        return await trying(attempt)

    def retry_blocking(
        self,
        call: Callable[[], T],
        patience_s: Patience,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> T:
        """Retry a call in a thread; what `sleep` raises ends the retries."""
        from tenacity import Retrying, retry_if_exception  # noqa: PLC0415 - see above

        rules = _Rules(self, patience_s, None, clock)
        trying = Retrying(
            sleep=sleep,
            wait=rules,
            stop=rules.stop,
            retry=retry_if_exception(rules.retries),
            reraise=True,
        )
        return trying(call)


class _Rules:
    """The decisions of one sequence of attempts, for the library."""

    def __init__(
        self,
        backoff: Backoff,
        patience_s: Patience,
        least_s: Callable[[BaseException], float] | None,
        clock: Callable[[], float],
    ) -> None:
        self._backoff = backoff
        self._patience_s = patience_s
        self._least_s = least_s
        self._clock = clock
        self._begun = clock()

    def __call__(self, retry_state: "RetryCallState") -> float:
        """Return how long to wait."""
        doubled = min(retry_state.attempt_number - 1, 60)
        bound = min(self._backoff.first_s * 2.0**doubled, self._backoff.most_s)
        wait_s = bound * CHANCE.get(_chance).uniform(0.5, 1.0)
        least_s = self._least_s(_error_of(retry_state)) if self._least_s else 0.0
        return max(wait_s, least_s)

    def retries(self, error: BaseException) -> bool:
        """Return whether an error is retried at all."""
        return isinstance(error, Exception) and self._patience_s(error) > 0

    def stop(self, state: "RetryCallState") -> bool:
        """Return whether the next attempt would be too late."""
        taken_s = self._clock() - self._begun + state.upcoming_sleep
        return taken_s > self._patience_s(_error_of(state))


def _error_of(state: "RetryCallState") -> BaseException:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert error is not None
    return error


def _noted(note: Note | None) -> Callable[["RetryCallState"], None] | None:
    if note is None:
        return None
    return lambda state: note(_error_of(state), state.upcoming_sleep)
