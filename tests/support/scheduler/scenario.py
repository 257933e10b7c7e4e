"""Scenarios of one pool: facts in few words, and the scheduler folded as its host folds it."""

import msgspec

from rung.events import Payload
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AgentResumed,
    AgentSuspended,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    AllocationSignaled,
    DrainRequested,
    JoinRefused,
    MoveRequested,
    Share,
    Slot,
)
from rung.events.experiment import ResourcesChanged
from rung.events.trial import RunRequested, RunSpec, RunWithdrawn, Withdrawal
from rung.scheduler import Scheduler
from rung.scheduler.state import State
from support.runtime.bare import Bare

POOL = "default"


def joined(
    agent_id: str, slots: int = 4, incarnation: int = 1, *, folder: str = "", host: str = ""
) -> AgentJoined:
    """An agent offers slots 0, 1, …; one with a folder has a session, too."""
    return AgentJoined(
        pool=POOL,
        agent_id=agent_id,
        incarnation=incarnation,
        hostname=host or f"{agent_id}.example",
        slots=[Slot(id=number, kind="cpu", name=f"CPU slot {number}") for number in range(slots)],
        folder=folder and f"/agents/{folder}",
        folder_id=folder,
        session=folder and f"{folder}-{agent_id}-{incarnation}",
    )


def left(agent_id: str, incarnation: int = 1, *, folder: str = "") -> AgentLeft:
    """An agent goes down in good order."""
    session = folder and f"{folder}-{agent_id}-{incarnation}"
    return AgentLeft(pool=POOL, agent_id=agent_id, incarnation=incarnation, session=session)


def suspended(agent_id: str, incarnation: int = 1, *, session: str = "") -> AgentSuspended:
    """An agent takes nothing new."""
    return AgentSuspended(
        pool=POOL,
        agent_id=agent_id,
        incarnation=incarnation,
        session=session,
        reason="the disk is full",
    )


def resumed(agent_id: str, incarnation: int = 1) -> AgentResumed:
    """An agent takes allocations again."""
    return AgentResumed(pool=POOL, agent_id=agent_id, incarnation=incarnation, session="")


def lost(agent_id: str, incarnation: int = 1) -> AgentLost:
    """An agent's heartbeat stays away."""
    return AgentLost(pool=POOL, agent_id=agent_id, incarnation=incarnation, silent_ms=31_250)


def requested(
    allocation_id: str, slots: int = 1, priority: int = 42, max_slots: int | None = None
) -> RunRequested:
    """An allocation `<experiment>.<trial index>.<run>` is asked for."""
    experiment_id, index, run = allocation_id.split(".")
    return RunRequested(
        pool=POOL,
        experiment_id=experiment_id,
        reason="",
        slots=slots,
        priority=priority,
        max_slots=max_slots,
        spec=RunSpec(
            experiment_id=experiment_id,
            trial_id=f"{experiment_id}.{index}",
            trial_index=int(index),
            run=int(run),
            hparams={"lr": 0.1},
            seed=1,
            length=10,
            time_metric="batches",
            restore=[],
            code_digest=None,
            config={},
        ),
    )


def withdrawn(
    allocation_id: str, how: Withdrawal = "preempt", *, final: bool = False
) -> RunWithdrawn:
    """An allocation is no longer wanted."""
    experiment_id, index, run = allocation_id.split(".")
    return RunWithdrawn(
        experiment_id=experiment_id,
        trial_id=f"{experiment_id}.{index}",
        run=int(run),
        pool=POOL,
        how=how,
        reason="",
        final=final,
    )


def released(
    allocation_id: str,
    agent_id: str,
    incarnation: int = 1,
    failed: str = "",
    *,
    machine: bool = False,
) -> AllocationReleased:
    """An agent's part of an allocation is over."""
    return AllocationReleased(
        pool=POOL,
        allocation_id=allocation_id,
        agent_id=agent_id,
        incarnation=incarnation,
        failed=failed,
        machine=machine,
    )


def drain(agent_id: str, incarnation: int = 1) -> DrainRequested:
    """An agent will be gone soon."""
    return DrainRequested(
        pool=POOL, agent_id=agent_id, incarnation=incarnation, reason="the cloud wants it"
    )


def move(trial_id: str, to: str | None = None) -> MoveRequested:
    """Somebody wants a trial on another agent."""
    experiment_id = trial_id.rpartition(".")[0]
    return MoveRequested(pool=POOL, experiment_id=experiment_id, trial_id=trial_id, to=to)


def resources(
    experiment_id: str, priority: int = 42, max_slots: int | None = None, weight: float = 1.0
) -> ResourcesChanged:
    """An experiment has another priority, weight or limit."""
    return ResourcesChanged(
        experiment_id=experiment_id,
        pool=POOL,
        priority=priority,
        weight=weight,
        max_slots=max_slots,
    )


class Pool:
    """One pool under the scheduler."""

    def __init__(self) -> None:
        self.scheduler = Bare(Scheduler())
        self.state: State = self.scheduler.initial(POOL)
        self.history: list[Payload] = []
        """Facts, each followed by its decisions."""

    def tell(self, *facts: Payload) -> list[Payload]:
        """Fold facts as the host does and return the decisions."""
        return [decision for fact in facts for decision in self._fold(fact)]

    def then(self, *facts: Payload) -> list[str]:
        """Fold facts and return the decisions in few words."""
        return [brief(decision) for decision in self.tell(*facts)]

    def _fold(self, fact: Payload) -> list[Payload]:
        self.scheduler.evolve(self.state, fact)
        decisions = self.scheduler.decide(self.state, fact)
        for decision in decisions:
            self.scheduler.evolve(self.state, decision)
        self.history += [fact, *decisions]
        return decisions

    def restart(self) -> None:
        """Go on from a snapshot, as after a restart of the service."""
        self.state = msgspec.json.decode(msgspec.json.encode(self.state), type=State)


def brief(decision: Payload) -> str:
    """Return a decision in few words."""
    match decision:
        case AllocationGranted(allocation_id=name, shares=shares):
            return f"granted {name}: {' '.join(map(_share, shares))}"
        case AllocationSignaled(allocation_id=name, how=how, agents=agents):
            more = " (machine)" if decision.machine else " (final)" if decision.final else ""
            return f"signaled {name} {how}: {' '.join(agents)}{more}"
        case AllocationLost(allocation_id=name, reason=reason):
            return f"lost {name}: {reason}"
        case AllocationDropped(allocation_id=name):
            return f"dropped {name}"
        case JoinRefused(agent_id=name, incarnation=incarnation, known=known, in_use=in_use):
            return f"refused {name} {incarnation}, known {known}{' in use' if in_use else ''}"
        case _:
            raise AssertionError(decision)


def _share(share: Share) -> str:
    return f"{share.agent_id}{share.slots}".replace(" ", "")
