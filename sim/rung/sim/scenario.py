"""Simulated searches from submission to their end, with what must hold checked on the way."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from rung.config.run_config import run_config
from rung.events import TOPICS, Payload, decode, topic
from rung.events.allocation import AllocationSignaled, PoolConfigured
from rung.events.experiment import (
    ExperimentEnded,
    ExperimentSubmitted,
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
from rung.sim.agent import Agent
from rung.sim.clock import in_virtual_time
from rung.sim.invariants import check_at_rest, check_states
from rung.sim.operators import Operator
from rung.sim.poison import is_junk
from rung.sim.process import Killed, processes
from rung.sim.requests import AREA, ELSEWHERE, plan_changes, plan_directory, plan_pauses
from rung.sim.world import Counted, Faults, Reader, World
from rung.storage.checkpoint.manifest import MANIFEST

EXPERIMENT: Final = "simulate"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - in it a folder of its own is made
_COUNTED: Final = tuple(name for name in TOPICS if name != topic.HEARTBEATS)
_LOOKED_AT: Final = 0.3
"""In so many simulations read models are held against processors in the middle of a search."""
_LOOKED_AT_S: Final = 3.0
"""Within so much time after its submission."""
_LOOK_S: Final = 1.0
_REST_S: Final = 70.0
"""Longer than any retry waits."""
_MS_MAX: Final = 3_600_000
"""Longer than any search takes, in virtual time."""


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

    async def simulated() -> Outcome:
        return await simulate(World(seed, scenario.faults), scenario)

    return in_virtual_time(simulated())


async def simulate(world: World, scenario: Scenario) -> Outcome:
    """Simulate a search in a world that was just made; return what came of it.

    Raises:
        AssertionError: an invariant does not hold.
    """
    checkpoints: dict[str, int] = {}
    agents = [
        Agent(world, f"agent-{number}", slots, checkpoints)
        for number, slots in enumerate(scenario.agents)
    ]
    with memory_folder() as folder:
        async with running(world, agents, folder):
            _configure(world, scenario)
            _submit(world, scenario)
            plan_pauses(world, EXPERIMENT)
            plan_changes(world, EXPERIMENT)
            plan_directory(world)
            if world.happens(_LOOKED_AT):
                await asyncio.sleep(world.random.random() * _LOOKED_AT_S)
                await check_states(world)
            ended_ms = await ended(world, len(scenario.owners))
        await check_at_rest(world, folder)
    return await outcome(world, ended_ms)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Give a folder until the context ends: in memory, on machines that have such a place."""
    place = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="rung-sim-", dir=place) as folder:
        yield Path(folder)


@asynccontextmanager
async def running(world: World, agents: Sequence[Agent], folder: Path) -> AsyncIterator[None]:
    """Run an installation and agents while the context lasts.

    Args:
        world: where they run.
        agents: of the pool.
        folder: where the files of the gateway's projections lie.
    """
    failures: list[dict[str, Any]] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Killed):
            failures.append(context)

    asyncio.get_running_loop().set_exception_handler(note)
    installed = processes(world, folder)
    runs = [it.run for it in installed] + [it.run for it in agents]
    if world.poison:
        runs.append(Operator(world, installed, EXPERIMENT).run)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each()) for each in runs]
            try:
                yield
            finally:
                world.faults = Faults()
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    assert not failures, failures


async def ended(world: World, searches: int) -> int:
    """Wait until so many searches have ended and all has come to rest; return when they had.

    Nothing goes wrong any more from their end on.

    Raises:
        AssertionError: they do not end.
    """
    found, begun_ms = 0, world.now_ms
    searching, effective = Reader(world.ledger, topic.SEARCHES), Counted()
    while found < searches:
        await asyncio.sleep(_LOOK_S)
        assert world.now_ms - begun_ms < _MS_MAX, f"{found} of {searches} searches ended in time"
        events = effective(await searching.new())
        found += sum(isinstance(it.data, ExperimentEnded) for it in events)
    ended_ms = world.now_ms
    world.faults = Faults()
    before: list[int] | None = None
    while before != (now := await _ends(world)):
        before = now
        await asyncio.sleep(_REST_S)
    return ended_ms


async def _ends(world: World) -> list[int]:
    """Return where all partitions end."""
    return [await world.ledger.end(name, it) for name in _COUNTED for it in world.partitions(name)]


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _configure(world: World, scenario: Scenario) -> None:
    if LEVEL > 1:
        for pool in ("default", ELSEWHERE):
            world.write(PoolUpgraded(pool=pool, level=LEVEL), "gateway/sim")
    if scenario.policy != "priority":
        configured = PoolConfigured(
            pool="default", policy=scenario.policy, options=scenario.options
        )
        world.write(configured, "gateway/sim")


def _submit(world: World, scenario: Scenario) -> None:
    """Submit the first search at once, each other one half a second after the one before.

    The first one's checkpoints lie in a storage area.
    """
    for number, owner in enumerate(scenario.owners):
        moment_ms = 500 * number
        experiment_id = EXPERIMENT if not number else f"{EXPERIMENT}-{number}"
        submitted = ExperimentSubmitted(
            experiment_id=experiment_id,
            config=scenario.config,
            source="",
            code_digest=None,
            submission=Submission(owner=owner, time_ms=moment_ms) if owner else None,
            level=LEVEL,
            config_digest=run_config(scenario.config).digest,
            areas={} if number else {experiment_id: AREA},
        )
        if number:
            world.after(moment_ms, partial(world.write, submitted, "gateway/sim"))
        else:
            world.write(submitted, "gateway/sim")


async def outcome(world: World, ended_ms: int) -> Outcome:
    """Return what came of the searches of a world.

    Args:
        world: in which they ended.
        ended_ms: when they ended.

    Raises:
        AssertionError: something was decided twice, or not at all.
    """
    trials: dict[str, dict[str, Any]] = {}
    ended: dict[str, str] = {}
    changes: dict[tuple[str, int], int] = {}
    changed: Counter[str] = Counter()
    for event in Counted()(await world.records(topic.SEARCHES)):
        match event.data:
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
    assert all("state" in trial for trial in trials.values()), "a trial was left open"
    _take_validations(await world.records(topic.EXPERIMENTS), trials, changes)
    placements = Counted()(await world.records(topic.PLACEMENTS))
    return Outcome(
        state=" ".join(dict.fromkeys(ended.values())),
        trials=trials,
        retained=sorted(
            info.name.split("/")[2]
            for area in ("", AREA)
            for info in world.objects.area(area).list("checkpoints/")
            if info.name.endswith(f"/{MANIFEST}")
        ),
        preempted=sum(_is_preemption(event.data) for event in placements),
        milliseconds=ended_ms,
    )


def _is_preemption(data: Payload) -> bool:
    return isinstance(data, AllocationSignaled) and data.how == "preempt"


def _take_validations(
    facts: Sequence[Record],
    trials: dict[str, dict[str, Any]],
    changes: dict[tuple[str, int], int],
) -> None:
    """Note each trial's validations; `changes` counts, by run, how often the trial was changed."""
    for record in facts:
        data = None if is_junk(record) else decode(record.value).data
        if isinstance(data, TrialValidated):
            change = changes.get((data.trial_id, data.run))
            step = data.steps_completed if change is None else (data.steps_completed, change)
            known = trials[data.trial_id]["validations"].setdefault(step, data.metrics)
            assert known == data.metrics, f"{data.trial_id} at {step} differs"
