"""What is owed to a trial that was asked to yield: its place in the order, and where it goes on.

The claim of a trial is made when it is asked to yield and taken by its next request. Somebody who
wants a trial moved says so of a trial that runs (it is asked to yield), that waits (its request is
sent to the agent named), or that is between two runs.
"""

from typing import Final

import msgspec

from rung.events import Payload
from rung.events.allocation import DrainRequested, MoveRequested
from rung.scheduler.state import Claim, State

CLAIMS_MAX: Final = 4096
"""Trials that yielded and have not come back; some never do, so the oldest claims are dropped."""


def move(state: State, event: MoveRequested) -> None:
    """Note where the trial's next run shall go; one that waits goes there at once."""
    for allocation in state.allocations.values():
        if allocation.trial_id == event.trial_id and not allocation.lost:
            claim = Claim(arrival=allocation.arrival, avoid=list(allocation.parts), to=event.to)
            owe(state, event.trial_id, claim)
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
        owe(state, event.trial_id, Claim(to=event.to))


def owe(state: State, trial_id: str, claim: Claim) -> None:
    """Give a trial a claim, in place of any that it had."""
    state.claims.pop(trial_id, None)
    state.claims[trial_id] = claim
    if len(state.claims) > CLAIMS_MAX:
        del state.claims[next(iter(state.claims))]


def asked_to_yield(state: State, fact: Payload) -> list[str]:
    """Return the allocations that are to yield because somebody says so."""
    match fact:
        case MoveRequested():
            return [
                name
                for name, allocation in state.allocations.items()
                if allocation.trial_id == fact.trial_id and allocation.stays
            ]
        case DrainRequested() if state.incarnations.get(fact.agent_id) == fact.incarnation:
            names = state.runs_on.get(fact.agent_id, [])
            return [name for name in names if state.allocations[name].stays]
        case _:
            return []
