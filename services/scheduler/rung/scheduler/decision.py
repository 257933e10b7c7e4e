"""The scheduler's decisions, made from what is known of a pool."""

from rung.events import Payload
from rung.events.allocation import (
    AgentJoined,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationSignaled,
    JoinRefused,
)
from rung.events.trial import Withdrawal
from rung.scheduler.membership import refusal
from rung.scheduler.priority import Start
from rung.scheduler.queue import Request
from rung.scheduler.state import State


def refused(state: State, event: AgentJoined) -> list[JoinRefused]:
    """Return the answer to a join that was not taken, if there is one to give."""
    join = state.joins.get(event.agent_id)
    if not event.session or join == event:
        return []
    known = state.incarnations[event.agent_id]
    there = event.agent_id in state.runs_on
    return [
        JoinRefused(
            pool=state.pool,
            agent_id=event.agent_id,
            incarnation=event.incarnation,
            session=event.session,
            known=known,
            in_use=there,
            reason=refusal(event, known=known, join=join, there=there),
        )
    ]


def lost(state: State, allocation_id: str, reason: str) -> AllocationLost:
    """Return that an allocation is gone with one of its agents."""
    allocation = state.allocations[allocation_id]
    return AllocationLost(
        pool=state.pool,
        allocation_id=allocation_id,
        experiment_id=allocation.experiment_id,
        trial_id=allocation.trial_id,
        run=allocation.run,
        reason=reason,
    )


def dropped(state: State, request: Request) -> AllocationDropped:
    """Return that a request will not be granted."""
    return AllocationDropped(
        pool=state.pool,
        allocation_id=request.allocation_id,
        experiment_id=request.experiment_id,
        trial_id=request.spec.trial_id,
        run=request.spec.run,
        reason="withdrawn before it got its slots",
    )


def signaled(
    state: State,
    allocation_id: str,
    how: Withdrawal,
    reason: str = "",
    *,
    machine: bool = False,
) -> list[Payload]:
    """Stop what runs; kill may follow preempt, anything else is a repetition."""
    allocation = state.allocations.get(allocation_id)
    if allocation is None or allocation.lost or allocation.signaled in {how, "kill"}:
        return []
    return [
        AllocationSignaled(
            pool=state.pool,
            allocation_id=allocation_id,
            agents=list(allocation.parts),
            how=how,
            reason=reason,
            machine=machine,
        )
    ]


def preempted(state: State, allocation_id: str) -> AllocationSignaled:
    """Return that an allocation is asked to yield."""
    return AllocationSignaled(
        pool=state.pool,
        allocation_id=allocation_id,
        agents=list(state.allocations[allocation_id].parts),
        how="preempt",
    )


def granted(state: State, start: Start) -> AllocationGranted:
    """Return that a request gets its slots."""
    return AllocationGranted(
        pool=state.pool,
        allocation_id=start.request.allocation_id,
        shares=start.shares,
        spec=start.request.spec,
    )
