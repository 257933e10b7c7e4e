"""Watch of limits: writes how much slot time an experiment has used once that is its limit.

The searcher has neither a clock nor a view of pools. Each gateway counts slot time anyhow, for
usage, so each looks at the experiments that have a limit and writes `experiment.slot_time_counted`
for those that are at it. One that was killed writes it at its next look; of several, all write it,
and the searcher takes the first.

After a standstill of the installation, agents come back or are found lost, and the times of their
runs are corrected by that (`rung.gateway.projections.usage`). So a gateway that has just started
looks only after a while.

A projection that is behind would count on for runs that have ended. So before something is
written, the gateway folds all that the ledger held at that moment, and counts up to it.
"""

import asyncio
from typing import Final

import structlog

from rung.events import topic
from rung.events.experiment import SlotTimeCounted
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.projections.usage import Spent, UsageProjection, read_spent
from rung.ledger import Ledger
from rung.runtime import FactWriter
from rung.runtime.fact_writer import CLOCK

_TOPICS: Final = (topic.POOLS, topic.PLACEMENTS, topic.EXPERIMENTS)
_WAIT_S: Final = 60.0

_log = structlog.get_logger()


class LimitWatch:
    """The watch of one gateway."""

    def __init__(
        self,
        ledger: Ledger,
        models: ReadModels,
        writer: FactWriter,
        *,
        after_s: float,
        every_s: float,
    ) -> None:
        """Prepare it.

        Args:
            ledger: whose ends say what the projections must have folded.
            models: with the projection of usage.
            writer: writes what was counted.
            after_s: seconds until the first look.
            every_s: seconds between two looks.
        """
        self._ledger: Final = ledger
        self._models: Final = models
        self._writer: Final = writer
        self._after_s: Final = after_s
        self._every_s: Final = every_s
        self._written: set[tuple[str, float]] = set()
        """Experiments and their limits, of which it was written and that have not ended."""

    async def run(self) -> None:
        """Write what is counted until cancelled.

        Raises:
            LedgerError: the ledger failed; run again to start afresh.
        """
        self._written.clear()
        await asyncio.sleep(self._after_s)
        while True:
            if self._models.behind() is None:
                await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Write of each experiment that is at its limit, once for each limit.

        Raises:
            LedgerError: the ledger failed.
        """
        found = await self._spent(_now_ms())
        self._written &= {(it.experiment_id, it.limit_ms) for it in found}
        if not self._new(found):
            return
        now_ms = _now_ms()
        ends = {
            (name, partition): await self._ledger.end(name, partition) - 1
            for name in _TOPICS
            for partition in range(self._ledger.partitions(name))
        }
        if not await self._models.reached(ends, wait_s=_WAIT_S):
            return
        for it in self._new(await self._spent(now_ms)):
            _log.info("limit reached", experiment=it.experiment_id, slot_ms=it.slot_ms)
            counted = SlotTimeCounted(experiment_id=it.experiment_id, slot_ms=it.slot_ms)
            await self._writer.write(counted)
            self._written.add((it.experiment_id, it.limit_ms))

    def _new(self, found: list[Spent]) -> list[Spent]:
        return [it for it in found if (it.experiment_id, it.limit_ms) not in self._written]

    async def _spent(self, now_ms: int) -> list[Spent]:
        return await self._models.read(UsageProjection, read_spent, now_ms)


def _now_ms() -> int:
    return round(CLOCK.get()() * 1_000)
