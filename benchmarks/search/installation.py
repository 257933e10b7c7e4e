"""What each event costs the services of one installation, as its open trials grow to 100,000.

Every decider, relay and projection of an installation runs on a ledger in memory, in one process,
as its runtime folds it: records are decoded, folded and decided, decisions are encoded and
appended. Simulated agents of eight slots carry out what is granted: they report, checkpoint, leave
when asked to, fail now and then, and are lost. Users pause, resume, change, extend, kill and
submit searches of five methods, large gangs among them. An experiment has 100 open trials, of
which its part of the agents runs eight in a hundred. From 10 experiments and agents it grows to
1,000; at each size as many facts are taken as asked for.

An event must be handled within 50 ms, whatever the size: all that its service hosts stands still
meanwhile. The time is that of the processor, in ms: the median, the 99th of a hundred, and the
longest with the event that it was. Garbage collections are by themselves, as this one process has
the objects of all services and of the ledger. Of projections a batch of events is one transaction
in a thread of its own: what an event adds to it is measured, and the whole batch. `snapshot` is a
piece in which a state is saved.

    python -m benchmarks.search.installation [--experiments N,N,…] [--facts N]
    python -m benchmarks.search.installation --experiments 10,100,1000 --facts 100000
"""

import argparse
import asyncio
import contextlib
import gc
import heapq
import itertools
import math
import random
import resource
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from benchmarks.figures import figure
from msgspec import Struct

from rung.checkpoint_gc.service import RELAY as CLOSED
from rung.checkpoint_gc.service import components as checkpoint_gc
from rung.events import Event, Payload, fact, topic
from rung.events.allocation import (
    AgentJoined,
    AgentLost,
    AgentResumed,
    AgentSuspended,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    AllocationSignaled,
    DrainRequested,
    MoveRequested,
    Slot,
)
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired, CheckpointStored
from rung.events.codec import decode
from rung.events.experiment import (
    CancelRequested,
    ExperimentEnded,
    ExperimentSubmitted,
    ExtensionRequested,
    KillRequested,
    PauseRequested,
    ResourcesRequested,
    ResumeRequested,
    RetentionChanged,
)
from rung.events.installation import LEVEL, PoolUpgraded
from rung.events.trial import (
    ExitOutcome,
    RunSpec,
    TrialExited,
    TrialKillRequested,
    TrialStarted,
    TrialValidated,
)
from rung.gateway.projections.read_models import PROJECTIONS
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime import Processor
from rung.runtime.garbage import short_collections
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.fold import PartitionFold
from rung.runtime.processor.processor import types_of
from rung.runtime.processor.snapshot import Snapshots
from rung.runtime.projection import Projection
from rung.runtime.projection.merge import Merge
from rung.runtime.projection.store import prepare
from rung.runtime.relay import Relay, relayed
from rung.runtime.service import Decider
from rung.scheduler.service import RELAY as WANTED
from rung.scheduler.service import components as scheduler
from rung.searcher.service import RELAY as DROPPED
from rung.searcher.service import components as searcher

AIM_MS: Final = 50.0
POOL: Final = "default"
OPEN: Final = 100
"""Open trials of an experiment."""
SLOTS: Final = 8
"""Of an agent."""
TRIALS: Final = 400
LENGTH: Final = 27
UNIT_S: Final = (10, 60)
"""How long a trial trains between two reports."""
GANG: Final = 16
BATCH: Final = 500
ACT_EVERY: Final = 40
"""Facts between two acts of users or troubles of agents."""
AWAY: Final = 10
"""Of so many agents one is away at most."""
MANY: Final = 1 << 30
_OLDEST: Final = 2
"""The generation that is collected with all others."""
_BEGAN_S: Final = 1_767_225_600
_ORIGIN: Final = "gateway/bench"

METHODS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "random", "max_trials": TRIALS},
    {"name": "grid"},
    {
        "name": "async_halving",
        "stop_once": True,
        "num_rungs": 4,
        "divisor": 3,
        "max_trials": TRIALS,
    },
    {
        "name": "adaptive_asha",
        "mode": "standard",
        "divisor": 3,
        "max_rungs": 4,
        "bracket_rungs": [],
        "max_trials": TRIALS,
    },
    {"name": "hyperband", "divisor": 3},
)


class Clock:
    """Processor time of this thread, without that of garbage collections."""

    def __init__(self) -> None:
        self.collections_s: Final = list[float]()
        """What each collection of all generations took."""
        self._spent_s = self._begun_s = 0.0

    def note(self, phase: str, about: dict[str, int]) -> None:
        """Note a collection; called behind all else that is called at its end."""
        if phase == "start":
            self._begun_s = time.thread_time()
            return
        took_s = time.thread_time() - self._begun_s
        self._spent_s += took_s
        if about["generation"] == _OLDEST:
            self.collections_s.append(took_s)

    def now(self) -> float:
        """Return the seconds."""
        return time.thread_time() - self._spent_s


CLOCK: Final = Clock()


class Times:
    """What events cost, by who handled them and what they were."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def measured(self, part: str, what: str) -> Iterator[None]:
        """Measure what is done in the context."""
        begun = CLOCK.now()
        yield
        self.add(part, what, CLOCK.now() - begun)

    def add(self, part: str, what: str, seconds: float) -> None:
        """Note what an event cost."""
        self._of[part, what].append(1000 * seconds)

    def parts(self) -> list[str]:
        """Return who handled events."""
        return list(dict.fromkeys(part for part, _ in self._of))

    def of(self, part: str) -> list[float]:
        """Return the milliseconds of all events of a part, sorted."""
        return sorted(
            it for (name, _), values in self._of.items() if name == part for it in values
        )

    def slowest(self, part: str) -> str:
        """Return the event that took a part longest."""
        found = [(max(it), what) for (name, what), it in self._of.items() if name == part]
        return max(found)[1]

    def kinds(self, part: str) -> list[tuple[str, list[float]]]:
        """Return the times of a part by event, those with the longest first."""
        found = [(what, sorted(it)) for (name, what), it in self._of.items() if name == part]
        return sorted(found, key=lambda each: -each[1][-1])


class DeciderRun:
    """A processor on the one partition of its topics."""

    def __init__(self, ledger: MemoryLedger, it: Decider) -> None:
        self.processor: Final[Processor[Any]] = it.processor
        self.fold: Final[PartitionFold[Any]] = PartitionFold(it.processor)
        self._ledger = ledger
        self._observer: Observer[Any] | None = it.observer
        if self._observer is not None:
            self._observer.begin(0, self.fold)

    async def take(self, times: Times) -> int:
        """Fold and decide the facts that are there; return how many."""
        name = self.processor.name
        records = await self._ledger.read(self.processor.facts, 0, self.fold.facts, MANY)
        for record in records:
            begun = CLOCK.now()
            folded = self.fold.fold(record)
            drafts = [Draft.of(event) for event in folded.new]
            positions = await self._ledger.append(drafts) if drafts else []
            if self._observer is not None:
                self._observer.see([record], folded.new)
            times.add(name, _kind(record), CLOCK.now() - begun)
            assert folded.rejected is None, folded.rejected
            assert not positions or positions[0] == self.fold.decisions
            self.fold.recorded.appended(len(drafts))
        return len(records)

    async def save(self, times: Times) -> None:
        """Save a snapshot of all that changed, and measure its pieces."""
        pieces = Pieces(times, f"{self.processor.name}: snapshot")
        await Snapshots(pieces, self.processor, 0).save(self.fold, _settled)


@contextlib.asynccontextmanager
async def _settled() -> AsyncIterator[None]:
    yield


class Pieces(MemoryLedger):
    """Takes snapshots, and measures what comes between two of their pieces."""

    def __init__(self, times: Times, part: str) -> None:
        super().__init__(partitions=1)
        self._times = times
        self._part = part
        self._last = CLOCK.now()

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:  # noqa: ARG002 - of the port
        """Take a piece."""
        self._times.add(
            self._part, "mark" if name.count("/") == 1 else "bucket", CLOCK.now() - self._last
        )
        self._last = CLOCK.now()


class RelayRun:
    """A relay on the one partition of its topic."""

    def __init__(self, ledger: MemoryLedger, it: Relay) -> None:
        self._ledger = ledger
        self._it = it
        self._types = types_of(it.handles)
        self._position = 0

    async def take(self, times: Times) -> int:
        """Relay what is there; return how much that was."""
        records = await self._ledger.read(self._it.topic, 0, self._position, MANY)
        self._position += len(records)
        for record in records:
            begun = CLOCK.now()
            event = decode(record.value)
            if event.type in self._types:
                made = relayed(self._it, self._ledger.id, record, event)
                await self._ledger.append([Draft.of(each) for each in made])
                times.add(self._it.name, event.type, CLOCK.now() - begun)
        return len(records)


class ProjectionRun:
    """A projection of the gateway."""

    def __init__(self, ledger: MemoryLedger, projection: Projection) -> None:
        self._ledger = ledger
        self._projection = projection
        self._name = f"gateway: {projection.name}"
        self._times = Times()
        db = sqlite3.connect("", isolation_level=None)
        db.execute("PRAGMA synchronous = OFF")
        prepare(db, projection, ledger.id)
        self._merge = Merge(projection, db, 0)
        evolve: Callable[..., None] = projection.evolve

        def measured(db: sqlite3.Connection, key: str, event: Event) -> None:
            with self._times.measured(self._name, event.type):
                evolve(db, key, event)

        projection.evolve = measured  # type: ignore[method-assign]

    async def take(self, times: Times) -> None:
        """Fold all that is there, in batches."""
        self._times = times
        merge, it = self._merge, self._projection
        for name in it.decisions:
            merge.hold(await self._ledger.read(name, 0, merge.read_up_to(name), MANY))
        facts = await self._ledger.read(it.facts, 0, merge.positions[it.facts], MANY)
        for start in range(0, len(facts), BATCH):
            with times.measured(f"{self._name}, batches", f"{BATCH} facts"):
                rejected = merge.fold(facts[start : start + BATCH])
            assert not rejected, rejected
        for name in it.streams:
            records = await self._ledger.read(name, 0, merge.positions[name], MANY)
            for start in range(0, len(records), BATCH):
                assert not merge.fold_stream(records[start : start + BATCH])


def _kind(record: Record) -> str:
    return msgspec.json.decode(record.value, type=_Head).type


class _Head(Struct):
    type: str


class Run(Struct):
    """A run on a simulated agent."""

    spec: RunSpec
    agents: dict[str, int]
    """Its agents, the first of which reports → their incarnations."""
    units: int = 0
    leaving: bool = False


class Counts(NamedTuple):
    """How much there is."""

    experiments: int
    open_trials: int
    running: int
    agents: int


class Installation:
    """Services, agents and users, in virtual time."""

    def __init__(self, seed: int) -> None:
        self.chance: Final = random.Random(seed)  # noqa: S311 - a benchmark's
        self.times = Times()
        self.ledger: Final = MemoryLedger(partitions=1, ledger_id="bench")
        tables = (*searcher(), *scheduler(), *checkpoint_gc(None))
        self.deciders: Final = [
            DeciderRun(self.ledger, it) for it in tables if isinstance(it, Decider)
        ]
        self._relays = [RelayRun(self.ledger, it) for it in (DROPPED, WANTED, CLOSED)]
        self._projections = [ProjectionRun(self.ledger, make()) for make in PROJECTIONS]
        self._sequences: dict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now_s = 0.0
        self._drafts: list[Draft] = []
        self._placed = self._retired = self._searched = 0
        self._incarnations: dict[str, int] = {}
        self._away: dict[str, None] = {}
        """Agents that went, or are to go, and come back."""
        self._runs: dict[str, Run] = {}
        self._active: dict[str, None] = {}
        self._numbers = itertools.count()
        self._checkpoints = itertools.count()
        self.facts = 0
        if LEVEL > 1:
            self.write(PoolUpgraded(pool=POOL, level=LEVEL), _ORIGIN)

    # The world.

    def write(self, data: Payload, origin: str) -> None:
        """Append a fact at the next occasion."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_BEGAN_S + self._now_s))
        event = fact(
            data,
            source=f"/rung/{data.WRITER}",
            origin=origin,
            sequence=next(self._sequences[origin]),
            time=at,
        )
        self._drafts.append(Draft.of(event))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self._due, (self._now_s + seconds, next(self._order), action))

    async def settle(self) -> None:
        """Let all services take what there is, and the agents what that makes, until it rests."""
        busy = True
        while busy:
            if self._drafts:
                await self.ledger.append(self._drafts)
                self.facts += len(self._drafts)
                self._drafts = []
            taken = [await it.take(self.times) for it in self.deciders]
            taken += [await it.take(self.times) for it in self._relays]
            await self._look()
            busy = any(taken) or bool(self._drafts)
        for projection in self._projections:
            await projection.take(self.times)

    async def advance(self) -> None:
        """Let time pass until something happens."""
        until = self._due[0][0] + 0.5
        while self._due and self._due[0][0] <= until:
            self._now_s, _, action = heapq.heappop(self._due)
            action()
        await self.settle()

    async def _look(self) -> None:
        placed = await self.ledger.read(topic.PLACEMENTS, 0, self._placed, MANY)
        self._placed += len(placed)
        for record in placed:
            self._place(decode(record.value).data)
        retired = await self.ledger.read(topic.RETIREMENTS, 0, self._retired, MANY)
        self._retired += len(retired)
        for record in retired:
            data = decode(record.value).data
            if isinstance(data, CheckpointRetired):
                gone = CheckpointDeleted(
                    experiment_id=data.experiment_id,
                    trial_id=data.trial_id,
                    checkpoint_id=data.checkpoint_id,
                )
                self.write(gone, "checkpoint-gc/bench")
        searched = await self.ledger.read(topic.SEARCHES, 0, self._searched, MANY)
        self._searched += len(searched)
        for record in searched:
            if ExperimentEnded.TYPE.encode() in record.value:
                self._active.pop(record.key, None)

    # Agents.

    def join(self, agent_id: str) -> None:
        """Let an agent offer its slots, perhaps again."""
        self._away.pop(agent_id, None)
        incarnation = self._incarnations[agent_id] = self._incarnations.get(agent_id, 0) + 1
        slots = [Slot(id=number, kind="cuda", name="GPU") for number in range(SLOTS)]
        joined = AgentJoined(
            pool=POOL,
            agent_id=agent_id,
            incarnation=incarnation,
            hostname=agent_id,
            slots=slots,
        )
        self.write(joined, f"agent/{agent_id}")

    def _place(self, data: Payload) -> None:
        match data:
            case AllocationGranted():
                agents = {share.agent_id: share.incarnation for share in data.shares}
                if all(self._incarnations[name] == it for name, it in agents.items()):
                    self._start(data.allocation_id, Run(data.spec, agents))
            case AllocationSignaled():
                run = self._runs.get(data.allocation_id)
                if run is not None:
                    run.leaving = True
                    if data.how == "kill":
                        self._exit(data.allocation_id, run, "killed")
            case AllocationLost():
                run = self._runs.pop(data.allocation_id, None)
                if run is not None:
                    self._release(data.allocation_id, run)
            case _:
                pass

    def _report(self, run: Run, kind: Callable[..., Payload], **more: Any) -> None:
        spec = run.spec
        of = {"experiment_id": spec.experiment_id, "trial_id": spec.trial_id, "run": spec.run}
        self.write(kind(**of, **more), f"agent/{next(iter(run.agents))}")

    def _start(self, allocation_id: str, run: Run) -> None:
        self._runs[allocation_id] = run
        run.units = int(run.spec.restore[0].rpartition("-")[2]) if run.spec.restore else 0
        self._report(run, TrialStarted, agent_id=next(iter(run.agents)))
        self._later(allocation_id, run)

    def _later(self, allocation_id: str, run: Run) -> None:
        self.after(self.chance.uniform(*UNIT_S), lambda: self._unit(allocation_id, run))

    def _unit(self, allocation_id: str, run: Run) -> None:
        if self._runs.get(allocation_id) is not run:
            return
        if run.leaving:
            self._store(run)
            self._exit(allocation_id, run, "preempted")
            return
        if self.chance.random() < 0.005:
            self._exit(allocation_id, run, "failed")
            return
        run.units += 1
        loss = self.chance.random() / run.units
        self._report(run, TrialValidated, steps_completed=run.units, metrics={"loss": loss})
        length = run.spec.length
        if run.units % 3 == 0 or run.units == length:
            self._store(run)
        if length is not None and run.units >= length:
            self._exit(allocation_id, run, "finished")
        else:
            self._later(allocation_id, run)

    def _store(self, run: Run) -> None:
        self._report(
            run,
            CheckpointStored,
            checkpoint_id=f"c{next(self._checkpoints)}-{run.units}",
            steps_completed=run.units,
            size_bytes=1,
            files=1,
            digest="0",
        )

    def _exit(self, allocation_id: str, run: Run, outcome: ExitOutcome) -> None:
        del self._runs[allocation_id]
        self._report(
            run,
            TrialExited,
            agent_id=next(iter(run.agents)),
            outcome=outcome,
            exit_code=1 if outcome == "failed" else 0,
            signal=None,
            message="",
        )
        self._release(allocation_id, run)

    def _release(self, allocation_id: str, run: Run) -> None:
        for agent_id, incarnation in run.agents.items():
            released = AllocationReleased(
                pool=POOL, allocation_id=allocation_id, agent_id=agent_id, incarnation=incarnation
            )
            self.write(released, f"agent/{agent_id}")

    # Users, and troubles.

    def submit(self, *, slots: int = 1, priority: int = 42) -> None:
        """Submit a search."""
        number = next(self._numbers)
        experiment_id = f"x{number:07d}"
        self._active[experiment_id] = None
        search = {
            "metric": "loss",
            "smaller_is_better": True,
            "time_metric": "batches",
            "source_trial_id": None,
            "source_checkpoint_uuid": None,
            "max_time": LENGTH,
            "max_concurrent_trials": OPEN,
            **METHODS[number % len(METHODS)],
        }
        config = {
            "name": f"search {number}",
            "entrypoint": "true",
            "hyperparameters": {
                "lr": {"type": "log", "base": 10.0, "minval": -3.0, "maxval": 0.0, "count": 20},
                "width": {"type": "int", "minval": 1, "maxval": 64, "count": 20},
            },
            "searcher": search if slots == 1 else search | {"max_concurrent_trials": 2},
            "resources": {
                "slots_per_trial": slots,
                "max_slots": None,
                "priority": priority,
                "resource_pool": POOL,
            },
            "checkpoint_storage": {
                "save_experiment_best": 0,
                "save_trial_best": 1,
                "save_trial_latest": 1,
            },
            "max_restarts": 5,
            "reproducibility": {"experiment_seed": number},
        }
        submitted = ExperimentSubmitted(
            experiment_id=experiment_id, config=config, source="", code_digest=None, level=LEVEL
        )
        self.write(submitted, _ORIGIN)

    def act(self) -> None:
        """Do what a user does, or let something go wrong."""
        of: dict[str, Any] = {"experiment_id": self.chance.choice(list(self._active))}
        agent_id = self.chance.choice(list(self._incarnations))
        life: dict[str, Any] = {
            "pool": POOL,
            "agent_id": agent_id,
            "incarnation": self._incarnations[agent_id],
        }
        trial_id = f"{of['experiment_id']}.{self.chance.randrange(OPEN)}"
        acts: list[Callable[[], None]] = [
            lambda: self._ask(PauseRequested(**of), ResumeRequested(**of)),
            lambda: self._ask(KillRequested(**of)),
            lambda: self._ask(CancelRequested(**of)),
            lambda: self._ask(TrialKillRequested(**of, trial_id=trial_id)),
            lambda: self._ask(ExtensionRequested(**of, trials=TRIALS + 50)),
            lambda: self._ask(ResourcesRequested(**of, priority=self.chance.randint(1, 99))),
            lambda: self._ask(ResourcesRequested(**of, weight=2.0)),
            lambda: self._ask(
                ResourcesRequested(**of, max_slots=4), ResourcesRequested(**of, max_slots=0)
            ),
            lambda: self._ask(
                RetentionChanged(
                    **of, save_experiment_best=1, save_trial_best=1, save_trial_latest=1
                )
            ),
            lambda: self._ask(MoveRequested(pool=POOL, **of, trial_id=trial_id, to=None)),
            lambda: self.submit(slots=GANG, priority=self.chance.randint(1, 99)),
            lambda: self._lose(agent_id, AgentLost(**life, silent_ms=31_000)),
            lambda: self._lose(agent_id, DrainRequested(**life, reason="")),
            lambda: self._ask(
                AgentSuspended(**life, session="", reason=""), AgentResumed(**life, session="")
            ),
        ]
        self.chance.choice(acts)()

    def _ask(self, data: Payload, later: Payload | None = None) -> None:
        self.write(data, _ORIGIN)
        if later is not None:
            self.after(60, lambda: self.write(later, _ORIGIN))

    def _lose(self, agent_id: str, data: Payload) -> None:
        if agent_id in self._away or AWAY * len(self._away) > len(self._incarnations):
            return
        self._away[agent_id] = None
        self.write(data, _ORIGIN)
        self.after(120, lambda: self.join(agent_id))

    # What is measured.

    async def grow(self, experiments: int) -> None:
        """Have so many experiments and agents."""
        while len(self._incarnations) < experiments:
            self.join(f"agent-{len(self._incarnations)}")
        while len(self._active) < experiments:
            self.submit()
            await self.settle()

    async def work(self, experiments: int, facts: int) -> None:
        """Take so many facts, with what users do."""
        goal, acted = self.facts + facts, self.facts
        while self.facts < goal:
            await self.advance()
            while self.facts - acted > ACT_EVERY:
                acted += ACT_EVERY
                self.act()
            await self.grow(experiments)
        for decider in self.deciders:
            await decider.save(self.times)

    def counts(self) -> Counts:
        """Return how much there is."""
        fold = next(it.fold for it in self.deciders if it.processor.name == "searcher")
        trials = sum(
            state.experiment.living for state in fold.states() if state.experiment is not None
        )
        return Counts(len(self._active), trials, len(self._runs), len(self._incarnations))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of sorted values that so many of them do not exceed."""
    return values[math.ceil(share * len(values)) - 1]


async def measure(sizes: Sequence[int], facts: int, *, detailed: bool) -> None:
    """Grow an installation, and print what its events cost at each size."""
    installation = Installation(1)
    found: list[Times] = []
    for size in sizes:
        begun = time.perf_counter()
        installation.times = Times()
        await installation.grow(size)
        await installation.work(size, facts)
        found.append(installation.times)
        counts = installation.counts()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            f"{counts.experiments:,} experiments, {counts.open_trials:,} open trials,"
            f" {counts.running:,} run on {counts.agents:,} agents;"
            f" {installation.facts:,} facts so far; {time.perf_counter() - begun:.0f} s,"
            f" memory at most {peak:,} MiB"
        )
        growth = _print(found[-1], found[0], detailed=detailed)
        pauses = sorted(1000 * each for each in CLOCK.collections_s)
        CLOCK.collections_s.clear()
        print(f"  {'garbage, whole process':34}{_row(pauses or [0.0])}", flush=True)
        parts = [part for part in found[-1].parts() if not _in_batches(part)]
        longest = max(parts, key=lambda part: found[-1].of(part)[-1])
        most = max(parts, key=growth.__getitem__)
        figure(
            f"installation of {counts.experiments:,} experiments: the longest event",
            found[-1].of(longest)[-1],
            "ms of CPU",
            at_most=AIM_MS,
            beside=f"{longest}, {found[-1].slowest(longest)}; the median of {most} is"
            f" {growth[most]:.1f} times that at {sizes[0]:,}",
        )


def _print(times: Times, first: Times, *, detailed: bool) -> dict[str, float]:
    """Print a line for each part; return how many times as long its median is as at first."""
    grown = {}
    print(f"  {'ms of processor':34}{'events':>9}{'p50':>9}{'p99':>9}{'longest':>9}{'growth':>8}")
    for part in times.parts():
        values = times.of(part)
        growth = percentile(values, 0.5) / max(percentile(first.of(part) or values, 0.5), 1e-6)
        grown[part] = growth
        slowest = "" if _in_batches(part) else times.slowest(part)
        print(f"  {part:34}{_row(values)}{growth:>7.1f}x  {slowest}")
        if detailed:
            for what, each in times.kinds(part):
                print(f"    {what:32}{_row(each)}")
    return grown


def _row(values: Sequence[float]) -> str:
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    return f"{len(values):>9,}{p50:>9.3f}{p99:>9.3f}{values[-1]:>9.2f}"


def _in_batches(part: str) -> bool:
    return part.endswith("batches")  # in a thread, of so many events at once


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", default="10,100")
    parser.add_argument("--facts", type=int, default=10_000, help="taken at each size")
    parser.add_argument("--detailed", action="store_true", help="each kind of event by itself")
    asked = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    sizes = [int(size) for size in asked.experiments.split(",")]
    with short_collections():
        gc.callbacks.append(CLOCK.note)
        asyncio.run(measure(sizes, asked.facts, detailed=asked.detailed))


if __name__ == "__main__":
    main()
