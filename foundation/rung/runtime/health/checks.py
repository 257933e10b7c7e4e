"""Whether a process is alive, and whether it is ready: what its probes answer.

*Healthy* means that starting it anew would change nothing for the better. A ledger that is away
does not make a process unhealthy, for it waits and goes on by itself. *Ready* means that others
may rely on it: its loops have folded what was there, and what it needs answers.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from structlog.contextvars import bound_contextvars

from rung.events import LedgerError, topic
from rung.ledger import Ledger
from rung.runtime.health.loops import CURRENT, Pulse, Strand
from rung.runtime.metrics import catalog

Check = Callable[[], Awaitable[str | None]]
"""Returns why something is not ready, None if it is."""

PATIENCE_S: Final = 120.0
ANSWERS_WITHIN_S: Final = 2.0
_FRESH_S: Final = 1.0


class Vitals:
    """The signs of life of a process."""

    def __init__(
        self, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without any.

        Args:
            patience_s: how long a loop may take for a step before it is taken for stuck.
            clock: in seconds, from any beginning.
        """
        self.stopping = False
        """Whether the process was asked to end."""
        self._patience_s = patience_s
        self.clock: Final = clock
        self._own = Pulse("process", clock, follows=False)
        self._pulses: list[Pulse] = []
        self._ran = False
        self._checks: list[tuple[str, Check]] = []
        self._ledger: Ledger | None = None
        self._ledger_away: str | None = None
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    @property
    def current(self) -> Pulse:
        """The pulse of the loop that runs here, or else of the process."""
        return CURRENT.get() or self._own

    def rely_on(self, ledger: Ledger) -> None:
        """Look at this ledger from now on."""
        self._ledger = ledger
        self._looked_s = float("-inf")

    @contextlib.contextmanager
    def pulse(self, name: str, *, follows: bool = True, awaited: bool = True) -> Iterator[Pulse]:
        """Keep the signs of life of a loop while it runs here; its log lines say its name."""
        pulse = Pulse(name, self.clock, follows=follows, awaited=awaited)
        self._pulses.append(pulse)
        self._ran = True
        token = CURRENT.set(pulse)
        try:
            with bound_contextvars(loop=name):
                yield pulse
        finally:
            CURRENT.reset(token)
            self._pulses.remove(pulse)

    @contextlib.contextmanager
    def check(self, name: str, check: Check) -> Iterator[None]:
        """Be ready only if something is."""
        self._checks.append((name, check))
        try:
            yield
        finally:
            self._checks.remove((name, check))

    @contextlib.contextmanager
    def measured(self, service: str) -> Iterator[None]:
        """Let Prometheus read them."""
        build: dict[tuple[str, ...], float] = {(catalog.build(), service): 1.0}
        with contextlib.ExitStack() as stack:
            for gauge, source in (
                (catalog.BUILD_INFO, lambda: build),
                (catalog.PARTITIONS_HELD, self._partitions),
                (catalog.LAG_RECORDS, self._lags),
                (catalog.SNAPSHOT_AGE_SECONDS, self._snapshot_ages),
            ):
                stack.enter_context(gauge.read_from(source))
            yield

    async def health(self) -> list[str]:
        """Return what a new start might mend, nothing if all is well."""
        await self.look()
        return [line for pulse in self._all for line in pulse.troubles(self._patience_s)]

    async def readiness(self) -> list[str]:
        """Return why others had better not rely on this process, nothing if they may."""
        if self.stopping:
            return ["the process ends"]
        if self._ledger is None:
            return ["the ledger is not open yet"]
        await self.look()
        found = [f"the ledger: {self._ledger_away}"] if self._ledger_away else []
        if not self._ran:
            found.append("no loop runs yet")
        found += await self.problems()
        return found + await self.behind()

    async def behind(self) -> list[str]:
        """Return which loops have not folded yet what the ledger held when they began."""
        await self.look()
        return [line for pulse in self._all for line in pulse.unready()]

    async def problems(self) -> list[str]:
        """Return what the checks of this process find wrong, nothing if all is well."""
        reasons = [(name, await _ask(check)) for name, check in list(self._checks)]
        return [f"{name}: {reason}" for name, reason in reasons if reason is not None]

    async def look(self) -> None:
        """Find out where the partitions end, unless that was done a moment ago."""
        if self._ledger is None or self.clock() - self._looked_s < _FRESH_S:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(self._ledger))
        await asyncio.shield(self._looking)

    async def _look(self, ledger: Ledger) -> None:
        followed: dict[tuple[str, int], list[Strand]] = {}
        for strand in self._strands:
            followed.setdefault((strand.topic, strand.partition), []).append(strand)
        places = list(followed) or [(topic.EXPERIMENTS, 0)]
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                ends = await asyncio.gather(*(ledger.end(*place) for place in places))
        except TimeoutError:
            self._ledger_away = f"no answer within {ANSWERS_WITHIN_S:.0f} s"
            catalog.LEDGER_ERRORS.labels("NoAnswer").inc()
        except LedgerError as error:
            self._ledger_away = str(error)
            catalog.LEDGER_ERRORS.labels(type(error).__name__).inc()
        else:
            self._ledger_away = None
            for place, end in zip(places, ends, strict=True):
                for strand in followed.get(place, ()):
                    strand.ended_at(end)
        self._looked_s = self.clock()

    @property
    def _all(self) -> list[Pulse]:
        return [self._own, *self._pulses]

    @property
    def _strands(self) -> list[Strand]:
        return [strand for pulse in self._all for strand in pulse.strands]

    def _partitions(self) -> dict[tuple[str, ...], float]:
        places = {(it.topic, it.partition) for pulse in self._pulses for it in pulse.strands}
        topics = [topic for topic, _ in places]
        return {(topic,): float(topics.count(topic)) for topic in topics}

    def _lags(self) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for pulse in self._all:
            for strand in pulse.strands:
                if (lag := strand.lag) is not None:
                    place = (pulse.loop, strand.topic, str(strand.partition))
                    found[place] = max(float(lag), found.get(place, 0.0))
        return found

    def _snapshot_ages(self) -> dict[tuple[str, ...], float]:
        now_s = self.clock()
        return {
            (name.removeprefix(STATE), str(partition)): now_s - saved_s
            for pulse in self._all
            for (name, partition), saved_s in pulse.saved.items()
            if "/" not in name.removeprefix(STATE) or not name.startswith(STATE)  # no bucket
        }


STATE: Final = "state/"
"""Begins the names of processors' snapshots."""


async def _ask(check: Check) -> str | None:
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            return await check()
    except TimeoutError:
        return f"no answer within {ANSWERS_WITHIN_S:.0f} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not ready
        return f"{type(error).__name__}: {error}"


VITALS: Final = Vitals()
"""Those of this process."""
