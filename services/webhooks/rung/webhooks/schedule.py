"""Schedule: which delivery of a webhook is tried when. Pure; time comes in as milliseconds.

Deliveries of one experiment form a *lane*: the next is tried once the one before has ended. Lanes
go on side by side, a few at once. A failed attempt lets its lane wait, longer each time, and after
`patience_ms` its delivery is given up, so that no event holds up its lane for ever.

Several failures one after the other are the receiver's: then only one attempt is made at a time,
with growing pauses, whichever lanes wait. Once one succeeds the lanes that failed meanwhile go on.
"""

import random
from collections import deque
from typing import Final, NamedTuple

from msgspec import Struct, field

from rung.webhooks.settings import Settings

AT_ONCE: Final = 4
"""Attempts at one receiver."""
WAITING_MAX: Final = 100_000
"""Deliveries of one webhook; what comes beyond is given up at once."""
_PAUSE_MS: Final = 1_000
_PAUSE_MAX_MS: Final = 60_000
_OUTAGE: Final = 3
"""So many failures one after the other are the receiver's."""


class Waiting(Struct):
    """A delivery that has not ended."""

    delivery_id: str
    position: int
    """Where its request lies."""
    since_ms: int
    attempts: int = 0


class Lane(Struct):
    """The deliveries of one experiment to one webhook."""

    name: str
    waiting: deque[Waiting] = field(default_factory=deque[Waiting])
    next_ms: int = 0
    """Before then nothing is tried."""
    busy: bool = False


class Verdict(NamedTuple):
    """What follows from a failed attempt."""

    dead: bool
    next_ms: int


class Schedule:
    """The deliveries of one webhook."""

    def __init__(self, settings: Settings, chance: random.Random) -> None:
        """Begin with none; `chance` spreads attempts over time."""
        self._settings = settings
        self._chance = chance
        self._lanes: dict[str, Lane] = {}
        self._known: dict[str, Lane] = {}
        self._failures = 0
        self._pause_until_ms = 0
        self._busy = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def lowest(self) -> int | None:
        """The lowest position of a delivery that has not ended."""
        found = (each.position for lane in self._lanes.values() for each in lane.waiting)
        return min(found, default=None)

    def add(self, lane: str, waiting: Waiting) -> bool:
        """Take a delivery; return False if it waits already."""
        if waiting.delivery_id in self._known:
            return False
        found = self._lanes.setdefault(lane, Lane(lane))
        found.waiting.append(waiting)
        self._known[waiting.delivery_id] = found
        return True

    def attempted(self, delivery_id: str, attempts: int, next_ms: int) -> None:
        """Take over what is on record of attempts at a delivery."""
        lane = self._known.get(delivery_id)
        if lane is not None and lane.waiting[0].delivery_id == delivery_id:
            lane.waiting[0].attempts, lane.next_ms = attempts, next_ms

    def hurry(self, delivery_id: str) -> None:
        """Try a delivery that waits now, and what waits before it: a person asked for that."""
        lane = self._known.get(delivery_id)
        if lane is not None:
            lane.next_ms = self._pause_until_ms = 0

    def end(self, delivery_id: str) -> None:
        """Take out a delivery."""
        lane = self._known.pop(delivery_id, None)
        if lane is None:
            return
        lane.waiting = deque(each for each in lane.waiting if each.delivery_id != delivery_id)
        if not lane.waiting and not lane.busy:
            self._lanes.pop(lane.name, None)

    def begin(self, now_ms: int) -> list[tuple[Lane, Waiting]]:
        """Return what is to be tried now; each lane is busy until `succeeded` or `failed`."""
        room = (1 if self._failures else AT_ONCE) - self._busy
        if room <= 0 or now_ms < self._pause_until_ms:
            return []
        ready = [
            lane
            for lane in self._lanes.values()
            if lane.waiting and not lane.busy and lane.next_ms <= now_ms
        ]
        ready.sort(key=lambda lane: (lane.next_ms, lane.waiting[0].position))
        for lane in ready[:room]:
            lane.busy = True
            self._busy += 1
        return [(lane, lane.waiting[0]) for lane in ready[:room]]

    def due_ms(self) -> int | None:
        """Return when something may be tried next; None: nothing waits, or attempts go on."""
        if self._busy >= (1 if self._failures else AT_ONCE):
            return None
        waiting = [lane.next_ms for lane in self._lanes.values() if lane.waiting and not lane.busy]
        return max(min(waiting), self._pause_until_ms) if waiting else None

    def succeeded(self, lane: Lane) -> None:
        """Take the end of an attempt that delivered."""
        self._leave(lane)
        if self._failures >= _OUTAGE:
            for each in self._lanes.values():
                each.next_ms = 0
        self._failures = self._pause_until_ms = 0
        lane.next_ms = 0
        self.end(lane.waiting[0].delivery_id)

    def failed(self, lane: Lane, now_ms: int, retry_after_ms: int) -> Verdict:
        """Take the end of an attempt that failed; a dead delivery is taken out."""
        self._leave(lane)
        it = lane.waiting[0]
        it.attempts += 1
        self._failures += 1
        most_ms = min(_PAUSE_MAX_MS, int(self._settings.retry_max_s * 1000))
        pause_ms = min(_PAUSE_MS << min(self._failures - 1, 20), most_ms)
        if self._failures < _OUTAGE:
            pause_ms = 0
        wait_until_ms = now_ms + max(pause_ms, retry_after_ms)
        self._pause_until_ms = max(self._pause_until_ms, wait_until_ms)
        settings = self._settings
        bound_s = min(settings.retry_s * 2.0 ** min(it.attempts - 1, 40), settings.retry_max_s)
        wait_ms = int(bound_s * 1000 * self._chance.uniform(0.5, 1.0))
        lane.next_ms = now_ms + max(wait_ms, retry_after_ms)
        dead = lane.next_ms - it.since_ms > settings.patience_s * 1000
        if dead:
            lane.next_ms = 0
            self.end(it.delivery_id)
        return Verdict(dead, lane.next_ms)

    def released(self, lane: Lane) -> None:
        """Take the end of an attempt that says nothing of the receiver."""
        self._leave(lane)
        self.end(lane.waiting[0].delivery_id)

    def clear(self) -> list[Waiting]:
        """Take out all that nobody is trying; return it."""
        found = [
            each
            for lane in self._lanes.values()
            for each in list(lane.waiting)[1 if lane.busy else 0 :]
        ]
        for each in found:
            self.end(each.delivery_id)
        return found

    def _leave(self, lane: Lane) -> None:
        lane.busy = False
        self._busy -= 1
