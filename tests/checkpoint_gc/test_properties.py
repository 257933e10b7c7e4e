"""The collector against whatever may happen in an experiment, in any order."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpoint_gc.reference import Reference, Wish
from checkpoint_gc.scenario import (
    Experiment,
    damaged,
    deleted,
    ended,
    exited,
    pinned,
    retention,
    run_lost,
    stored,
    submitted,
    trial_id,
    unwanted,
    validated,
)
from rung.events import Payload
from rung.events.checkpoint import CheckpointRetired
from rung.events.trial import MetricValue

pytestmark = pytest.mark.sim

_TRIALS = st.integers(0, 2)
_STEPS = st.integers(1, 6)
_RUNS = st.integers(1, 3)
_LOSSES: st.SearchStrategy[MetricValue | None] = st.sampled_from(
    [0.0, 0.25, 0.5, 0.5, 1.0, 2.0, -1.0, "NaN", "Infinity", "-Infinity", None]
)


class ExperimentMachine(RuleBasedStateMachine):
    """Tells the collector and the reference the same."""

    def __init__(self) -> None:
        super().__init__()
        self.experiment = Experiment()
        self.reference = Reference(Wish(0, 1, 1, smaller_is_better=True))
        self.names: list[str] = []

    def tell(self, fact: Payload) -> None:
        """Fold a fact in both, and compare."""
        collector, state = self.experiment.collector, self.experiment.state
        restorable = {trial: self.reference.restorable(trial_id(trial)) for trial in range(3)}
        collector.evolve(state, fact)
        before = msgspec.json.encode(state)
        decisions = collector.decide(state, fact)
        assert msgspec.json.encode(state) == before, "decide changed the state"
        assert collector.decide(state, fact) == decisions
        for decision in decisions:
            collector.evolve(state, decision)
        retired = [e.checkpoint_id for e in decisions if isinstance(e, CheckpointRetired)]
        assert sorted(retired) == self.reference.tell(fact)
        for trial, names in restorable.items():
            if trial_id(trial) not in self.reference.ended():
                newer = self.reference.restorable(trial_id(trial))
                assert newer.isdisjoint(retired)
                assert len(newer) >= min(2, len(names)) - 1

    @initialize(
        experiment_best=st.integers(0, 3),
        trial_best=st.integers(0, 2),
        trial_latest=st.integers(0, 3),
        smaller_is_better=st.booleans(),
    )
    def submit(
        self,
        experiment_best: int,
        trial_best: int,
        trial_latest: int,
        smaller_is_better: bool,  # noqa: FBT001 - drawn by Hypothesis
    ) -> None:
        """An experiment has some policy."""
        wish = Wish(experiment_best, trial_best, trial_latest, smaller_is_better)
        self.reference = Reference(wish)
        self.tell(submitted(*wish[:3], smaller_is_better=smaller_is_better))

    @rule(steps=_STEPS, trial=_TRIALS, run=_RUNS)
    def store(self, steps: int, trial: int, run: int) -> None:
        """A run stores a checkpoint."""
        number = len(self.names)
        self.names.append(f"{number * 7 % 10}-{number}")
        self.tell(stored(self.names[-1], steps, trial, run))

    @rule(steps=_STEPS, loss=_LOSSES, trial=_TRIALS, run=_RUNS)
    def validate(self, steps: int, loss: MetricValue | None, trial: int, run: int) -> None:
        """A run validates, perhaps again."""
        self.tell(validated(steps, loss, trial, run))

    @rule(steps=_STEPS, loss=st.sampled_from([0.1, 0.2, 0.3, 0.4]), trial=_TRIALS, run=_RUNS)
    def validate_and_store(self, steps: int, loss: float, trial: int, run: int) -> None:
        """A run validates and stores, as most do."""
        self.validate(steps, loss, trial, run)
        self.store(steps, trial, run)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), trial=_TRIALS)
    def damage(self, data: st.DataObject, trial: int) -> None:
        """A run finds a checkpoint damaged, perhaps another trial's or one that is gone."""
        self.tell(damaged(data.draw(st.sampled_from(self.names)), trial))

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        """Another experiment starts from a checkpoint."""
        self.tell(pinned(data.draw(st.sampled_from([*self.names, "never stored"]))))

    @rule(trial=_TRIALS, run=_RUNS, fact=st.sampled_from([exited, run_lost]))
    def end_run(self, trial: int, run: int, fact: type) -> None:
        """A run is over."""
        self.tell(fact(run, trial))

    @rule(trial=_TRIALS)
    def end(self, trial: int) -> None:
        """A trial is over."""
        self.tell(ended(trial))

    @rule(data=st.data(), trial=_TRIALS, told=st.booleans())
    def ask_to_delete(self, data: st.DataObject, trial: int, told: bool) -> None:  # noqa: FBT001 - drawn by Hypothesis
        """A user asks to delete a checkpoint, perhaps one that is gone or of another trial."""
        name = data.draw(st.sampled_from([*self.names, "never stored"]))
        self.tell(unwanted(name, trial, *(["p0000000"] if told else [])))

    @rule(counts=st.tuples(*[st.integers(0, 3)] * 3))
    def change(self, counts: tuple[int, int, int]) -> None:
        """A user changes what is kept."""
        self.tell(retention(*counts))

    @precondition(lambda self: self.experiment.state.retired)
    @rule()
    def delete(self) -> None:
        """The files of a retired checkpoint are gone."""
        self.tell(deleted(next(iter(self.experiment.state.retired))))

    @rule()
    def restart(self) -> None:
        """The service goes on from a snapshot that says the same."""
        before = self.experiment.state
        self.experiment.restart()
        assert before == self.experiment.state

    @invariant()
    def exactly_what_is_wanted_is_there(self) -> None:
        """Between two facts, nothing wanted is missing and nothing unwanted remains."""
        there = {found.checkpoint_id for found in self.reference.there()}
        assert set(self.experiment.kept()) == there == self.reference.wanted()
        assert self.experiment.state.ranking == sorted(self.experiment.state.ranking)

    def teardown(self) -> None:
        """When all trials have ended, exactly the policy's union and the pins remain."""
        for trial in range(3):
            self.tell(ended(trial))
        self.exactly_what_is_wanted_is_there()


ExperimentMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None
)
TestExperiment = ExperimentMachine.TestCase
TestExperiment.__doc__ = "Whatever happens, exactly what some rule names is kept."
