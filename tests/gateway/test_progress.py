"""Progress: between 0 and 1, growing, and 1 only of a completed experiment."""

import msgspec
import pytest

from rung.events import Payload, decision, fact
from rung.events.experiment import BracketPlan, ExperimentState
from rung.events.trial import TrialPromoted, TrialRequested
from rung.gateway.projections.experiment import Experiment, Trial, Validation
from rung.gateway.projections.experiment_fold import evolve
from rung.gateway.serializers import experiments as serializers
from rung.gateway.serializers.progress import progress_of, rung_of
from support.gateway.scenario import EXPERIMENT, History, play, shown, submitted, tables
from support.gateway.tally import counted


def _experiment(plan: list[BracketPlan], trials: list[tuple[int, float, bool]]) -> Experiment:
    """Return an experiment whose trials are (bracket, units, whether closed)."""
    made = []
    for index, (bracket, units, closed) in enumerate(trials):
        trial = Trial(index=index, bracket=bracket, hparams={}, seed=0)
        if units:
            trial.validations.append(Validation(int(units), units, {}))
        trial.closed = "completed" if closed else None
        made.append(trial)
    units_all = sum(units for _, units, _ in trials)
    found = Experiment("x", method="m", plan=plan, trials=made, units=units_all)
    found.tally = counted(found)
    return found


FLAT = [BracketPlan(bracket=0, lengths=[10], trials=4)]
LADDER = [BracketPlan(bracket=0, lengths=[1, 3, 9], trials=9)]
POPULATION = [BracketPlan(bracket=0, lengths=[2, 4], trials=2, trained=[2, 2])]
ENDLESS = [BracketPlan(bracket=0, lengths=[], trials=4)]


@pytest.mark.parametrize(
    ("plan", "trials", "fraction", "full"),
    [
        ([], [], 0.0, None),
        (FLAT, [], 0.0, 40),
        (FLAT, [(0, 10, True), (0, 5, False)], 15 / 40, 40),
        (FLAT, [(0, 10, False)] * 4, 0.99, 40),
        # One that failed at once counts as done; one that trained too far counts as far as asked.
        (FLAT, [(0, 0, True), (0, 0, True)], 0.5, 40),
        (FLAT, [(0, 30, True)], 0.25, 40),
        # A replacement for refused hyperparameters is one trial more.
        (FLAT, [(0, 0, True), *[(0, 10, True)] * 4], 0.99, 50),
        # 9 to 1, 3 on to 3, 1 on to 9: 9 + 6 + 6 = 21 units.
        (LADDER, [(0, 1, False)] * 9, 9 / 21, 81),
        (LADDER, [*[(0, 1, False)] * 6, *[(0, 3, False)] * 3], 15 / 21, 81),
        (ENDLESS, [(0, 7, True), (0, 3, False)], 0.25, None),
        # All go all the way, and the plan tells.
        (POPULATION, [(0, 4, False), (0, 2, False)], 6 / 8, 8),
        (
            [*LADDER, BracketPlan(bracket=1, lengths=[9], trials=3)],
            [(1, 9, True)] * 3,
            27 / 48,
            81 + 27,
        ),
    ],
)
def test_fraction(
    plan: list[BracketPlan],
    trials: list[tuple[int, float, bool]],
    fraction: float,
    full: float | None,
) -> None:
    """Training done against training expected."""
    progress = progress_of(_experiment(plan, trials))

    assert progress.fraction == pytest.approx(fraction)
    assert progress.units_full == full


def test_no_further_than_its_trials() -> None:
    """More trials than expected that train in full do not make up for those to come."""
    ladder = [BracketPlan(bracket=0, lengths=[1, 3, 9], trials=9)]
    progress = progress_of(_experiment(ladder, [(0, 9, True)] * 3))

    assert progress.fraction == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["async_halving", "hyperband", "random", "adaptive_asha"])
@pytest.mark.parametrize("seed", range(5))
def test_progress_grows(name: str, seed: int) -> None:
    """Event by event it never shrinks, and reaches 1 with its completion alone."""
    history = play(seed, name=name)
    fold = tables()
    fold.hold([it.record for it in history.decisions])
    last = 0.0
    for written in history.facts:
        fold.fold([written.record])
        state = shown(fold)
        progress = progress_of(state)
        assert last <= progress.fraction + 1e-9
        assert (progress.fraction == 1.0) == (state.ended == "completed")
        last = progress.fraction


@pytest.mark.parametrize("state", ["errored", "canceled"])
def test_what_was_not_completed_is_as_far_as_it_got(state: ExperimentState) -> None:
    """Three of nine trials were begun when it ended: two lengths were trained."""
    plan = [BracketPlan(bracket=0, lengths=[9], trials=9)]
    experiment = _experiment(plan, [(0, 9, True), (0, 6, True), (0, 3, True)])
    experiment.ended = state

    assert progress_of(experiment).fraction == pytest.approx(2 / 9)


def test_rung_of_a_trial() -> None:
    """The highest rung whose length it has reached; none before the first."""
    trial = Trial(index=0, bracket=0, hparams={}, seed=0)
    found = []
    for time in (0.5, 1, 2, 3, 9, 20):
        trial.validations.append(Validation(int(time), time, {}))
        found.append(rung_of(trial, [1, 3, 9]))

    assert found == [None, 0, 0, 1, 2, 2]


def test_nothing_planned_yet() -> None:
    """Before the searcher has spoken there is neither progress nor an estimate."""
    history = History()
    history.write(submitted(), origin="client/x")
    fold = tables()
    fold.fold([it.record for it in history.facts])

    assert progress_of(shown(fold)) == (0.0, 0.0, None)


def test_changed_hyperparameters_and_parents_are_the_trials() -> None:
    """A trial that goes on with others, or with another's weights, is shown with those."""
    state = Experiment(EXPERIMENT)
    cause = fact(submitted(), source="/rung/test", origin="t", sequence=0, time="")
    trial_id = f"{EXPERIMENT}.0"
    requested = TrialRequested(
        experiment_id=EXPERIMENT,
        trial_id=trial_id,
        index=0,
        bracket=0,
        hparams={"lr": 1},
        seed=0,
        parent="donor000.3",
    )
    same = TrialPromoted(
        experiment_id=EXPERIMENT, trial_id=trial_id, rung=1, length=2, reason="best"
    )
    other = msgspec.structs.replace(same, hparams={"lr": 2}, parent=f"{EXPERIMENT}.1")
    decisions: list[Payload] = [requested, same, other, same]
    shown = []
    for index, data in enumerate(decisions):
        event = decision(data, source="/rung/searcher", cause=cause, position=0, index=index)
        evolve(state, event)
        answered = serializers.trial(state, state.trials[0])
        shown.append((answered.hparams["lr"], answered.parent))

    first, second = "donor000.3", f"{EXPERIMENT}.1"
    assert shown == [(1, first), (1, first), (2, second), (2, second)]
