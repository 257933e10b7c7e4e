"""Events of a resource pool: agents join and leave, allocations are granted and released."""

from typing import Any, ClassVar, Literal

from msgspec import Struct

from rung.events import topic
from rung.events.topic import Relayed
from rung.events.trial import RunSpec, Withdrawal


class Slot(Struct, frozen=True, kw_only=True):
    """One schedulable device of an agent."""

    id: int
    kind: Literal["cpu", "cuda", "rocm"]
    name: str
    """For people: `NVIDIA H200`, `CPU slot 0`."""


class AgentEvent(Struct, frozen=True, kw_only=True):
    """A fact about one incarnation of an agent."""

    TOPIC: ClassVar[str] = topic.POOLS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    agent_id: str
    incarnation: int


class Placement(Struct, frozen=True, kw_only=True):
    """A decision that agents carry out."""

    TOPIC: ClassVar[str] = topic.PLACEMENTS
    WRITER: ClassVar[str] = "scheduler"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "agent", "gateway")

    pool: str


class AgentJoined(AgentEvent, frozen=True, kw_only=True):
    """An agent started and offers its slots, all of them idle.

    A higher incarnation of a known agent means that the runs of the earlier one are gone. The
    scheduler answers a join that it refuses by `JoinRefused`.
    """

    TYPE: ClassVar[str] = "rung.agent.joined.v1"

    hostname: str
    slots: list[Slot]
    folder: str = ""
    """Path of the agent's own folder on that host."""
    folder_id: str = ""
    """Drawn when the folder was made, and kept in it."""
    session: str = ""
    """Drawn at each start of the agent's process. Joins without one are never refused: they are
    of an earlier release."""
    isolation: str = ""
    """What keeps its trials from acting as the agent and as each other: `namespaces`, `user ids
    60000-60999`, `none: …` with the reason. Empty: not known."""
    seen_ms: int | None = None
    """When its life before was last there, since 1970 and by its clock; None: not known."""


def same_agent(first: AgentJoined, second: AgentJoined) -> bool:
    """Return whether two joins under one id are starts of the same agent: one folder of one host.

    True where one of them, of an earlier release, has no folder id.
    """
    if not first.folder_id or not second.folder_id:
        return True
    return (first.folder_id, first.hostname) == (second.folder_id, second.hostname)


class JoinRefused(Placement, frozen=True, kw_only=True):
    """The scheduler refused an agent's join: its slots are not offered.

    Either another agent uses the id, or the incarnation is not above the one on record, because
    the agent's folder was restored from a backup. The agent joins again, above `known`, once no
    other agent uses the id.
    """

    TYPE: ClassVar[str] = "rung.agent.join_refused.v1"

    agent_id: str
    incarnation: int
    session: str
    known: int
    """The incarnation on record."""
    in_use: bool
    """Whether that one has neither left nor been lost."""
    reason: str


class AgentSuspended(AgentEvent, frozen=True, kw_only=True):
    """An agent takes no new allocations until it resumes; its runs continue."""

    TYPE: ClassVar[str] = "rung.agent.suspended.v1"

    session: str
    """That of its join."""
    reason: str


class AgentResumed(AgentEvent, frozen=True, kw_only=True):
    """A suspended agent offers its idle slots again."""

    TYPE: ClassVar[str] = "rung.agent.resumed.v1"

    session: str
    """That of its join."""


class DrainRequested(AgentEvent, frozen=True, kw_only=True):
    """An agent will leave soon: its runs are to continue elsewhere, and it takes no new ones."""

    TYPE: ClassVar[str] = "rung.agent.drain_requested.v1"

    reason: str


class AgentLeft(AgentEvent, frozen=True, kw_only=True):
    """An agent shut down gracefully; nothing runs on it any more."""

    TYPE: ClassVar[str] = "rung.agent.left.v1"

    session: str = ""
    """That of its join."""


class AgentLost(AgentEvent, frozen=True, kw_only=True):
    """An agent's heartbeats stopped; written by the scheduler's failure detector."""

    TYPE: ClassVar[str] = "rung.agent.lost.v1"
    WRITER: ClassVar[str] = "scheduler"

    silent_ms: int


class PoolConfigured(Struct, frozen=True, kw_only=True):
    """The pool's slots are given by this policy from here on."""

    TYPE: ClassVar[str] = "rung.pool.configured.v1"
    TOPIC: ClassVar[str] = topic.POOLS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    policy: str
    """Its name; `priority` where a pool was never configured."""
    options: dict[str, Any]
    """The policy's own; those that are absent have their defaults."""


class MoveRequested(Struct, frozen=True, kw_only=True):
    """A user asked to move a trial: it checkpoints, releases its slots and resumes elsewhere."""

    TYPE: ClassVar[str] = "rung.trial.move_requested.v1"
    TOPIC: ClassVar[str] = topic.POOLS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    experiment_id: str
    trial_id: str
    to: str | None
    """The agent to resume on; None: any but those that it leaves."""


class AllocationReleased(Struct, frozen=True, kw_only=True):
    """An agent's part of an allocation is over: its processes are gone, its slots are idle."""

    TYPE: ClassVar[str] = "rung.allocation.released.v1"
    TOPIC: ClassVar[str] = topic.POOLS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    allocation_id: str
    agent_id: str
    incarnation: int
    failed: str = ""
    """What went wrong, where this part of several failed: the others are to be stopped."""
    machine: bool = False
    """Whether that failure is the machine's, such as a full disk."""


class AllocationAddressed(Struct, frozen=True, kw_only=True):
    """An agent's part of an allocation over several agents can be reached by the others."""

    TYPE: ClassVar[str] = "rung.allocation.addressed.v1"
    TOPIC: ClassVar[str] = topic.POOLS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("agent",)

    pool: str
    allocation_id: str
    agent_id: str
    incarnation: int
    host: str
    """A name or an address of the agent's machine that the other agents reach."""
    ports: list[int]
    """Reserved for the allocation: the first for the rendezvous, then one for each rank."""
    public_key: str
    """Of the agent for this allocation, in hexadecimal digits; from it and another agent's private
    key comes the key that both share, by which the processes of the run know each other."""


class Share(Struct, frozen=True, kw_only=True):
    """The slots that one agent gives to an allocation."""

    agent_id: str
    incarnation: int
    slots: list[int]


class AllocationGranted(Placement, frozen=True, kw_only=True):
    """The allocation has its slots; the agents named start the run (the first is the chief)."""

    TYPE: ClassVar[str] = "rung.allocation.granted.v1"

    allocation_id: str
    shares: list[Share]
    spec: RunSpec


class AllocationSignaled(Placement, frozen=True, kw_only=True):
    """The agents named stop the run; they then report its exit and the release."""

    TYPE: ClassVar[str] = "rung.allocation.signaled.v1"

    allocation_id: str
    agents: list[str]
    how: Withdrawal
    reason: str = ""
    """What failed on another agent of the allocation, where that is why."""
    machine: bool = False
    """Whether that failure is a machine's, and so the run's."""
    final: bool = False
    """Whether the search stopped the trial: no later run needs a checkpoint of its last step."""


class UnplacedRun(Placement, frozen=True, kw_only=True):
    """A decision by which a run ends without an exit."""

    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "searcher")

    allocation_id: str
    experiment_id: str
    trial_id: str
    run: int
    reason: str


class AllocationLost(UnplacedRun, frozen=True, kw_only=True):
    """A granted allocation was lost with one of its agents; the others kill their part."""

    TYPE: ClassVar[str] = "rung.allocation.lost.v1"
    READERS: ClassVar[tuple[str, ...]] = (
        "scheduler",
        "searcher",
        "checkpoint-gc",
        "agent",
        "gateway",
    )


class AllocationDropped(UnplacedRun, frozen=True, kw_only=True):
    """A waiting allocation was withdrawn before it got its slots."""

    TYPE: ClassVar[str] = "rung.allocation.dropped.v1"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "searcher", "checkpoint-gc", "gateway")
