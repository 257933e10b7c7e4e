"""The simulated world: a clock, a ledger, and the readers that it wakes.

One thread, no sleeping: time jumps from one happening to the next. Latencies are drawn from the
seed, so that each seed is another interleaving of the same parts.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable

from msgspec import Struct

from rung.events import Event, Payload, encode, fact
from rung.ledger import Record

LATENCY_MS_MAX = 20


class Faults(Struct, frozen=True, kw_only=True):
    """How often things go wrong; probabilities per occasion."""

    decider_crash: float = 0.0
    """A decider dies after a fact, its decisions perhaps half appended."""
    forwarder_crash: float = 0.0
    """A forwarder dies before it remembered its position, and forwards again."""
    agent_crash: float = 0.0
    """An agent dies during a unit of training, with all it runs, and comes back."""
    trial_crash: float = 0.0
    """A trial's process dies during a unit of training."""
    repeat: float = 0.0
    """A fact is delivered twice."""
    pause: float = 0.0
    """Somebody pauses the experiment during a unit of training, and resumes it later."""
    damage: float = 0.0
    """A checkpoint turns out damaged when it is restored."""


class World:
    """Clock, ledger and wake-ups of one simulation.

    Attributes:
        now_ms: virtual time.
        random: the only source of chance.
        topics: every record, by topic; each topic has one partition here.
        deleted: checkpoints whose files are gone.
    """

    def __init__(self, seed: int, faults: Faults) -> None:
        self.now_ms = 0
        self.random = random.Random(seed)  # noqa: S311 - a simulation must be repeatable
        self.faults = faults
        self.topics: dict[str, list[Record]] = defaultdict(list)
        self.deleted: set[str] = set()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._readers: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._numbers: dict[str, int] = defaultdict(int)

    def happens(self, probability: float) -> bool:
        """Draw whether something of that probability happens."""
        return probability > 0 and self.random.random() < probability

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen later; what is due at one moment happens in the order asked."""
        self._order += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._order, action))

    def subscribe(self, topic: str, wake: Callable[[], None]) -> None:
        """Wake a reader some time after each append to a topic."""
        self._readers[topic].append(wake)

    def append(self, event: Event) -> int:
        """Append an event, wake the readers of its topic, and return its position."""
        records = self.topics[event.topic]
        records.append(Record(event.topic, 0, len(records), event.key, encode(event)))
        for wake in self._readers[event.topic]:
            self.after(self.random.randint(1, LATENCY_MS_MAX), wake)
        return len(records) - 1

    def write(self, data: Payload, origin: str) -> None:
        """Append a fact under its origin's next number, now and then twice."""
        self._numbers[origin] += 1
        event = fact(
            data,
            source=f"/rung/{data.WRITER}",
            origin=origin,
            sequence=self._numbers[origin],
            time=f"{self.now_ms}",
        )
        self.append(event)
        if self.happens(self.faults.repeat):
            self.append(event)

    def run(self, *, happenings_max: int) -> None:
        """Let everything happen until nothing is left to happen.

        Raises:
            AssertionError: it does not come to rest.
        """
        for _ in range(happenings_max):
            if not self._agenda:
                return
            self.now_ms, _, action = heapq.heappop(self._agenda)
            action()
        raise AssertionError(f"no rest after {happenings_max} happenings")
