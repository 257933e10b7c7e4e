"""Where an allocation fits: the idle slots of a pool's agents, and the best place among them.

An allocation is a gang: it gets all of its slots at once or none. As in Determined, it goes

1. to one agent that has enough idle slots, the one with the fewest of them (so that large gaps
   stay whole), the smallest id among equals;
2. else to several agents that are wholly idle and of equal size, where its slots are a multiple of
   that size: the largest such size (the fewest agents), the smallest ids;
3. an allocation of no slots, to the agent with the fewest such allocations, up to a limit.

Not handled: agents of different sizes in one gang, and racks. Nothing here is random, and every
look-up costs in proportion to the number of slots of the largest agent, not to the number of
agents.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, field

from rung.events.allocation import Share

ZERO_SLOT_MAX: Final = 100
"""How many allocations of no slots one agent runs at once, as in Determined."""


class Offer(Struct, frozen=True, kw_only=True):
    """What one agent has; replaced, never changed, so that a fork of the room may share it."""

    incarnation: int
    size: int
    """How many slots it has, idle or not."""
    idle: list[int]
    """Ids of its idle slots, sorted."""
    zero_slot: int = 0
    """How many allocations of no slots it runs."""


def given_back(offer: Offer, slots: list[int]) -> Offer:
    """Return an offer with more idle slots; no slots stand for an allocation of none."""
    return Offer(
        incarnation=offer.incarnation,
        size=offer.size,
        idle=sorted(offer.idle + slots),
        zero_slot=offer.zero_slot - (not slots),
    )


class Room(Struct, kw_only=True):
    """The agents of a pool, indexed by what they have left.

    An index is a list of sorted lists of agent ids, at the place of the number that they share.
    """

    agents: dict[str, Offer] = field(default_factory=dict[str, Offer])
    sizes: list[int] = field(default_factory=list[int])
    """How many agents there are of each size."""
    by_idle: list[list[str]] = field(default_factory=list[list[str]])
    """Agents by their number of idle slots."""
    whole: list[list[str]] = field(default_factory=list[list[str]])
    """Agents of which every slot is idle, by size."""
    by_zero_slot: list[list[str]] = field(default_factory=list[list[str]])
    """Agents by their number of allocations of no slots."""

    def fork(self) -> "Room":
        """Return a copy to plan on."""
        return Room(
            agents=dict(self.agents),
            sizes=list(self.sizes),
            by_idle=[list(ids) for ids in self.by_idle],
            whole=[list(ids) for ids in self.whole],
            by_zero_slot=[list(ids) for ids in self.by_zero_slot],
        )

    @contextmanager
    def without(self, agent_ids: Collection[str]) -> Iterator[None]:
        """Take agents out of the indexes, so that nothing fits on them, within a block."""
        for agent_id in agent_ids:
            self._unindex(agent_id)
            self.sizes[self.agents[agent_id].size] -= 1
        try:
            yield
        finally:
            for agent_id in agent_ids:
                self._index(agent_id)
                self.sizes[self.agents[agent_id].size] += 1

    def join(self, agent_id: str, incarnation: int, slots: Sequence[int]) -> None:
        """Take an agent in, all of its slots idle."""
        idle = sorted(dict.fromkeys(slots))
        self.take_in(agent_id, Offer(incarnation=incarnation, size=len(idle), idle=idle))

    def take_in(self, agent_id: str, offer: Offer) -> None:
        """Take an agent in with what it offers."""
        self.agents[agent_id] = offer
        while len(self.sizes) <= offer.size:
            self.sizes.append(0)
        self.sizes[offer.size] += 1
        self._index(agent_id)

    def leave(self, agent_id: str) -> Offer:
        """Forget an agent and its slots; return what it offered."""
        self._unindex(agent_id)
        offer = self.agents.pop(agent_id)
        self.sizes[offer.size] -= 1
        return offer

    def take(self, share: Share) -> None:
        """Let an allocation have slots that are idle."""
        offer = self.agents[share.agent_id]
        idle = [slot for slot in offer.idle if slot not in share.slots]
        assert len(idle) == len(offer.idle) - len(share.slots), (share, offer)
        self._replace(share.agent_id, idle, offer.zero_slot + (not share.slots))

    def give_back(self, agent_id: str, slots: list[int]) -> None:
        """Let slots be idle again; no slots stand for an allocation of none."""
        offer = given_back(self.agents[agent_id], slots)
        self._replace(agent_id, offer.idle, offer.zero_slot)

    def fit(self, slots: int) -> list[Share] | None:
        """Return where an allocation of so many slots goes now, None if nowhere."""
        if slots == 0:
            return self._fit_none()
        for ids in self.by_idle[slots:]:
            if ids:
                return [self._share(ids[0], slots)]
        for size in range(min(slots, len(self.whole)) - 1, 0, -1):
            count, rest = divmod(slots, size)
            if not rest and len(self.whole[size]) >= count:
                return [self._share(agent_id, size) for agent_id in self.whole[size][:count]]
        return None

    def fit_on(self, agent_id: str, slots: int) -> list[Share] | None:
        """Return the share of an agent in an allocation that goes there alone, None if it cannot.

        Raises:
            KeyError: there is no such agent.
        """
        offer = self.agents[agent_id]
        has_room = len(offer.idle) >= slots if slots else offer.zero_slot < ZERO_SLOT_MAX
        return [self._share(agent_id, slots)] if has_room else None

    def could_fit(self, slots: int) -> bool:
        """Return whether the allocation would fit if every slot were idle."""
        if slots <= 0:
            return slots == 0 and any(self.sizes)
        if any(self.sizes[slots:]):
            return True
        return any(
            count and slots % size == 0 and count >= slots // size
            for size, count in enumerate(self.sizes)
            if size
        )

    def _fit_none(self) -> list[Share] | None:
        for ids in self.by_zero_slot[:ZERO_SLOT_MAX]:
            if ids:
                return [self._share(ids[0], 0)]
        return None

    def _share(self, agent_id: str, slots: int) -> Share:
        offer = self.agents[agent_id]
        return Share(agent_id=agent_id, incarnation=offer.incarnation, slots=offer.idle[:slots])

    def _replace(self, agent_id: str, idle: list[int], zero_slot: int) -> None:
        self._unindex(agent_id)
        old = self.agents[agent_id]
        self.agents[agent_id] = Offer(
            incarnation=old.incarnation, size=old.size, idle=idle, zero_slot=zero_slot
        )
        self._index(agent_id)

    def _index(self, agent_id: str) -> None:
        offer = self.agents[agent_id]
        _put(self.by_idle, len(offer.idle), agent_id)
        _put(self.by_zero_slot, offer.zero_slot, agent_id)
        if len(offer.idle) == offer.size:
            _put(self.whole, offer.size, agent_id)

    def _unindex(self, agent_id: str) -> None:
        offer = self.agents[agent_id]
        _drop(self.by_idle, len(offer.idle), agent_id)
        _drop(self.by_zero_slot, offer.zero_slot, agent_id)
        if len(offer.idle) == offer.size:
            _drop(self.whole, offer.size, agent_id)


def _put(index: list[list[str]], number: int, agent_id: str) -> None:
    while len(index) <= number:
        index.append([])
    insort(index[number], agent_id)


def _drop(index: list[list[str]], number: int, agent_id: str) -> None:
    place = bisect_left(index[number], agent_id)
    assert index[number][place] == agent_id, (number, agent_id)
    del index[number][place]
