"""The simulated world: a clock, a ledger, an object store, and chance.

One thread, no sleeping: time jumps from one event to the next. Latencies and faults are drawn from
the seed, so that each seed is another interleaving of the same parts.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Final

from msgspec import Struct

from rung.backoff import CHANCE
from rung.events import Event, Payload, decode, fact
from rung.events.topic import DECISIONS
from rung.ledger import Draft, MemoryLedger, Record
from rung.ledger.effective import Effective
from rung.runtime.fact_writer import CLOCK, now
from rung.sim.objects import MemoryStore
from rung.sim.poison import FAULTY, MENDED, damaged, is_junk

LATENCY_MS_MAX: Final = 20
PARTITIONS: Final = 3
EVERYTHING: Final = 1 << 30
"""More records than any topic has."""


class Faults(Struct, frozen=True, kw_only=True):
    """How often things go wrong; probabilities per occasion."""

    processor_crash: float = 0.0
    """A processor is killed while it appends, its decisions perhaps half appended."""
    relay_crash: float = 0.0
    """A relay is killed while it appends or commits, and relays again."""
    sink_crash: float = 0.0
    """A sink is killed while it acts, or before it has recorded what it did."""
    projection_crash: float = 0.0
    """A gateway is killed in the middle of a batch, or behind one."""
    shared_crash: float = 0.0
    """What is of no other kind, such as the failure detector, is killed while it appends."""
    late: float = 0.0
    """What a killed process was appending arrives when its successor is at work."""
    refusal: float = 0.0
    """The object store is away."""
    agent_crash: float = 0.0
    """An agent dies during a unit of training, with all it runs, and comes back."""
    trial_crash: float = 0.0
    """A trial's process dies during a unit of training."""
    repeat: float = 0.0
    """A fact is delivered twice."""
    pause: float = 0.0
    """A user pauses the experiment, and resumes it later."""
    change: float = 0.0
    """A user ends a trial, extends the search, changes what it keeps, or deletes of it."""
    damage: float = 0.0
    """A checkpoint turns out damaged when it is restored."""
    poison: float = 0.0
    """A record lies beside a fact that no release can decode, or a release raises on an event."""


class Counted(Effective):
    """Reads the records of a stream that count."""

    def __call__(self, records: Iterable[Record]) -> list[Event]:
        """Return the events of the next records that count; what cannot be decoded does not."""
        events = [
            (record.topic, decode(record.value)) for record in records if not is_junk(record)
        ]
        return [event for topic, event in events if self.is_new(topic, event)]


class Reader:
    """Reads what is new on a topic, of all its partitions."""

    def __init__(self, ledger: MemoryLedger, topic: str) -> None:
        """Begin at the start of a topic."""
        self._ledger = ledger
        self._topic = topic
        self._positions = [0] * ledger.partitions(topic)

    async def new(self) -> list[Record]:
        """Return the records behind those of the last call."""
        found: list[Record] = []
        for partition, position in enumerate(self._positions):
            records = await self._ledger.read(self._topic, partition, position, EVERYTHING)
            self._positions[partition] += len(records)
            found += records
        return found


class World:
    """Clock, ledger, objects and chance of one simulation, in a `VirtualLoop`.

    From then on the runtime has its clock and its chance, in this task and those that it starts.

    Attributes:
        seed: of all chance.
        random: the only source of chance.
        ledger: what happened.
        objects: where checkpoints lie.
        kills: how often each process was killed.
        poison: how often a fact is poison, as long as releases have faults.
        mended: whether services run the release that has none.
    """

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        ledger: MemoryLedger | None = None,
        objects: MemoryStore | None = None,
    ) -> None:
        """Begin with an empty world, or with what another one left.

        Args:
            seed: of all chance.
            faults: how often things go wrong.
            ledger: an empty one if not given.
            objects: none if not given.
        """
        self.random = random.Random(seed)  # noqa: S311 - a simulation must be repeatable
        self.faults = faults
        self.ledger = ledger or MemoryLedger(partitions=PARTITIONS, ledger_id="sim")
        self.objects = objects or MemoryStore()
        self.kills: Counter[str] = Counter()
        self.poison: Final = faults.poison
        self.mended = not faults.poison
        self.seed: Final = seed
        self._clock = asyncio.get_running_loop().time
        CLOCK.set(self._clock)
        CHANCE.set(random.Random(seed))  # noqa: S311 - as above
        self._numbers: dict[str, int] = defaultdict(int)
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def now_ms(self) -> int:
        """Virtual time."""
        return round(self._clock() * 1_000)

    def happens(self, probability: float) -> bool:
        """Draw whether something of that probability happens."""
        return probability > 0 and self.random.random() < probability

    def release(self) -> int:
        """Draw which release a service starts in."""
        return MENDED if self.mended else self.random.choice(FAULTY)

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        asyncio.get_running_loop().call_later(delay_ms / 1_000, action)

    async def latency(self, ms_max: int = LATENCY_MS_MAX) -> None:
        """Return a little later."""
        await asyncio.sleep(self.random.randint(1, ms_max) / 1_000)

    async def follow(
        self, topic: str, partition: int, position: int, *, ms_max: int = LATENCY_MS_MAX
    ) -> AsyncIterator[list[Record]]:
        """Yield records of a partition for ever, some time after they were appended.

        Args:
            topic: whose.
            partition: which one.
            position: of the first record.
            ms_max: how much later at most.
        """
        async for newest in self.ledger.follow(topic, partition, position):
            if newest[-1].position < position:
                continue
            await self.latency(ms_max)
            records = await self.ledger.read(topic, partition, position, EVERYTHING)
            position = records[-1].position + 1
            yield records

    async def records(self, topic: str) -> list[Record]:
        """Return all records of a topic, partition by partition."""
        return [each for it in self.partitions(topic) for each in await self.records_of(topic, it)]

    async def records_of(self, topic: str, partition: int) -> list[Record]:
        """Return all records of a partition."""
        start = await self.ledger.start(topic, partition)
        return await self.ledger.read(topic, partition, start, EVERYTHING)

    def partitions(self, topic: str) -> range:
        """Return the partitions of a topic."""
        return range(self.ledger.partitions(topic))

    def append(self, drafts: Iterable[Draft]) -> None:
        """Append at this moment, behind what was appended before."""
        self.start(self.ledger.append(list(drafts)))

    def start(self, action: Coroutine[object, object, object]) -> None:
        """Let something happen at this moment that takes time."""
        task: asyncio.Task[object] = asyncio.create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def write(self, data: Payload, origin: str) -> None:
        """Append a fact under its origin's next number, now and then twice."""
        self._numbers[origin] += 1
        event = fact(
            data,
            source=f"/rung/{data.WRITER}",
            origin=origin,
            sequence=self._numbers[origin],
            time=now(),
        )
        draft = Draft.of(event)
        drafts = [draft, draft] if self.happens(self.faults.repeat) else [draft]
        if draft.topic in DECISIONS and self.happens(self.faults.poison):
            junk = Draft(draft.topic, draft.key, damaged(event, self.random))
            drafts.insert(self.random.randint(0, len(drafts)), junk)
        self.append(drafts)
