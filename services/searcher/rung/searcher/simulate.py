"""A search in memory on an idealised cluster: what it would decide, and what it would cost.

The searcher's own processor is driven by runs that never fail, train one unit of the time metric
in one unit of time, report at every rung of their bracket and at the end of their length, and
leave at the report after they were withdrawn. Where trials start from the checkpoints of others,
each run stores one as it leaves. Pure: the same metric in, the same search out.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct, field

from rung.events import Payload
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import (
    ExperimentEnded,
    ExperimentSubmitted,
    SearchContinued,
    SearchDeferred,
    SearchPlanned,
)
from rung.events.installation import LEVEL
from rung.events.trial import (
    ExitOutcome,
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialExited,
    TrialRequested,
    TrialValidated,
)
from rung.runtime.processor.processor import Processor
from rung.searcher.processor import Searcher
from rung.searcher.state import State

Metric = Callable[[int, dict[str, Any], float], float]
"""From a trial's index, its hyperparameters and a time to the searcher's metric."""


class Simulated(Struct):
    """What became of a search.

    Attributes:
        history: every fact with the decisions that it caused.
        trained: by trial, the time to which it trained.
        elapsed: when the search ended.
        ended: its end.
    """

    history: list[tuple[Payload, list[Payload]]] = field(
        default_factory=list[tuple[Payload, list[Payload]]]
    )
    trained: dict[int, float] = field(default_factory=dict[int, float])
    elapsed: float = 0.0
    ended: ExperimentEnded | None = None

    @property
    def units(self) -> float:
        """All training taken together."""
        return sum(self.trained.values())

    @property
    def decisions(self) -> list[Payload]:
        """All decisions in order."""
        return [decision for _, decisions in self.history for decision in decisions]


def simulate(
    config: dict[str, Any], metric: Metric, slots: int, experiment_id: str = "preview"
) -> Simulated:
    """Run a search to its end.

    Args:
        config: the expanded experiment configuration.
        metric: what a trial reports.
        slots: how many runs train at once.
        experiment_id: prefix of the trials' ids.
    """
    cluster = _Cluster(config, metric, slots, experiment_id)
    submitted = ExperimentSubmitted(
        experiment_id=experiment_id, config=config, source="", code_digest=None, level=LEVEL
    )
    cluster.deliver(submitted)
    while cluster.result.ended is None:
        cluster.step()
    return cluster.result


class _Cluster:
    def __init__(
        self, config: dict[str, Any], metric: Metric, slots: int, experiment_id: str
    ) -> None:
        self._searcher: Processor[State] = Searcher()
        self._state = self._searcher.initial(experiment_id)
        self._config = config
        self._metric = metric
        self._slots = slots
        self._waiting: deque[RunSpec] = deque()
        self._reports: list[tuple[float, int, float, RunSpec]] = []
        self._order = 0
        self._withdrawn: dict[str, int] = {}
        self._brackets: list[list[int]] = []
        self._bracket_of: dict[int, int] = {}
        self._stored: dict[str, float] = {}
        self.result = Simulated()

    def deliver(self, fact: Payload) -> None:
        """Have the searcher fold a fact, and carry out what it decides, in all steps."""
        while self._fold(fact):
            fact = SearchContinued(experiment_id=self._state.experiment_id)

    def _fold(self, fact: Payload) -> bool:
        """Have the searcher fold a fact; return whether there is more to decide."""
        self._searcher.evolve(self._state, fact)
        decisions = self._searcher.decide(self._state, fact)
        self.result.history.append((fact, decisions))
        for decision in decisions:
            self._searcher.evolve(self._state, decision)
            self._carry_out(decision)
        return any(isinstance(decision, SearchDeferred) for decision in decisions)

    def _carry_out(self, decision: Payload) -> None:
        match decision:
            case SearchPlanned():
                self._brackets = [plan.lengths for plan in decision.brackets]
            case TrialRequested():
                self._bracket_of[decision.index] = decision.bracket
            case RunRequested(spec=spec):
                if spec.restore and spec.restore[0] in self._stored:
                    self.result.trained[spec.trial_index] = self._stored[spec.restore[0]]
                self._waiting.append(spec)
            case RunWithdrawn():
                self._withdrawn[decision.trial_id] = decision.run
            case ExperimentEnded():
                self.result.ended = decision
            case _:
                pass

    def step(self) -> None:
        """Start what can start, then let the next report happen."""
        while self._waiting and len(self._reports) < self._slots:
            self._schedule(self._waiting.popleft())
        clock, _, time, spec = heappop(self._reports)
        self.result.elapsed = clock
        self.result.trained[spec.trial_index] = time
        self._report(time, spec)
        if self._withdrawn.get(spec.trial_id) == spec.run:
            self._exit(spec, "preempted")
        elif spec.length is None or time >= spec.length:
            self._exit(spec, "finished")
        else:
            self._schedule(spec)

    def _schedule(self, spec: RunSpec) -> None:
        """Note when a run reports next: at its next rung or at its length."""
        now = self.result.trained.get(spec.trial_index, 0.0)
        end = 1.0 if spec.length is None else float(spec.length)
        rungs = self._brackets[self._bracket_of[spec.trial_index]]
        time = min((float(rung) for rung in rungs if now < rung < end), default=max(now, end))
        self._order += 1
        clock = self.result.elapsed + time - now
        heappush(self._reports, (clock, self._order, time, spec))

    def _report(self, time: float, spec: RunSpec) -> None:
        search = self._config["searcher"]
        value = self._metric(spec.trial_index, spec.hparams, time)
        self.deliver(
            TrialValidated(
                experiment_id=spec.experiment_id,
                trial_id=spec.trial_id,
                run=spec.run,
                steps_completed=int(time),
                metrics={search["metric"]: value, spec.time_metric: time},
            )
        )

    def _store(self, spec: RunSpec) -> None:
        name = f"{spec.trial_id}.{spec.run}"
        self._stored[name] = self.result.trained[spec.trial_index]
        self.deliver(
            CheckpointStored(
                experiment_id=spec.experiment_id,
                trial_id=spec.trial_id,
                run=spec.run,
                checkpoint_id=name,
                steps_completed=int(self._stored[name]),
                size_bytes=0,
                files=0,
                digest="",
            )
        )

    def _exit(self, spec: RunSpec, outcome: ExitOutcome) -> None:
        if self._state.experiment is not None and self._state.experiment.shares:
            self._store(spec)
        self.deliver(
            TrialExited(
                experiment_id=spec.experiment_id,
                trial_id=spec.trial_id,
                run=spec.run,
                agent_id="simulated",
                outcome=outcome,
                exit_code=0,
                signal=None,
                message="",
            )
        )
