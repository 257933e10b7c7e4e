"""Retries: how long, how often, of what; on the event loop's clock and in threads."""

import asyncio
import math
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rung.backoff import Backoff, while_retriable
from rung.events.errors import LedgerDamaged, LedgerUnavailable


class _Jump(selectors.SelectSelector):
    """Waits for nothing: a clock is set to when the wait would be over."""

    now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready now."""
        self.now_s += max(timeout or 0.0, 0.0)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the virtual time."""
        return self._jump.now_s


def _virtually(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Run something on a virtual clock; return how many virtual seconds it took."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        loop = runner.get_loop()
        begun = loop.time()
        runner.run(work())
        return loop.time() - begun


class _Failing:
    """Fails so many times, then returns a number."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.left = times
        self.error = error or LedgerUnavailable("away")
        self.tries = 0

    def now(self) -> int:
        self.tries += 1
        if self.left:
            self.left -= 1
            raise self.error
        return 7

    async def __call__(self) -> int:
        return self.now()


def test_waits_double_up_to_a_maximum_on_the_loop_s_clock() -> None:
    """A thousand seconds of waiting take none of a simulation; each wait is in its range."""
    call, waits = _Failing(12), list[float]()

    async def work() -> None:
        tried = Backoff(1.0, 100.0).retry(call, note=lambda _, wait_s: waits.append(wait_s))
        assert await tried == 7

    begun = time.monotonic()
    taken = _virtually(work)

    assert time.monotonic() - begun < 5.0
    assert call.tries == 13
    for number, wait_s in enumerate(waits):
        bound = min(2.0**number, 100.0)
        assert bound / 2 <= wait_s <= bound
    assert taken == pytest.approx(sum(waits))
    assert len(set(waits)) == 12, "no jitter"


def test_patience_ends_before_a_try_that_would_come_too_late() -> None:
    """The last error is raised as it was, and not a moment after the time is over."""
    call = _Failing(10**9)

    async def work() -> None:
        with pytest.raises(LedgerUnavailable, match="away") as caught:
            await Backoff(1.0, 4.0).retry(call, lambda _: 30.0)
        assert caught.value is call.error

    assert 20.0 < _virtually(work) <= 30.0
    assert call.tries > 7


@pytest.mark.parametrize("error", [LedgerDamaged("broken"), ValueError("bug")])
async def test_what_does_not_pass_is_raised_at_once(error: Exception) -> None:
    """Another try would change nothing."""
    call = _Failing(1, error)

    with pytest.raises(type(error)) as caught:
        await Backoff().retry(call)

    assert caught.value is error
    assert call.tries == 1
    assert while_retriable(LedgerUnavailable("away")) == math.inf


def test_an_error_may_say_how_long_to_wait() -> None:
    """A server that says when to come again is not asked before."""

    async def work() -> None:
        await Backoff(0.01, 0.01).retry(_Failing(3), least_s=lambda _: 5.0)

    assert 15.0 <= _virtually(work) < 15.1


async def test_a_cancellation_ends_it_in_the_call_and_in_a_wait() -> None:
    """Nothing is tried again that was asked to end."""
    called, waiting = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        called.set()
        await asyncio.Event().wait()

    in_call = asyncio.create_task(Backoff().retry(hangs, lambda _: math.inf))
    in_wait = asyncio.create_task(
        Backoff(100.0, 100.0).retry(_Failing(9), note=lambda *_: waiting.set())
    )
    await called.wait()
    await waiting.wait()
    for task in (in_call, in_wait):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_in_a_thread_a_sleep_may_end_it() -> None:
    """Who closes a store does not wait for what is tried again."""
    closing = threading.Event()
    call = _Failing(9)

    def sleep(seconds: float) -> None:
        closing.set()
        if closing.wait(seconds):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        Backoff(60.0, 60.0).retry_blocking(
            call.now, lambda _: math.inf, clock=time.monotonic, sleep=sleep
        )
    assert call.tries == 1
