"""Simulated searches from submission to their end, with what must hold checked on the way."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from rung.checkpoint_gc.processor import CheckpointGC
from rung.checkpoint_gc.service import RELAY as CHECKPOINT_GC_RELAY
from rung.config.run_config import run_config
from rung.events import Payload, decode
from rung.events.allocation import AllocationSignaled, PoolConfigured
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired
from rung.events.experiment import (
    ExperimentEnded,
    ExperimentSubmitted,
    PauseRequested,
    ResumeRequested,
    Submission,
)
from rung.events.installation import LEVEL, PoolUpgraded
from rung.events.trial import (
    RunRequested,
    TrialClosed,
    TrialPromoted,
    TrialRequested,
    TrialValidated,
)
from rung.ledger import Record
from rung.runtime import PartitionFold
from rung.runtime.relay import Relay
from rung.scheduler.processor import Scheduler
from rung.scheduler.service import RELAY as SCHEDULER_RELAY
from rung.searcher.processor import Searcher
from rung.searcher.service import RELAY as SEARCHER_RELAY
from rung.sim.agent import Agent
from rung.sim.services import Carrier, Decider
from rung.sim.world import Faults, World

EXPERIMENT = "simulate"


class Scenario(Struct, frozen=True, kw_only=True):
    """What is simulated: a search on some agents, once for each owner, under faults."""

    config: dict[str, Any]
    """An expanded experiment configuration whose metric is `loss`, in units of `batches`."""
    agents: Sequence[int] = (2, 2)
    """Slots of each agent."""
    faults: Faults = Faults()
    owners: Sequence[str] = ("",)
    """Each submits the search, one after another."""
    policy: str = "priority"
    """By which the pool's slots are given."""
    options: dict[str, Any] = {}
    """The policy's."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of the searches: state, trials and what is retained do not say how it came."""

    state: str
    trials: dict[str, dict[str, Any]]
    """Trial → hyperparameters, the state in which it was closed, and its validations by step.

    Where it was given other hyperparameters or weights on its way: `parents`, the trials whose
    weights it took, and the validations since then by step and how often that was.
    """
    retained: list[str]
    """Trial and step of every checkpoint that was not retired."""
    preempted: int
    """How often a run was asked to checkpoint and leave."""
    milliseconds: int


def run(scenario: Scenario, seed: int) -> Outcome:
    """Simulate a search and return what came of it.

    Raises:
        AssertionError: an invariant does not hold; the message and the seed tell which.
    """
    world = World(seed, scenario.faults)
    checkpoints: dict[str, int] = {}
    deciders = [
        Decider(world, Searcher()),
        Decider(world, Scheduler()),
        Decider(world, CheckpointGC()),
    ]
    for it in (SCHEDULER_RELAY, SEARCHER_RELAY, CHECKPOINT_GC_RELAY, _deleter(world)):
        Carrier(world, it)
    for number, slots in enumerate(scenario.agents):
        Agent(world, f"agent-{number}", slots, checkpoints)
    if LEVEL > 1:
        world.write(PoolUpgraded(pool="default", level=LEVEL), "gateway/sim")
    if scenario.policy != "priority":
        configured = PoolConfigured(
            pool="default", policy=scenario.policy, options=scenario.options
        )
        world.write(configured, "gateway/sim")
    _submit(world, scenario)
    _plan_pauses(world)
    world.run(happenings_max=2_000_000)
    for decider in deciders:
        _check_audit(world, decider)
    return _outcome(world, checkpoints, len(scenario.owners))


def _submit(world: World, scenario: Scenario) -> None:
    """Submit the first search at once, and each other one half a second after the one before."""
    for number, owner in enumerate(scenario.owners):
        moment_ms = 500 * number
        submitted = ExperimentSubmitted(
            experiment_id=EXPERIMENT if not number else f"{EXPERIMENT}-{number}",
            config=scenario.config,
            source="",
            code_digest=None,
            submission=Submission(owner=owner, time_ms=moment_ms) if owner else None,
            level=LEVEL,
            config_digest=run_config(scenario.config).digest,
        )
        if number:
            world.after(moment_ms, partial(world.write, submitted, "gateway/sim"))
        else:
            world.write(submitted, "gateway/sim")


def _deleter(world: World) -> Relay:
    """Return what deletes retired checkpoints in this world."""

    def delete(data: CheckpointRetired) -> list[Payload]:
        world.deleted.add(data.checkpoint_id)
        return [
            CheckpointDeleted(
                experiment_id=data.experiment_id,
                trial_id=data.trial_id,
                checkpoint_id=data.checkpoint_id,
            )
        ]

    return Relay(
        "checkpoint-gc-deleter",
        "retirements",
        "/rung/checkpoint-gc",
        CheckpointRetired,
        appends=("experiments",),
        translate=delete,
    )


def _plan_pauses(world: World) -> None:
    """Pause and resume at moments drawn beforehand; every pause is followed by a resumption."""

    def ask(kind: type[PauseRequested | ResumeRequested]) -> None:
        world.write(kind(experiment_id=EXPERIMENT), "gateway/sim")

    moment = 0
    while world.happens(world.faults.pause):
        for kind in (PauseRequested, ResumeRequested):
            moment += world.random.randint(1, 2_000)
            world.after(moment, partial(ask, kind))


def _check_audit(world: World, decider: Decider) -> None:
    """Decide everything again, crashes and all, and find it on record word for word."""
    process = decider.process
    fold: PartitionFold[Any] = PartitionFold(process)
    assert not fold.record(world.topics[process.decisions])
    for record in world.topics[process.facts]:
        folded = fold.fold(record, compare=True)
        assert folded.rejected is None, folded.rejected
        assert folded.new == [], f"{process.name}: undecided: {folded.new}"
        recorded = [event.data for event in folded.recorded]
        if folded.decided is not None:
            assert recorded == folded.decided, f"{process.name} decides {record.position} anew"


def _outcome(world: World, checkpoints: dict[str, int], searches: int = 1) -> Outcome:
    trials: dict[str, dict[str, Any]] = {}
    ended: dict[str, str] = {}
    changes: dict[tuple[str, int], int] = {}
    changed: Counter[str] = Counter()
    for record in world.topics["searches"]:
        match decode(record.value).data:
            case TrialRequested() as data:
                assert data.trial_id not in trials, f"{data.trial_id} was requested twice"
                trials[data.trial_id] = {"hparams": data.hparams, "validations": {}}
                if data.parent is not None:
                    trials[data.trial_id]["parents"] = [data.parent]
            case TrialPromoted() as data if data.hparams is not None or data.parent is not None:
                changed[data.trial_id] += 1
                if data.parent is not None:
                    trials[data.trial_id].setdefault("parents", []).append(data.parent)
            case RunRequested() as data if changed[data.spec.trial_id]:
                changes[data.spec.trial_id, data.spec.run] = changed[data.spec.trial_id]
            case TrialClosed() as data:
                assert "state" not in trials[data.trial_id], f"{data.trial_id} was closed twice"
                trials[data.trial_id]["state"] = data.state
            case ExperimentEnded() as data:
                assert data.experiment_id not in ended, f"{data.experiment_id} ended twice"
                ended[data.experiment_id] = data.state
    assert len(ended) == searches, f"{len(ended)} of {searches} searches ended"
    assert all("state" in trial for trial in trials.values()), "a trial was left open"
    _take_validations(world, trials, changes)
    return Outcome(
        state=" ".join(dict.fromkeys(ended.values())),
        trials=trials,
        retained=sorted(set(checkpoints) - world.deleted),
        preempted=sum(map(_is_preemption, world.topics["placements"])),
        milliseconds=world.now_ms,
    )


def _is_preemption(record: Record) -> bool:
    data = decode(record.value).data
    return isinstance(data, AllocationSignaled) and data.how == "preempt"


def _take_validations(
    world: World, trials: dict[str, dict[str, Any]], changes: dict[tuple[str, int], int]
) -> None:
    """Note each trial's validations; `changes` counts, by run, how often the trial was changed."""
    for record in world.topics["experiments"]:
        data = decode(record.value).data
        if isinstance(data, TrialValidated):
            change = changes.get((data.trial_id, data.run))
            step = data.steps_completed if change is None else (data.steps_completed, change)
            known = trials[data.trial_id]["validations"].setdefault(step, data.metrics)
            assert known == data.metrics, f"{data.trial_id} at {step} differs"
