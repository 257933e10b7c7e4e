"""What is known of one pool: its agents, what waits, what runs."""

from msgspec import Struct, field

from rung.events.trial import Withdrawal
from rung.scheduler.placement import Room
from rung.scheduler.queue import Queue, Request


class Allocation(Struct, kw_only=True):
    """An allocation that was granted and is not over."""

    experiment_id: str
    trial_id: str
    run: int
    parts: dict[str, list[int]]
    """Agent id → the slots it gives, until it released them."""
    signaled: Withdrawal | None = None
    lost: bool = False


class State(Struct, kw_only=True):
    """One pool."""

    pool: str
    room: Room = field(default_factory=Room)
    """The agents that are there, and their idle slots."""
    incarnations: dict[str, int] = field(default_factory=dict[str, int])
    """The highest incarnation of every agent that ever joined."""
    runs_on: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Agent id → the allocations that have a part on it."""
    queue: Queue = field(default_factory=Queue)
    zero_slot_queue: Queue = field(default_factory=Queue)
    allocations: dict[str, Allocation] = field(default_factory=dict[str, Allocation])
    held: dict[str, int] = field(default_factory=dict[str, int])
    """Experiment id → how many slots it holds."""
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
