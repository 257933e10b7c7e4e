"""What the gateway answers about the installation as a whole."""

from typing import Any

from msgspec import Struct

from rung.events.allocation import Slot


class SlotUse(Slot, frozen=True, kw_only=True):
    """A slot and what holds it."""

    allocation_id: str | None


class Agent(Struct, kw_only=True):
    """One machine's agent."""

    id: str
    pool: str
    hostname: str
    incarnation: int
    state: str
    """joined, left or lost."""
    since: str
    slots: list[SlotUse]


class AgentList(Struct, kw_only=True):
    """All agents."""

    items: list[Agent]


class QueueItem(Struct, kw_only=True):
    """A run that waits for slots."""

    allocation_id: str
    pool: str
    experiment_id: str
    trial_id: str
    run: int
    slots: int
    priority: int
    requested_at: str
    withdrawn: bool


class Queue(Struct, kw_only=True):
    """A page of what waits: by pool, priority and age."""

    items: list[QueueItem]
    next_cursor: str | None


class DeadLetter(Struct, kw_only=True):
    """A message that a reader could not take in; it stopped nothing else."""

    at: str
    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str


class DeadLetterList(Struct, kw_only=True):
    """A page of dead letters, the newest first."""

    items: list[DeadLetter]
    next_cursor: str | None
    count: int


class PoolStatus(Struct, kw_only=True):
    """A resource pool in numbers."""

    name: str
    agents: int
    slots: int
    slots_used: int
    waiting: int


class Status(Struct, kw_only=True):
    """An installation in numbers."""

    version: str
    ledger_id: str
    experiments: dict[str, int]
    """State → how many."""
    pools: list[PoolStatus]
    dead_letters: int


class Audit(Struct, kw_only=True):
    """Whether every decision on record is what is decided today."""

    same: bool
    decisions: int
    verdicts: list[dict[str, Any]] = []
    """One per decider: process, facts, decisions, pending, differences, unreadable."""
