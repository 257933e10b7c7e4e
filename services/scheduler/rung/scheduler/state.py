"""What is known of one pool: its agents, what waits, what runs."""

from msgspec import Struct, field

from rung.events.allocation import AgentJoined, JoinRefused
from rung.events.trial import Withdrawal
from rung.scheduler.placement import Offer, Room
from rung.scheduler.queue import Queue, Request


class Allocation(Struct, kw_only=True):
    """An allocation that was granted and is not over."""

    experiment_id: str
    trial_id: str
    run: int
    priority: int
    arrival: int
    """Its request's."""
    parts: dict[str, list[int]]
    """Agent id → the slots it gives, until it released them."""
    signaled: Withdrawal | None = None
    withdrawn: bool = False
    """Whether the searcher no longer wants it, so that nothing is owed to the trial."""
    lost: bool = False
    slotted: bool = True
    """Whether it was granted slots, and not just a place."""

    @property
    def stays(self) -> bool:
        """Whether it will keep its slots for as long as nobody interferes."""
        return self.signaled is None and not self.withdrawn and not self.lost


class Claim(Struct, kw_only=True):
    """What a trial that was asked to yield finds when it comes back with its next run."""

    arrival: int | None = None
    """Its place in the order; None: at the end."""
    avoid: list[str] = field(default_factory=list[str])
    """The agents that somebody wanted it away from."""
    to: str | None = None
    """The agent that somebody wanted it on."""


class Suspension(Struct, kw_only=True):
    """An agent that offers nothing for the moment."""

    offer: Offer
    """What it will offer again: as in the room, but not in its indexes."""
    reason: str


class State(Struct, kw_only=True):
    """One pool."""

    pool: str
    room: Room = field(default_factory=Room)
    """The agents that are there, and their idle slots."""
    incarnations: dict[str, int] = field(default_factory=dict[str, int])
    """The highest incarnation of every agent that ever joined."""
    joins: dict[str, AgentJoined] = field(default_factory=dict[str, AgentJoined])
    """Agent id → the join that its present life began with, where that has a session."""
    suspended: dict[str, Suspension] = field(default_factory=dict[str, Suspension])
    """Agent id → what it offered before it was suspended."""
    refused: dict[str, JoinRefused] = field(default_factory=dict[str, JoinRefused])
    """Session → agents that live and use another one's id."""
    runs_on: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Agent id → the allocations that have a part on it."""
    queue: Queue = field(default_factory=Queue)
    zero_slot_queue: Queue = field(default_factory=Queue)
    allocations: dict[str, Allocation] = field(default_factory=dict[str, Allocation])
    held: dict[str, int] = field(default_factory=dict[str, int])
    """Experiment id → how many slots it holds."""
    staying: dict[int, int] = field(default_factory=dict[int, int])
    """Priority → how many allocations of it stay that hold slots."""
    departing: dict[str, None] = field(default_factory=dict[str, None])
    """Allocations that hold slots and are on their way out."""
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    """By trial, the oldest first."""
    arrivals: int = 0
    leaving: dict[str, Request] = field(default_factory=dict[str, Request])
    """Withdrawn while waiting; dropped by the same fact's decisions."""
    stricken: dict[str, str] = field(default_factory=dict[str, str])
    """Allocation id → what became of its agent; lost by the same fact's decisions."""

    def queue_of(self, slots: int) -> Queue:
        """Return the queue in which a request of so many slots waits."""
        return self.queue if slots else self.zero_slot_queue

    def knows(self, allocation_id: str) -> bool:
        """Return whether the allocation waits or runs."""
        return (
            allocation_id in self.allocations
            or allocation_id in self.queue
            or allocation_id in self.zero_slot_queue
        )

    def count_out(self, allocation_id: str) -> None:
        """Take an allocation that holds slots out of those that stay, if it was one."""
        allocation = self.allocations[allocation_id]
        if allocation.stays and allocation.slotted:
            self.departing[allocation_id] = None
            left = self.staying.pop(allocation.priority) - 1
            if left:
                self.staying[allocation.priority] = left

    def hold(self, experiment_id: str, slots: int) -> None:
        """Note that an experiment holds so many slots more, or fewer."""
        held = self.held.pop(experiment_id, 0) + slots
        if held:
            self.held[experiment_id] = held
        self.queue.hold(experiment_id, held)
        self.zero_slot_queue.hold(experiment_id, held)
