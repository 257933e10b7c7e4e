"""Two replicas that both believe in one partition, in every order that can be drawn.

Each step of a replica (a batch read, an append, a snapshot saved) waits until the test lets it
happen, so a replica may sleep anywhere for any time: after folding and before appending, with a
snapshot in its hands, for the rest of the story. What is on record in the end must be, for every
reader, what one replica that nothing befell would have written.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rung.events import Event, Fenced, Payload, decode
from rung.events.allocation import AllocationLost
from rung.events.experiment import ExperimentPaused
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime import PartitionFold, audit
from rung.runtime.processor.loop import _Hosted
from rung.runtime.relay import Relay, _Relaying
from runtime.tally import Count, Tally, pause, resume

KEYS = "ab"
SNAPSHOT_EVERY = 3


class Turns:
    """What a replica may do, one step at a time."""

    def __init__(self) -> None:
        self.open = False
        self._waiting: list[asyncio.Future[None]] = []

    async def take(self) -> None:
        """Wait for a turn."""
        if not self.open:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def give(self) -> None:
        """Let the step happen that waits longest."""
        while self._waiting:
            turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return


class View:
    """A ledger as one replica has it; several may have one ledger."""

    def __init__(self, ledger: MemoryLedger, turns: Turns) -> None:
        self._ledger = ledger
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in its turn; the answer comes in another."""
        await self._turns.take()
        positions = await self._ledger.append(drafts)
        await self._turns.take()
        return positions

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Save in its turn."""
        await self._turns.take()
        await self._ledger.save_snapshot(name, partition, value)

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield each batch in its turn."""
        async for records in self._ledger.follow(topic, partition, position):
            await self._turns.take()
            yield records


class Replica:
    """One replica, which may be killed and started again."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.turns = Turns()
        self.fenced = 0
        """How often it noticed that it had written late."""
        self._ledger: Any = View(ledger, self.turns)
        self._task = asyncio.create_task(self._run())

    async def kill(self) -> None:
        """Have it die where it is, and start anew."""
        task, self.turns = self._task, Turns()
        self._ledger._turns = self.turns
        self._task = asyncio.create_task(self._run())
        task.cancel()

    async def end(self) -> None:
        """End it for good."""
        self.turns.open = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await _Hosted(self._ledger, Tally(), 0, SNAPSHOT_EVERY).run()
            except Fenced:
                self.fenced += 1


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _come_to_rest(ledger: MemoryLedger, replicas: list[Replica]) -> None:
    """Let everything happen until nothing does."""
    end = -1
    while end != (end := await ledger.end("searches", 0)):
        for replica in replicas:
            replica.turns.open = True
            for _ in range(10):
                replica.turns.give()
        for _ in range(10):
            await _settle()


STEPS = st.lists(st.sampled_from(["0", "1", "00", "11", "a", "b", "r", "kill 0", "kill 1"]))


async def _play(steps: list[str]) -> MemoryLedger:
    ledger = MemoryLedger(partitions=1)
    replicas = [Replica(ledger), Replica(ledger)]
    for number, step in enumerate(steps, start=1):
        match step:
            case "a" | "b":
                await _append(ledger, pause(number, step))
            case "r":
                await _append(ledger, resume(number, "a"))
            case "kill 0" | "kill 1":
                await replicas[int(step[-1])].kill()
            case _:
                for _ in range(4 * len(step) - 3):
                    replicas[int(step[0])].turns.give()
                    await _settle()
        await _settle()
    await _come_to_rest(ledger, replicas)
    for replica in replicas:
        await replica.end()
    return ledger


async def _append(ledger: MemoryLedger, *events: Event) -> None:
    await ledger.append([Draft.of(e) for e in events])


def _alone(facts: list[Record]) -> tuple[PartitionFold[Count], list[Event]]:
    """Fold and decide as one replica that nothing befalls."""
    fold = PartitionFold(Tally())
    return fold, [event for record in facts for event in fold.fold(record).new]


@given(STEPS)
def test_every_reader_has_what_one_replica_decides(steps: list[str]) -> None:
    """The fold of what is on record is that of one replica, nothing is due, the audit passes."""

    async def check() -> None:
        ledger = await _play(steps)
        facts = await ledger.read("experiments", 0, 0, 10_000)
        recorded = await ledger.read("searches", 0, 0, 10_000)
        alone, decisions = _alone(facts)
        reader = PartitionFold(Tally())
        assert reader.record(recorded) == []
        new = [event for record in facts for event in reader.fold(record).new]
        assert new == []
        assert [reader.state(key) for key in KEYS] == [alone.state(key) for key in KEYS]
        assert {decode(record.value).id for record in recorded} == {it.id for it in decisions}
        verdict = await audit(ledger, Tally())
        assert verdict.same
        assert (verdict.decisions, verdict.pending) == (len(decisions), 0)

    asyncio.run(check())


@given(STEPS)
def test_a_snapshot_of_either_replica_is_as_good(steps: list[str]) -> None:
    """Whoever saved the newest snapshot, going on from it decides nothing anew and knows all."""

    async def check() -> None:
        ledger = await _play(steps)
        ends = await ledger.end("searches", 0)
        third = Replica(ledger)
        await _come_to_rest(ledger, [third])
        await third.end()
        assert await ledger.end("searches", 0) == ends

    asyncio.run(check())


@given(STEPS, st.integers(0, 40))
def test_a_decision_that_lies_there_twice_is_forwarded_once(steps: list[str], back: int) -> None:
    """However often a forwarder forwards it, its destination takes it once."""

    async def check() -> None:
        ledger = await _play(steps)
        paused = await _forward(ledger)
        await ledger.commit("t", "searches", 0, max(await ledger.end("searches", 0) - back, 0))
        await _forward(ledger)
        destination = PartitionFold(Tally())
        for record in await ledger.read("experiments", 0, 0, 10_000):
            destination.fold(record)
        ended = [destination.state(key) for key in KEYS]
        assert sum(state.ended for state in ended if state) == paused

    asyncio.run(check())


async def _forward(ledger: MemoryLedger) -> int:
    """Forward each pause as the end of a trial; return how many pauses there are."""

    def translate(data: ExperimentPaused) -> list[Payload]:
        key = data.experiment_id
        return [
            AllocationLost(
                pool="p",
                allocation_id="a",
                experiment_id=key,
                trial_id=f"{key}.0",
                run=1,
                reason="",
            )
        ]

    it = Relay(
        "t", "searches", "/rung/checkpoint-gc", ExperimentPaused, ("experiments",), translate
    )
    forwarder = _Relaying(ledger, it, 0)
    task = asyncio.create_task(forwarder.run())
    for _ in range(5):
        await _settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    recorded = [decode(r.value) for r in await ledger.read("searches", 0, 0, 10_000)]
    return len({event.id for event in recorded if isinstance(event.data, ExperimentPaused)})


async def test_a_late_writer_is_noticed() -> None:
    """Its append does not land where it thought, so it is fenced, folds again, and is right."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, pause(1, "a"))
    sleeper = Replica(ledger)
    await _settle()
    sleeper.turns.give()  # reads the fact, decides, and falls asleep before it appends
    await _settle()
    owner = Replica(ledger)
    await _append(ledger, pause(2, "b"))
    await _come_to_rest(ledger, [owner])
    assert await ledger.end("searches", 0) == 4
    sleeper.turns.give()  # wakes
    await _settle()
    assert await ledger.end("searches", 0) == 6
    await _come_to_rest(ledger, [sleeper, owner])
    assert sleeper.fenced == 1
    assert await ledger.end("searches", 0) == 6
    assert (await audit(ledger, Tally())).decisions == 4
    await sleeper.end()
    await owner.end()
