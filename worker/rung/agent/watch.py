"""Watches one run from outside while its processes live.

It knows how far the run is, ends it when it hangs, reports what it takes of the machine, and at
the end says why it failed. The training itself is never asked for any of this.

A run *hangs* when for `hang_timeout` seconds it has said nothing: no metrics, no checkpoint, no
sign of life (`ctx.train.heartbeat()`). What it prints does not count: a process that waits for
another for ever may well print that it waits. Nor does time count in which the agent does not
listen, before all data that the run streams are there, in which checkpoints are on their way to or
from the object store, for which the run may wait, or in which the run was asked to leave, which
has a deadline of its own. Of a run on several agents the first hears the reports; the others watch
once they heard a sign of life.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from rung.agent import host_memory, vitals
from rung.agent.delivery import Delivery
from rung.agent.departure import Departure
from rung.agent.fault import fault_of
from rung.agent.node import Node
from rung.agent.outcome import Ending
from rung.agent.reports import Reports
from rung.agent.stack_dump import dump_stacks
from rung.agent.wire import Exited
from rung.core import protocol
from rung.core.protocol import FromTrial
from rung.events.trial import RunSpec

HANG: Final = "hang"
_NO_DISK: Final = (
    "disk reads and writes of this run are not measured: the kernel does not let the agent read "
    "those of all its processes"
)


class Watch:
    """The watch over one run on this agent."""

    def __init__(
        self, node: Node, spec: RunSpec, reports: Reports, departure: Departure, rank: int
    ) -> None:
        self._node = node
        self._reports = reports
        self._departure = departure
        self._rank = rank
        asked = spec.config.get("hang_timeout")
        self._timeout_s = float(asked) if isinstance(asked, int | float) else 0.0
        self._heard_at = node.clock()
        self._speaks = rank == 0
        self._killed_before = host_memory.kills()
        self.steps: int | None = None
        """The last step that the run spoke of."""

    def heard(self, message: FromTrial) -> None:
        """Take note of what the run said."""
        self._heard_at = self._node.clock()
        match message:
            case protocol.Reported():
                self.steps = message.step
            case protocol.Stored() | protocol.Restored():
                self.steps = message.steps_completed
            case protocol.Alive():
                self._speaks = True
            case _:
                pass

    @contextlib.asynccontextmanager
    async def over(
        self,
        mains: Sequence[int],
        folder: Path,
        slots: Sequence[int],
        arrived: Callable[[], Awaitable[None]],
        delivery: Delivery,
    ) -> AsyncIterator[None]:
        """Watch while the context lasts.

        Args:
            mains: the run's main processes on this agent.
            folder: its working folder.
            slots: ids of the slots that it holds here.
            arrived: waits until the run need not wait for its data any more.
            delivery: of its checkpoints.
        """
        self._heard_at = self._node.clock()
        tasks = []
        if self._timeout_s > 0:
            tasks.append(asyncio.create_task(self._guard(mains, arrived, delivery)))
        if self._node.settings.vitals_s > 0:
            tasks.append(asyncio.create_task(self._measure(mains, folder, slots)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def explain(self, ending: Ending, exited: Exited, rank: int) -> Ending:
        """Return how a process of the run ended, with the kind of its fault and a remedy."""
        if ending.outcome != "failed":
            return ending
        if self._departure.conduct.hung:
            return ending._replace(fault=HANG)
        fault = fault_of(
            exited,
            self._reports.exception(rank),
            self._reports.last_lines(rank),
            starved=host_memory.kills() > self._killed_before,
        )
        message = f"{fault.sentence} ({ending.message})" if fault.sentence else ending.message
        return ending._replace(fault=fault.kind, message=message)

    async def _guard(
        self, mains: Sequence[int], arrived: Callable[[], Awaitable[None]], delivery: Delivery
    ) -> None:
        """End the run once it hangs.

        Where checkpoints are staged, its first agent alone does: ranks on others wait for those
        there while these wait for the object store, and their agents hear nothing of that.
        """
        if delivery.staged and self._rank > 0:
            return
        clock = self._node.clock
        await arrived()
        self._heard_at = clock()
        while True:
            silent_since = max(self._heard_at, delivery.served_at)
            if (left_s := silent_since + self._timeout_s - clock()) <= 0:
                break
            await asyncio.sleep(left_s)
            leaving = self._departure.conduct.asked_to_leave
            if leaving or self._node.spool.saturated or not self._speaks:
                self._heard_at = clock()
        where = "before its first step" if self.steps is None else f"after step {self.steps}"
        reason = f"it hangs: it has said nothing for {self._timeout_s:g} s, {where}"
        self._note(f"{reason}; the stacks of its processes follow, then it is killed")
        await dump_stacks(mains, self._note)
        self._departure.end_hanging(f"{reason}; its stacks are in the log")

    async def _measure(self, mains: Sequence[int], folder: Path, slots: Sequence[int]) -> None:
        """Report what the run takes of the machine, every few seconds."""
        devices = [slot for slot in self._node.slots if slot.id in slots]
        await asyncio.sleep(self._node.settings.vitals_s)  # a short run is not worth a reading
        readings = await asyncio.to_thread(vitals.Vitals, mains, folder, devices)
        told = False
        while True:
            await asyncio.sleep(self._node.settings.vitals_s)
            values = await asyncio.to_thread(readings.measure)
            if not told and vitals.DISK not in values:
                told = True
                self._reports.note("info", _NO_DISK, self._rank)
            now_ms = time.time_ns() // 1_000_000
            row = protocol.Reported(vitals.KIND, now_ms // 1000, now_ms, {**self._named(values)})
            self._reports.reported(row)

    def _named(self, values: dict[str, float]) -> dict[str, float]:
        """Return values under names that no other agent of the trial uses."""
        if self._rank == 0:
            return values
        return {f"{name}@{self._node.agent_id}": value for name, value in values.items()}

    @property
    def _note(self) -> Callable[[str], None]:
        return lambda text: self._reports.note("error", text, self._rank)
