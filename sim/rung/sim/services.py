"""Deciders and forwarders in the simulated world: the real machines, woken and killed."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rung.events import Event, Payload, decode, fact
from rung.runtime import PartitionFold, Processor
from rung.runtime.forward import number_of
from rung.sim.world import LATENCY_MS_MAX, World


class Decider:
    """One process on its one partition."""

    def __init__(self, world: World, process: Processor[Any]) -> None:
        self._world = world
        self.process = process
        self.fold: PartitionFold[Any] = PartitionFold(process)
        self._reached = 0
        world.subscribe(process.facts, self.wake)

    def wake(self) -> None:
        """Fold and decide what arrived; now and then die in the middle of it, once per fact."""
        records = self._world.topics[self.process.facts]
        while self.fold.facts < len(records):
            is_new = self.fold.facts >= self._reached
            folded = self.fold.fold(records[self.fold.facts])
            assert folded.rejected is None, folded.rejected
            self._reached = max(self._reached, self.fold.facts)
            if is_new and self._world.happens(self._world.faults.decider_crash):
                for event in folded.new[: self._world.random.randint(0, len(folded.new))]:
                    self._world.append(event)
                self._restart()
                return
            for event in folded.new:
                position = self._world.append(event)
                assert position == self.fold.decisions, "another writer in the partition"
                self.fold.appended(1)

    def _restart(self) -> None:
        self.fold = PartitionFold(self.process)
        rejected = self.fold.record(self._world.topics[self.process.decisions])
        assert not rejected, rejected
        self._world.after(LATENCY_MS_MAX, self.wake)


class Forwarder:
    """Carries facts over from one topic to another."""

    def __init__(
        self,
        world: World,
        topic: str,
        translate: Callable[[Event], Awaitable[Sequence[Payload]]],
    ) -> None:
        self._world = world
        self._topic = topic
        self._translate = translate
        self._position = 0
        self._committed = 0
        self._reached = 0
        world.subscribe(topic, self.wake)

    def wake(self) -> None:
        """Forward what arrived; now and then forget how far it was."""
        records = self._world.topics[self._topic]
        while self._position < len(records):
            record = records[self._position]
            event = decode(record.value)
            origin, sequence = number_of("sim", record, event)
            for data in _result(self._translate(event)):
                self._world.append(
                    fact(
                        data,
                        source=f"/rung/{data.WRITER}",
                        origin=origin,
                        sequence=sequence,
                        time=f"{self._world.now_ms}",
                        cause=event.id,
                    )
                )
            self._position += 1
            is_new = self._position > self._reached
            self._reached = max(self._reached, self._position)
            if is_new and self._world.happens(self._world.faults.forwarder_crash):
                self._position = self._committed
                self._world.after(LATENCY_MS_MAX, self.wake)
                return
        self._committed = self._position


def _result(awaitable: Awaitable[Sequence[Payload]]) -> Sequence[Payload]:
    """Return what a coroutine returns that never has to wait."""
    steps = awaitable.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        result: Sequence[Payload] = stop.value
        return result
    raise AssertionError("an intake waits for something")
