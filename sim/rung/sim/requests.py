"""Requests of users in a simulation, at moments drawn beforehand: pauses, and changes of a search.

What the gateway would refuse is requested, too, such as the end of a trial that has ended: it may
have been possible when it was sent. Such requests change nothing.
"""

from functools import partial
from typing import Final

from rung.config.sections.resources import POOL
from rung.events import Event, Payload, topic
from rung.events.checkpoint import (
    CheckpointDeletionRequested,
    CheckpointPinned,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.experiment import (
    DeletionRequested,
    ExperimentEnded,
    ExtensionRequested,
    PauseRequested,
    ResourcesRequested,
    ResumeRequested,
    RetentionChanged,
    SearchExtended,
    SearchPlanned,
)
from rung.events.installation import LEVEL
from rung.events.trial import TrialKillRequested, TrialRequested, trial_id_of
from rung.sim.company import Company
from rung.sim.world import Counted, World

_ORIGIN: Final = "gateway/sim"
_MOMENT_MS_MAX: Final = 2_000
_MOVED: Final = 0.3
"""So many changes are followed by one of the pool, there and back."""
ELSEWHERE: Final = "elsewhere"
"""A pool without agents."""
_SLOT_HOURS: Final = (0.001, 0.003, 0.01)
"""Limits, some of which a search reaches: seconds of one slot, up to half a minute."""
_ASKED_MAX: Final = 60
"""Requests to the directory."""
_OTHER: Final = "another"
AREA: Final = "vision/nightly"
"""The storage area of the experiment that requests are about."""
"""An experiment that starts from checkpoints of the simulated one."""


def plan_pauses(world: World, experiment_id: str) -> None:
    """Pause and resume an experiment; every pause is followed by a resumption."""
    moment = 0
    while world.happens(world.faults.pause):
        for kind in (PauseRequested, ResumeRequested):
            moment += world.random.randint(1, _MOMENT_MS_MAX)
            world.after(moment, partial(world.write, kind(experiment_id=experiment_id), _ORIGIN))


def plan_changes(world: World, experiment_id: str) -> None:
    """End trials of a search, extend it, change what it keeps, delete and pin its checkpoints.

    It is given other resources, and now and then a pool without agents, until it is moved back.
    Once it has ended, a request may delete all of it.
    """
    moment = 0
    while world.happens(world.faults.change):
        moment += world.random.randint(1, _MOMENT_MS_MAX)
        world.after(moment, lambda: world.start(_change(world, experiment_id)))
        if world.happens(_MOVED):
            for pool in (ELSEWHERE, POOL):
                moment += world.random.randint(1, _MOMENT_MS_MAX)
                moved = ResourcesRequested(experiment_id=experiment_id, pool=pool)
                world.after(moment, partial(world.write, moved, _ORIGIN))


def plan_directory(world: World) -> None:
    """Ask for changes of the directory while users change searches."""
    if not world.faults.change:
        return
    company = Company(world.random.getrandbits(32), level=LEVEL)
    for _ in range(world.random.randint(1, _ASKED_MAX)):
        moment = world.random.randint(1, _MOMENT_MS_MAX)
        world.after(moment, lambda: world.write(company.next(), _ORIGIN))


async def _change(world: World, experiment_id: str) -> None:
    """Request something that the moment allows, or did a moment before."""
    found = [
        event
        for name in (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS)
        for event in Counted()(await world.records(name))
        if event.key == experiment_id
    ]
    possible = [*_of_search(world, experiment_id, found), *_of_store(world, experiment_id, found)]
    if possible:
        world.write(world.random.choice(possible), _ORIGIN)


def _of_search(world: World, experiment_id: str, found: list[Event]) -> list[Payload]:
    plans = [data.brackets for it in found if isinstance(data := it.data, _Plan)]
    if not plans:
        return []
    trials = sum(isinstance(event.data, TrialRequested) for event in found)
    trial_id = trial_id_of(experiment_id, world.random.randrange(trials + 1))
    planned, more = sum(plan.trials for plan in plans[-1]), world.random.randint(0, 3)
    longest = max((plan.lengths[-1] for plan in plans[-1] if plan.lengths), default=0)
    requests: list[Payload] = [
        TrialKillRequested(experiment_id=experiment_id, trial_id=trial_id),
        ExtensionRequested(experiment_id=experiment_id, trials=planned + more),
        ExtensionRequested(experiment_id=experiment_id, max_time=longest + more),
        ResourcesRequested(
            experiment_id=experiment_id,
            priority=1 + world.random.randrange(99),
            weight=1.0 + more,
            max_slots=world.random.choice([None, 0, 1, 2, 3]),
            max_slot_hours=world.random.choice([None, 0.0, *_SLOT_HOURS]),
            version=world.random.choice([None, None, more]),
        ),
    ]
    if any(isinstance(event.data, ExperimentEnded) for event in found):
        despite = [_OTHER] if more else []
        requests.append(
            DeletionRequested(
                experiment_id=experiment_id, trials=trials, despite=despite, area=AREA
            )
        )
    return requests


_Plan = SearchPlanned | SearchExtended


def _of_store(world: World, experiment_id: str, found: list[Event]) -> list[Payload]:
    best, of_trial, latest = (world.random.randint(0, 2) for _ in range(3))
    requests: list[Payload] = [
        RetentionChanged(
            experiment_id=experiment_id,
            save_experiment_best=best,
            save_trial_best=of_trial,
            save_trial_latest=latest,
            area=AREA,
        )
    ]
    gone = {it.data.checkpoint_id for it in found if isinstance(it.data, CheckpointRetired)}
    stored = [
        data
        for event in found
        if isinstance(data := event.data, CheckpointStored) and data.checkpoint_id not in gone
    ]
    if stored:
        data = world.random.choice(stored)
        requests += (
            CheckpointPinned(
                experiment_id=experiment_id, checkpoint_id=data.checkpoint_id, by=_OTHER
            ),
            CheckpointDeletionRequested(
                experiment_id=experiment_id,
                trial_id=data.trial_id,
                checkpoint_id=data.checkpoint_id,
                despite=[_OTHER] if best else [],
                area=AREA,
            ),
        )
    return requests
