"""The scheduler: which allocation gets which slots on which agents.

Theory of operation
===================

The state is that of one pool. Facts: the pool is configured or upgraded; agents join, are
suspended and resumed, drained, leave and are lost; allocations are requested, withdrawn and
released; a move of a trial is requested; priority, weight and `max_slots` of an experiment are
changed. Decisions: joins are refused; allocations are granted,
signaled, lost and dropped.

An allocation that is in none of these states is unknown, and events about it are ignored:

    waiting ──granted──▶ running ──all its agents released it───────────────▶ over
       │                    │                                                  ▲
       │                    └──an agent is gone──▶ lost ──the rest released it─┤
       └──withdrawn──▶ dropped ────────────────────────────────────────────────┘

A running one is signaled (preempt, then perhaps kill) when it is withdrawn, when its trial is to
be moved, and when the policy wants its slots for something else; it ends with a release by each
agent. Where one agent's part failed, the others are signaled to kill theirs, with the same reason,
once. A trial that was only asked to yield has a *claim*: its next run takes the place in the order
that this one had, and goes where the move wants it. A withdrawal ends the claim. A request may
exclude agents; it waits where there is no other one, and those behind it in the order are placed.

Changed values hold at once for what waits and what runs. If an experiment holds
more slots than its new `max_slots`, so many of its allocations are asked to yield that it holds no
more once they have left: the newest first, and none without which it would do.

An agent is known by its incarnation, which grows with every start; events of another incarnation
than the current one are ignored. An agent's life ends when it leaves, is lost, or joins with a
higher incarnation, and never begins again: an agent that was taken for lost and is not comes back
under a higher incarnation, with all its slots idle. A drained agent offers nothing more, and its
allocations are asked to yield. A suspended one offers nothing until it is resumed; what it runs
stays. When a life ends, the allocations that had a part on it are lost, once each. Of a gang, the
other agents kill their parts; those slots stay taken until they are released.

A join that begins no life is refused, if it names a session:

* an incarnation that is not above the one on record: its folder was restored from a backup, or
  copied;
* while an agent is there, another one of its id: one with another folder, or on another host. A
  start from the same folder on the same host is the same agent, started again.

Joins of an earlier release name neither folder nor session; for them only the incarnation counts,
and they are not answered.

Facts move things, decisions confirm: `evolve` of a fact puts an allocation whose agent is gone
into `stricken`, and a waiting one that was withdrawn into `leaving`; `decide` turns these into
`AllocationLost` and `AllocationDropped`, whose `evolve` takes them out. So both are empty between
two facts, and `decide` never sees a state in which a gone agent still offers slots.

After every fact the pool's policy (`policies/`) says what starts where, and what yields. Its order
is that of the queue and of the allocations that stay; a fact that configures the pool puts both
into the order of the new policy, and what follows from that is decided at once. A policy that is
unknown here, because a newer release put it on record, stops the pool. Allocations of no
slots wait in a queue of their own: they take nothing from the others, so neither kind waits for
the other.

Invariants
----------

* A slot belongs to at most one allocation; an agent gives no more slots than it has.
* A grant never makes an experiment hold more slots than the request's `max_slots`.
* Between two facts nothing waits that the policy would start.
* Every request is answered by exactly one of granted and dropped, a grant by at most one lost.
* No allocation is asked to yield twice.

Not handled: allocation ids that come back after they are over (the runtime drops repeated facts;
the searcher counts runs).
"""

from bisect import bisect_left, insort
from typing import Final, assert_never

import msgspec

from rung.events import Payload, topic
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
    PoolConfigured,
    same_agent,
)
from rung.events.experiment import ResourcesChanged
from rung.events.installation import LEVEL, PoolUpgraded
from rung.events.trial import RunRequested, RunWithdrawn, Withdrawal
from rung.scheduler.placement import given_back
from rung.scheduler.policies import Policy, policy_of
from rung.scheduler.policies.planning import Start
from rung.scheduler.queue import UNKNOWN, Demand, Queue, Ranked, Request
from rung.scheduler.state import Allocation, Claim, State, Suspension

CLAIMS_MAX: Final = 4096
"""Trials that yielded and have not come back; some never do, so the oldest claims are dropped."""

AgentFact = AgentJoined | AgentLeft | AgentLost | DrainRequested | AgentSuspended | AgentResumed
PoolFact = (
    AgentFact
    | RunRequested
    | RunWithdrawn
    | ResourcesChanged
    | AllocationReleased
    | MoveRequested
    | PoolConfigured
    | PoolUpgraded
)
PoolDecision = (
    JoinRefused | AllocationGranted | AllocationSignaled | AllocationLost | AllocationDropped
)
Handles = PoolFact | PoolDecision


class Scheduler:
    """The processor of the topic `pools`; see `rung.runtime.Processor`."""

    name = "scheduler"
    facts = topic.POOLS
    decisions = topic.PLACEMENTS
    handles = Handles
    level = LEVEL
    version = 3
    state_type = State

    def initial(self, key: str) -> State:
        """Return a pool without agents."""
        return State(pool=key)

    def evolve(self, state: State, event: Handles) -> None:
        """Fold a fact or a decision into the pool."""
        if isinstance(event, PoolFact):
            _fold_fact(state, event)
        else:
            _fold_decision(state, event)

    def ended(self, state: State) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: a pool does not end."""
        return False

    def decide(self, state: State, fact: PoolFact) -> list[Payload]:
        """Return what follows from a fact: losses, drops, signals, then what starts now."""
        policy = policy_of(state.policy, state.options)
        decisions: list[Payload] = [
            _lost(state, allocation_id, reason) for allocation_id, reason in state.stricken.items()
        ]
        decisions += [_dropped(state, request) for request in state.leaving.values()]
        killed: list[str] = []
        if isinstance(fact, AgentJoined):
            decisions += _refused(state, fact)
        elif isinstance(fact, RunWithdrawn):
            decisions += _signaled(state, fact.allocation_id, fact.how, final=fact.final)
        elif isinstance(fact, AllocationReleased) and fact.failed and _counts(state, fact):
            signals = _signaled(
                state, fact.allocation_id, "kill", fact.failed, machine=fact.machine
            )
            decisions += signals
            killed = [fact.allocation_id] if signals else []
        asked = _asked_to_yield(state, fact)
        starts = policy.starts(state, state.queue) if state.queue.heads else []
        yielding = policy.yielding(state, starts, [*asked, *killed])
        zero_slot = state.zero_slot_queue
        unslotted = policy.starts(state, zero_slot) if zero_slot.heads else []
        decisions += [_granted(state, start) for start in (*starts, *unslotted)]
        for allocation_id in (*asked, *yielding):
            decisions += _signaled(state, allocation_id, "preempt")
        return decisions


def _fold_fact(state: State, event: PoolFact) -> None:
    match event:
        case RunRequested():
            _request(state, event)
        case RunWithdrawn():
            _withdraw(state, event.allocation_id)
        case AllocationReleased():
            _release(state, event)
        case MoveRequested():
            _move(state, event)
        case ResourcesChanged():
            _change_resources(state, event)
        case PoolConfigured():
            _configure(state, event)
        case PoolUpgraded():
            state.level = max(state.level, event.level)
        case _:
            _fold_agent(state, event)


def _fold_agent(state: State, event: AgentFact) -> None:
    match event:
        case AgentJoined():
            _join(state, event)
        case AgentLeft():
            state.refused.pop(event.session, None)
            if _is_current(state, event):
                _free(state, event.agent_id, event.incarnation, "left")
        case AgentLost():
            how = f"was silent for {event.silent_ms / 1000:.1f} s"
            _free(state, event.agent_id, event.incarnation, how)
        case DrainRequested():
            _drain(state, event)
        case AgentSuspended():
            _suspend(state, event)
        case AgentResumed():
            _resume(state, event)
        case _:
            assert_never(event)


def _fold_decision(state: State, event: PoolDecision) -> None:
    match event:
        case AllocationGranted():
            _grant(state, event)
        case AllocationSignaled():
            _signal(state, event)
        case AllocationLost():
            del state.stricken[event.allocation_id]
            allocation = state.allocations[event.allocation_id]
            _count_out(state, event.allocation_id)
            allocation.lost = True
            _close_if_over(state, event.allocation_id)
        case AllocationDropped():
            del state.leaving[event.allocation_id]
        case JoinRefused():
            if event.in_use:
                state.refused[event.session] = event
        case _:
            assert_never(event)


def _configure(state: State, event: PoolConfigured) -> None:
    """Put what waits and what holds slots into the order of another policy."""
    policy = policy_of(event.policy, event.options)
    is_same = policy == policy_of(state.policy, state.options)
    state.policy, state.options = event.policy, event.options
    if is_same:
        return  # the order stays, and so does all that is decided by it
    state.queue.rerank(policy.rank)
    state.zero_slot_queue.rerank(policy.rank)
    for allocation in state.allocations.values():
        allocation.rank = policy.rank(allocation)
    state.staying = sorted(
        Ranked(state.allocations[place.name].rank, place.name) for place in state.staying
    )


def _join(state: State, event: AgentJoined) -> None:
    known = state.incarnations.get(event.agent_id, -1)
    join = state.joins.get(event.agent_id)
    if event.incarnation <= known or (join is not None and not same_agent(join, event)):
        return
    if event.agent_id in state.runs_on:
        _end_life(state, event.agent_id, "was started again")
    if event.session:
        state.joins[event.agent_id] = event
    state.incarnations[event.agent_id] = event.incarnation
    state.room.join(event.agent_id, event.incarnation, [slot.id for slot in event.slots])
    state.runs_on[event.agent_id] = []


def _free(state: State, agent_id: str, incarnation: int, how: str) -> None:
    """End a life that leaves the agent's id free: those that were refused join again."""
    if agent_id not in state.runs_on or state.incarnations[agent_id] != incarnation:
        return
    _end_life(state, agent_id, how)
    for session in [name for name, each in state.refused.items() if each.agent_id == agent_id]:
        del state.refused[session]


def _end_life(state: State, agent_id: str, how: str) -> None:
    if agent_id in state.room.agents:
        state.room.leave(agent_id)
    state.joins.pop(agent_id, None)
    state.suspended.pop(agent_id, None)
    for allocation_id in state.runs_on.pop(agent_id):
        allocation = state.allocations[allocation_id]
        _hold(state, allocation.experiment_id, -len(allocation.parts.pop(agent_id)))
        if allocation.lost:
            _close_if_over(state, allocation_id)
        else:
            state.stricken[allocation_id] = f"agent {agent_id} {how}"


def _drain(state: State, event: DrainRequested) -> None:
    """Take an agent's slots out of the room; what runs on it holds them until it is released."""
    if state.incarnations.get(event.agent_id) == event.incarnation:
        state.suspended.pop(event.agent_id, None)
        if event.agent_id in state.room.agents:
            state.room.leave(event.agent_id)


def _is_current(state: State, event: AgentLeft | AgentSuspended | AgentResumed) -> bool:
    """Return whether a fact is of the present life of its agent, and not of a refused one."""
    if event.incarnation != state.incarnations.get(event.agent_id):
        return False
    join = state.joins.get(event.agent_id)
    return join is None or not event.session or event.session == join.session


def _suspend(state: State, event: AgentSuspended) -> None:
    """Take an agent's slots out of the room until it is resumed; what runs on it runs on."""
    if not _is_current(state, event):
        return
    if event.agent_id in state.suspended:
        state.suspended[event.agent_id].reason = event.reason
    elif event.agent_id in state.room.agents:
        offer = state.room.leave(event.agent_id)
        state.suspended[event.agent_id] = Suspension(offer=offer, reason=event.reason)


def _resume(state: State, event: AgentResumed) -> None:
    """Put an agent's idle slots back into the room."""
    if _is_current(state, event):
        suspension = state.suspended.pop(event.agent_id, None)
        if suspension is not None:
            state.room.take_in(event.agent_id, suspension.offer)


def _request(state: State, event: RunRequested) -> None:
    name = event.allocation_id
    if name in state.allocations or name in state.queue or name in state.zero_slot_queue:
        return
    claim = state.claims.pop(event.spec.trial_id, Claim())
    request = Request(
        allocation_id=name,
        experiment_id=event.experiment_id,
        slots=event.slots,
        priority=event.priority,
        max_slots=event.max_slots,
        arrival=state.arrivals if claim.arrival is None else claim.arrival,
        submission=event.submission or UNKNOWN,
        spec=event.spec,
        claimed=claim.arrival is not None,
        avoid=claim.avoid,
        to=claim.to,
        excluded=event.excluded,
    )
    request.rank = policy_of(state.policy, state.options).rank(request)
    _queue_of(state, event.slots).add(request, state.held.get(event.experiment_id, 0))
    state.arrivals += 1


def _queue_of(state: State, slots: int) -> Queue:
    return state.queue if slots else state.zero_slot_queue


def _withdraw(state: State, allocation_id: str) -> None:
    for queue in (state.queue, state.zero_slot_queue):
        if allocation_id in queue:
            state.leaving[allocation_id] = queue.remove(allocation_id)
    allocation = state.allocations.get(allocation_id)
    if allocation is not None:
        _count_out(state, allocation_id)
        allocation.withdrawn = True
        state.claims.pop(allocation.trial_id, None)


def _release(state: State, event: AllocationReleased) -> None:
    allocation = state.allocations.get(event.allocation_id)
    if allocation is None or event.agent_id not in allocation.parts:
        return
    if state.incarnations[event.agent_id] != event.incarnation:
        return
    slots = allocation.parts.pop(event.agent_id)
    if event.agent_id in state.room.agents:
        state.room.give_back(event.agent_id, slots)
    elif event.agent_id in state.suspended:
        suspension = state.suspended[event.agent_id]
        suspension.offer = given_back(suspension.offer, slots)
    state.runs_on[event.agent_id].remove(event.allocation_id)
    _hold(state, allocation.experiment_id, -len(slots))
    _close_if_over(state, event.allocation_id)


def _grant(state: State, event: AllocationGranted) -> None:
    slots = sum(len(share.slots) for share in event.shares)
    request = _queue_of(state, slots).remove(event.allocation_id)
    allocation = Allocation(
        experiment_id=request.experiment_id,
        slots=slots,
        priority=request.priority,
        max_slots=request.max_slots,
        arrival=request.arrival,
        submission=request.submission,
        rank=request.rank,
        trial_id=request.spec.trial_id,
        run=request.spec.run,
        parts={share.agent_id: share.slots for share in event.shares},
    )
    state.open(event.allocation_id, allocation)
    for share in event.shares:
        state.room.take(share)
        state.runs_on[share.agent_id].append(event.allocation_id)
    _hold(state, request.experiment_id, slots)
    if slots:
        insort(state.staying, Ranked(request.rank, event.allocation_id))


def _signal(state: State, event: AllocationSignaled) -> None:
    allocation = state.allocations[event.allocation_id]
    _count_out(state, event.allocation_id)
    allocation.signaled = event.how
    yields = event.how == "preempt" and not allocation.withdrawn
    if yields and allocation.trial_id not in state.claims:
        _set_claim(state, allocation.trial_id, Claim(arrival=allocation.arrival))


def _counts(state: State, fact: AllocationReleased) -> bool:
    """Return whether a release is of the agent's present life, if that is not over."""
    known = state.incarnations.get(fact.agent_id)
    return fact.agent_id in state.runs_on and known == fact.incarnation


def _close_if_over(state: State, allocation_id: str) -> None:
    allocation = state.allocations[allocation_id]
    if not allocation.parts:
        _count_out(state, allocation_id)
        state.departing.pop(allocation_id, None)
        state.close(allocation_id)


def _count_out(state: State, allocation_id: str) -> None:
    """Take an allocation that holds slots out of those that stay, if it was one."""
    allocation = state.allocations[allocation_id]
    if allocation.stays and allocation.slots:
        state.departing[allocation_id] = None
        _unlist(state, allocation_id)


def _unlist(state: State, allocation_id: str) -> None:
    """Take an allocation out of the sorted list of those that stay."""
    allocation = state.allocations[allocation_id]
    place = bisect_left(state.staying, Ranked(allocation.rank, allocation_id))
    assert state.staying[place].name == allocation_id, allocation_id
    del state.staying[place]


def _hold(state: State, experiment_id: str, slots: int) -> None:
    """Note that an experiment holds so many slots more, or fewer."""
    held = state.held.pop(experiment_id, 0) + slots
    if held:
        state.held[experiment_id] = held
    state.queue.hold(experiment_id, held)
    state.zero_slot_queue.hold(experiment_id, held)


def _move(state: State, event: MoveRequested) -> None:
    """Note where the trial's next run shall go; one that waits goes there at once."""
    for name in state.of_trial(event.trial_id):
        allocation = state.allocations[name]
        if not allocation.lost:
            claim = Claim(arrival=allocation.arrival, avoid=list(allocation.parts), to=event.to)
            _set_claim(state, event.trial_id, claim)
            return
    for queue in (state.queue, state.zero_slot_queue):
        request = queue.of_trial(event.trial_id)
        if request is not None:
            if event.to is not None:
                queue.remove(request.allocation_id)
                request = msgspec.structs.replace(request, to=event.to)
                queue.add(request, state.held.get(request.experiment_id, 0))
            return
    if event.to is not None:
        _set_claim(state, event.trial_id, Claim(to=event.to))


def _change_resources(state: State, event: ResourcesChanged) -> None:
    """Give what waits and what runs for an experiment its new values, and a place by them."""
    name, policy = event.experiment_id, policy_of(state.policy, state.options)
    for queue in (state.queue, state.zero_slot_queue):
        waiting = [queue.remove(request.allocation_id) for request in queue.of_experiment(name)]
        for request in waiting:
            _set_resources(request, event, policy)
            queue.add(request, state.held.get(name, 0))
    for allocation_id in state.of_experiment(name):
        allocation = state.allocations[allocation_id]
        is_listed = allocation.stays and allocation.slots
        if is_listed:
            _unlist(state, allocation_id)
        _set_resources(allocation, event, policy)
        if is_listed:
            insort(state.staying, Ranked(allocation.rank, allocation_id))


def _set_resources(demand: Demand, event: ResourcesChanged, policy: Policy) -> None:
    demand.priority, demand.max_slots = event.priority, event.max_slots
    demand.submission = msgspec.structs.replace(demand.submission, weight=event.weight)
    demand.rank = policy.rank(demand)


def _above_limit(state: State, event: ResourcesChanged) -> list[str]:
    """Return the allocations of an experiment that are to yield to its new `max_slots`."""
    if event.max_slots is None:
        return []
    found = ((name, state.allocations[name]) for name in state.of_experiment(event.experiment_id))
    staying = [Ranked(each.rank, name) for name, each in found if each.stays and each.slots]
    own = [place.name for place in sorted(staying, reverse=True)]
    excess = sum(state.allocations[name].slots for name in own) - event.max_slots
    chosen: list[str] = []
    for name in own:
        if excess > 0:
            chosen.append(name)
            excess -= state.allocations[name].slots
    for name in chosen[-2::-1]:
        if state.allocations[name].slots <= -excess:
            chosen.remove(name)
            excess += state.allocations[name].slots
    return chosen


def _set_claim(state: State, trial_id: str, claim: Claim) -> None:
    """Replace a trial's claim; drop the oldest of all where there are too many."""
    state.claims.pop(trial_id, None)
    state.claims[trial_id] = claim
    if len(state.claims) > CLAIMS_MAX:
        del state.claims[next(iter(state.claims))]


def _asked_to_yield(state: State, fact: Payload) -> list[str]:
    """Return the allocations that are to yield because somebody says so."""
    match fact:
        case MoveRequested():
            return [
                name for name in state.of_trial(fact.trial_id) if state.allocations[name].stays
            ]
        case DrainRequested() if state.incarnations.get(fact.agent_id) == fact.incarnation:
            names = state.runs_on.get(fact.agent_id, [])
            return [name for name in names if state.allocations[name].stays]
        case ResourcesChanged():
            return _above_limit(state, fact)
        case _:
            return []


def _refused(state: State, event: AgentJoined) -> list[JoinRefused]:
    """Return the answer to a join that was not taken, if there is one to give."""
    join = state.joins.get(event.agent_id)
    if not event.session or join == event:
        return []
    return [
        JoinRefused(
            pool=state.pool,
            agent_id=event.agent_id,
            incarnation=event.incarnation,
            session=event.session,
            known=state.incarnations[event.agent_id],
            in_use=event.agent_id in state.runs_on,
            reason=_why_refused(state, event),
        )
    ]


def _why_refused(state: State, event: AgentJoined) -> str:
    """Return why a join was refused, and what to do."""
    name, own = event.agent_id, _place(event)
    known, join = state.incarnations[name], state.joins.get(name)
    if name not in state.runs_on:
        return (
            f"the agent {name!r} on {own} joined with incarnation {event.incarnation}, which is "
            f"not above {known} on record: its folder was restored from a backup"
        )
    if join is None or same_agent(join, event):
        return (
            f"the agent {name!r} on {own} joined with incarnation {event.incarnation}, and a "
            f"start of the same folder with incarnation {known} is taken for alive: if the folder "
            "is a copy, start this agent from an empty one with another --agent-id; it joins by "
            "itself once the other has left or is lost"
        )
    return (
        f"two agents are called {name!r}: one on {_place(join)}, which has joined, and one on "
        f"{own}, which is refused: start that one with --agent-id and a name of its own; it joins "
        "by itself once the other has left or is lost"
    )


def _place(join: AgentJoined) -> str:
    return f"host {join.hostname} with the folder {join.folder}"


def _lost(state: State, allocation_id: str, reason: str) -> AllocationLost:
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


def _dropped(state: State, request: Request) -> AllocationDropped:
    """Return that a request will not be granted."""
    return AllocationDropped(
        pool=state.pool,
        allocation_id=request.allocation_id,
        experiment_id=request.experiment_id,
        trial_id=request.spec.trial_id,
        run=request.spec.run,
        reason="withdrawn before it got its slots",
    )


def _signaled(  # noqa: PLR0913 - what a signal says
    state: State,
    allocation_id: str,
    how: Withdrawal,
    reason: str = "",
    *,
    machine: bool = False,
    final: bool = False,
) -> list[Payload]:
    """Return the signal to an allocation; none where it got that one, or kill, before."""
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
            final=final,
        )
    ]


def _granted(state: State, start: Start) -> AllocationGranted:
    """Return that a request gets its slots."""
    return AllocationGranted(
        pool=state.pool,
        allocation_id=start.request.allocation_id,
        shares=start.shares,
        spec=start.request.spec,
    )
