"""Liveness and readiness of a process: what its probes answer.

A process is *alive* unless a restart might help. One that waits for an unavailable ledger is
alive, because it continues by itself. It is *ready* when its loops have folded what the ledger
held when they began, and what it needs answers.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from structlog.contextvars import bound_contextvars

from rung.events import LedgerError, topic
from rung.ledger import Ledger
from rung.runtime.health.loops import CURRENT_LOOP, FollowedPartition, LoopHealth
from rung.runtime.metrics import catalog

Check = Callable[[], Awaitable[str | None]]
"""Returns why something is not ready, None if it is."""

PATIENCE_S: Final = 120.0
ANSWERS_WITHIN_S: Final = 2.0
_FRESH_S: Final = 1.0

STATE: Final = "state/"
"""Prefix of the names of processors' snapshots."""


class ProcessHealth:
    """The health of a process: of its loops, its ledger, and what else it checks."""

    def __init__(
        self, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without loops and checks; a step of a loop is stuck after `patience_s`."""
        self.stopping = False
        """Whether the process shuts down."""
        self._patience_s = patience_s
        self.clock: Final = clock
        self._outside = LoopHealth("process", clock, follows=False)
        """Of what runs in no loop."""
        self._loops: list[LoopHealth] = []
        self._ran = False
        self._checks: list[tuple[str, Check]] = []
        self._ledger: Ledger | None = None
        self._ledger_failure: str | None = None
        self._refreshed_s = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def current(self) -> LoopHealth:
        """The loop that runs here, or else the process outside of loops."""
        return CURRENT_LOOP.get() or self._outside

    def watch(self, ledger: Ledger) -> None:
        """Ask this ledger for the ends of partitions from now on."""
        self._ledger = ledger
        self._refreshed_s = float("-inf")

    @contextlib.contextmanager
    def loop(
        self, name: str, *, follows: bool = True, awaited: bool = True
    ) -> Iterator[LoopHealth]:
        """Monitor a loop while it runs in this context; its log lines carry its name."""
        loop = LoopHealth(name, self.clock, follows=follows, awaited=awaited)
        self._loops.append(loop)
        self._ran = True
        token = CURRENT_LOOP.set(loop)
        try:
            with bound_contextvars(loop=name):
                yield loop
        finally:
            CURRENT_LOOP.reset(token)
            self._loops.remove(loop)

    @contextlib.contextmanager
    def check(self, name: str, check: Check) -> Iterator[None]:
        """Make readiness depend on a check."""
        self._checks.append((name, check))
        try:
            yield
        finally:
            self._checks.remove((name, check))

    @contextlib.contextmanager
    def measured(self, service: str) -> Iterator[None]:
        """Export what is known as metrics."""
        build: dict[tuple[str, ...], float] = {(catalog.build(), service): 1.0}
        with contextlib.ExitStack() as stack:
            for gauge, source in (
                (catalog.BUILD_INFO, lambda: build),
                (catalog.PARTITIONS_HELD, self._partitions_held),
                (catalog.LAG_RECORDS, self._lags),
                (catalog.SNAPSHOT_AGE_SECONDS, self._snapshot_ages),
            ):
                stack.enter_context(gauge.read_from(source))
            yield

    async def liveness(self) -> list[str]:
        """Return the problems that a restart might solve."""
        await self.refresh()
        return [line for loop in self._all for line in loop.problems(self._patience_s)]

    async def readiness(self) -> list[str]:
        """Return why the process is not ready; nothing if it is."""
        if self.stopping:
            return ["the process ends"]
        if self._ledger is None:
            return ["the ledger is not open yet"]
        await self.refresh()
        found = [f"the ledger: {self._ledger_failure}"] if self._ledger_failure else []
        if not self._ran:
            found.append("no loop runs yet")
        found += await self.problems()
        return found + await self.behind()

    async def behind(self) -> list[str]:
        """Return which loops have not folded yet what the ledger held when they began."""
        await self.refresh()
        return [line for loop in self._all for line in loop.unready()]

    async def problems(self) -> list[str]:
        """Return the failed checks of this process."""
        reasons = [(name, await _run(check)) for name, check in list(self._checks)]
        return [f"{name}: {reason}" for name, reason in reasons if reason is not None]

    async def refresh(self) -> None:
        """Read where the followed partitions end, at most once a second."""
        if self._ledger is None or self.clock() - self._refreshed_s < _FRESH_S:
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(self._ledger))
        await asyncio.shield(self._refreshing)

    async def _refresh(self, ledger: Ledger) -> None:
        followed: dict[tuple[str, int], list[FollowedPartition]] = {}
        for loop in self._all:
            for it in loop.partitions:
                followed.setdefault((it.topic, it.partition), []).append(it)
        places = list(followed) or [(topic.EXPERIMENTS, 0)]
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                ends = await asyncio.gather(*(ledger.end(*place) for place in places))
        except TimeoutError:
            self._ledger_failure = f"no answer within {ANSWERS_WITHIN_S:.0f} s"
            catalog.LEDGER_ERRORS.labels("NoAnswer").inc()
        except LedgerError as error:
            self._ledger_failure = str(error)
            catalog.LEDGER_ERRORS.labels(type(error).__name__).inc()
        else:
            self._ledger_failure = None
            for place, end in zip(places, ends, strict=True):
                for it in followed.get(place, ()):
                    it.ended_at(end)
        self._refreshed_s = self.clock()

    @property
    def _all(self) -> list[LoopHealth]:
        return [self._outside, *self._loops]

    def _partitions_held(self) -> dict[tuple[str, ...], float]:
        places = {(it.topic, it.partition) for loop in self._loops for it in loop.partitions}
        topics = [topic for topic, _ in places]
        return {(topic,): float(topics.count(topic)) for topic in topics}

    def _lags(self) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for loop in self._all:
            for it in loop.partitions:
                if (lag := it.lag) is not None:
                    place = (loop.base_name, it.topic, str(it.partition))
                    found[place] = max(float(lag), found.get(place, 0.0))
        return found

    def _snapshot_ages(self) -> dict[tuple[str, ...], float]:
        now_s = self.clock()
        return {
            (name.removeprefix(STATE), str(partition)): now_s - saved_s
            for loop in self._all
            for (name, partition), saved_s in loop.saved.items()
            if "/" not in name.removeprefix(STATE) or not name.startswith(STATE)  # no bucket
        }


async def _run(check: Check) -> str | None:
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            return await check()
    except TimeoutError:
        return f"no answer within {ANSWERS_WITHIN_S:.0f} s"
    except Exception as error:  # noqa: BLE001 - a check that fails in any way is not ready
        return f"{type(error).__name__}: {error}"


HEALTH: Final = ProcessHealth()
"""The health of this process."""
