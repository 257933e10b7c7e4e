"""Processors, relays and sinks in the simulated world: the real ones, woken and killed."""

from typing import Any

from msgspec import structs

from rung.events.codec import decode_handled
from rung.runtime import PartitionFold, Processor
from rung.runtime.processor.processor import types_of
from rung.runtime.relay import Relay, relayed
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


class Carrier:
    """A relay, or a sink that acts in this world: carries facts over from one topic to another."""

    def __init__(self, world: World, it: Relay, *, ledger_id: str = "sim", start: int = 0) -> None:
        self._world = world
        self._ledger_id = ledger_id
        self._it = it
        self._types = types_of(it.handles)
        self._position = self._committed = self._reached = start
        world.subscribe(it.topic, self.wake)

    def wake(self) -> None:
        """Carry what arrived; now and then forget how far it was."""
        records = self._world.topics[self._it.topic]
        while self._position < len(records):
            record = records[self._position]
            event = decode_handled(record.value, self._types)
            for made in [] if event is None else relayed(self._it, self._ledger_id, record, event):
                self._world.append(structs.replace(made, time=f"{self._world.now_ms}"))
            self._position += 1
            is_new = self._position > self._reached
            self._reached = max(self._reached, self._position)
            if is_new and self._world.happens(self._world.faults.forwarder_crash):
                self._position = self._committed
                self._world.after(LATENCY_MS_MAX, self.wake)
                return
        self._committed = self._position
