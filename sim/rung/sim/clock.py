"""Virtual time: an event loop that jumps to what happens next, and has no threads."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BEFORE_JOB: Final[ContextVar[Callable[[], None]]] = ContextVar("before", default=lambda: None)
"""Called before the work of each thread; what it raises is raised in place of it."""
_TIE_S: Final = 1e-12
"""Between two timers of the same time."""


class _Jump(selectors.SelectSelector):
    """Passes the time that a loop would wait; no file is ever ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the time pass until the next timer is due."""
        assert timeout is not None, "nothing is left to happen"
        self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without sleep and threads: the same calls give the same order of events.

    Work for a thread is done at once, in the loop's own.
    """

    def __init__(self) -> None:
        self._jump = _Jump()
        self._timers = 0
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._jump.now_s

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a time; of several at the same time, in the order of these calls.

        The heap of asyncio has no order among them: it depends on all other timers.
        """
        self._timers += 1
        return super().call_at(when + self._timers * _TIE_S, callback, *args, context=context)

    def run_in_executor(
        self,
        executor: Executor | None,  # noqa: ARG002 - there are no threads
        func: Callable[[Unpack[Ts]], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """Do the work of a thread now."""
        BEFORE_JOB.get()()
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's, who awaits it
            done.set_exception(error)
        return done


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns; no other event loop may run in this thread."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
