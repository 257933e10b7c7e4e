"""Watchdog: ends a run that hangs, and reports its resource usage and its last step.

A run *hangs* when it has reported nothing for `hang_timeout` seconds: no metrics, no checkpoint,
no heartbeat (`ctx.train.heartbeat()`). Output does not count: a process that waits for another one
for ever may well print that it waits. Not counted are times in which the agent reads no messages,
before all streamed data are complete, in which objects are uploaded or downloaded or a question
is answered, for which the run may wait, and after the run was asked to exit, which has its own
deadline. Of a run on several agents the first one receives the reports; the others watch only
after a heartbeat.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from rung.agent.monitoring import resource_monitor
from rung.agent.monitoring.stack_dump import dump_stacks
from rung.agent.node import Node
from rung.agent.objects.run_objects import RunObjects
from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.run.termination import Termination
from rung.core.ipc import protocol
from rung.events.trial import RunSpec

_NO_DISK: Final = (
    "disk reads and writes of this run are not measured: the kernel does not let the agent read "
    "those of all its processes"
)


class Watchdog:
    """The watchdog of one run on this agent."""

    def __init__(
        self,
        node: Node,
        spec: RunSpec,
        event_buffer: EventBuffer,
        termination: Termination,
        rank: int,
    ) -> None:
        self._node = node
        self._event_buffer = event_buffer
        self._termination = termination
        self._rank = rank
        asked = spec.config.get("hang_timeout")
        self._timeout_s = float(asked) if isinstance(asked, int | float) else 0.0
        self._message_at = node.clock()
        self._sends_reports = rank == 0
        self._oom_kills_before = resource_monitor.oom_kills()
        self.steps: int | None = None
        """The last step that the run reported."""

    def message_came(self) -> None:
        """Note that a message of the run was received."""
        self._message_at = self._node.clock()

    def heartbeat_came(self) -> None:
        """Note that a heartbeat of the run's processes here was received."""
        self._sends_reports = True

    @contextlib.asynccontextmanager
    async def over(
        self,
        mains: Sequence[int],
        folder: Path,
        slots: Sequence[int],
        arrived: Callable[[], Awaitable[None]],
        run_objects: RunObjects,
    ) -> AsyncIterator[None]:
        """Watch while the context lasts.

        Args:
            mains: the run's main processes on this agent.
            folder: its working folder.
            slots: ids of the slots that it holds here.
            arrived: returns when all data of the run are complete.
            run_objects: of its checkpoints.
        """
        self._message_at = self._node.clock()
        tasks = []
        if self._timeout_s > 0:
            tasks.append(asyncio.create_task(self._end_if_hanging(mains, arrived, run_objects)))
        if self._node.settings.sample_s > 0:
            tasks.append(asyncio.create_task(self._measure(mains, folder, slots)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def oom_killed(self) -> bool:
        """Whether the OOM killer has killed a process of this machine during the run."""
        return resource_monitor.oom_kills() > self._oom_kills_before

    async def _end_if_hanging(
        self, mains: Sequence[int], arrived: Callable[[], Awaitable[None]], run_objects: RunObjects
    ) -> None:
        """End the run once it hangs.

        Where checkpoints are staged, its first agent alone does: ranks on other agents wait for
        its ranks while these wait for the object store, which those agents cannot observe.
        """
        if run_objects.staged and self._rank > 0:
            return
        clock = self._node.clock
        await arrived()
        self._message_at = clock()
        while True:
            silent_since = max(self._message_at, run_objects.served_at)
            if (left_s := silent_since + self._timeout_s - clock()) <= 0:
                break
            await asyncio.sleep(left_s)
            leaving = self._termination.conduct.asked_to_leave
            if leaving or self._node.outbox.saturated or not self._sends_reports:
                self._message_at = clock()
        where = "before its first step" if self.steps is None else f"after step {self.steps}"
        reason = f"it hangs: it has reported nothing for {self._timeout_s:g} s, {where}"
        self._note(f"{reason}; the stacks of its processes follow, then it is killed")
        await dump_stacks(mains, self._note)
        self._termination.end_hanging(f"{reason}; its stacks are in the log")

    async def _measure(self, mains: Sequence[int], folder: Path, slots: Sequence[int]) -> None:
        """Report the run's resource usage, every few seconds."""
        devices = [slot for slot in self._node.slots if slot.id in slots]
        await asyncio.sleep(self._node.settings.sample_s)  # short runs need no readings
        readings = await asyncio.to_thread(
            resource_monitor.ResourceMonitor, mains, folder, devices
        )
        noted = False
        while True:
            await asyncio.sleep(self._node.settings.sample_s)
            values = await asyncio.to_thread(readings.measure)
            if not noted and resource_monitor.DISK not in values:
                noted = True
                self._event_buffer.note("info", _NO_DISK, self._rank)
            now_ms = time.time_ns() // 1_000_000
            row = protocol.Reported(
                resource_monitor.KIND, now_ms // 1000, now_ms, {**self._named(values)}
            )
            self._event_buffer.reported(row)

    def _named(self, values: dict[str, float]) -> dict[str, float]:
        """Return values under names that no other agent of the trial uses."""
        if self._rank == 0:
            return values
        return {f"{name}@{self._node.agent_id}": value for name, value in values.items()}

    @property
    def _note(self) -> Callable[[str], None]:
        return lambda text: self._event_buffer.note("error", text, self._rank)
