"""The state of one pool: its policy, its agents, what waits, what runs."""

from collections.abc import Collection
from typing import Any

from msgspec import Struct, field

from rung.events.allocation import AgentJoined, JoinRefused
from rung.events.trial import Withdrawal
from rung.scheduler.placement import Offer, Room
from rung.scheduler.queue import Demand, Queue, Ranked, Request


class Allocation(Demand, kw_only=True):
    """An allocation that was granted and is not over."""

    trial_id: str
    run: int
    parts: dict[str, list[int]]
    """Agent id → the slots it gives, until it released them."""
    signaled: Withdrawal | None = None
    withdrawn: bool = False
    """Whether the searcher no longer wants it, so that its trial gets no claim."""
    lost: bool = False

    @property
    def stays(self) -> bool:
        """Whether it keeps its slots until a signal, a withdrawal or a loss."""
        return self.signaled is None and not self.withdrawn and not self.lost


class Claim(Struct, kw_only=True):
    """Where the next run of a trial goes that was asked to yield or to move."""

    arrival: int | None = None
    """Its place in the order; None: at the end."""
    avoid: list[str] = field(default_factory=list[str])
    """The agents that it was moved away from."""
    to: str | None = None
    """The agent that it was moved to."""


class Suspension(Struct, kw_only=True):
    """An agent that offers nothing until it is resumed."""

    offer: Offer
    """What it will offer again: as in the room, but not in its indexes."""
    reason: str


class State(Struct, kw_only=True, dict=True):
    """One pool.

    The indexes of allocations are no fields: they follow from the fields, and no snapshot holds
    them.
    """

    pool: str
    policy: str = "priority"
    """The name of its policy, until `pool.configured` says another one."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The policy's."""
    level: int = 1
    """The logic level of its decisions."""
    room: Room = field(default_factory=Room)
    """The agents that are there, and their idle slots."""
    incarnations: dict[str, int] = field(default_factory=dict[str, int])
    """The highest incarnation of every agent that ever joined."""
    joins: dict[str, AgentJoined] = field(default_factory=dict[str, AgentJoined])
    """Agent id → the join that began its present life, where that has a session."""
    suspended: dict[str, Suspension] = field(default_factory=dict[str, Suspension])
    """Agent id → what it offered before it was suspended."""
    refused: dict[str, JoinRefused] = field(default_factory=dict[str, JoinRefused])
    """Session → refused agents that use the id of another one that is there."""
    runs_on: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Agent id → the allocations that have a part on it."""
    queue: Queue = field(default_factory=Queue)
    zero_slot_queue: Queue = field(default_factory=Queue)
    allocations: dict[str, Allocation] = field(default_factory=dict[str, Allocation])
    held: dict[str, int] = field(default_factory=dict[str, int])
    """Experiment id → how many slots it holds."""
    staying: list[Ranked] = field(default_factory=list[Ranked])
    """The allocations that hold slots and stay, sorted by rank."""
    departing: dict[str, None] = field(default_factory=dict[str, None])
    """Allocations that hold slots and were signaled, withdrawn or lost."""
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    """By trial, the oldest first."""
    arrivals: int = 0
    leaving: dict[str, Request] = field(default_factory=dict[str, Request])
    """Requests that were withdrawn; dropped by the same fact's decisions."""
    stricken: dict[str, str] = field(default_factory=dict[str, str])
    """Allocation id → why its agent is gone; lost by the same fact's decisions."""

    def __post_init__(self) -> None:
        """Build the indexes of allocations."""
        self._of_trial: dict[str, list[str]] = {}
        self._of_experiment: dict[str, dict[str, None]] = {}
        for allocation_id, allocation in self.allocations.items():
            self._note(allocation_id, allocation)

    def open(self, allocation_id: str, allocation: Allocation) -> None:
        """Add an allocation."""
        self.allocations[allocation_id] = allocation
        self._note(allocation_id, allocation)

    def close(self, allocation_id: str) -> None:
        """Drop an allocation."""
        allocation = self.allocations.pop(allocation_id)
        names = self._of_trial[allocation.trial_id]
        names.remove(allocation_id)
        if not names:
            del self._of_trial[allocation.trial_id]
        others = self._of_experiment[allocation.experiment_id]
        del others[allocation_id]
        if not others:
            del self._of_experiment[allocation.experiment_id]

    def of_trial(self, trial_id: str) -> list[str]:
        """Return the allocations of a trial, in the order of their grants."""
        return self._of_trial.get(trial_id, [])

    def of_experiment(self, experiment_id: str) -> Collection[str]:
        """Return the allocations of an experiment, in the order of their grants."""
        return self._of_experiment.get(experiment_id, {})

    def _note(self, allocation_id: str, allocation: Allocation) -> None:
        self._of_trial.setdefault(allocation.trial_id, []).append(allocation_id)
        self._of_experiment.setdefault(allocation.experiment_id, {})[allocation_id] = None
