"""Progress: between 0 and 1, growing, and 1 only at the end; time left when it can be told."""

import msgspec
import pytest

from gateway.scenario import EXPERIMENT, History, play, shown, submitted, tables
from rung.events import Payload, decision, fact
from rung.events.experiment import BracketPlan
from rung.events.trial import TrialPromoted, TrialRequested
from rung.gateway.projections.experiment import Experiment, Trial, Validation
from rung.gateway.projections.experiment_fold import evolve
from rung.gateway.projections.throughput import Throughput, seconds_of
from rung.gateway.serializers import experiments as serializers
from rung.gateway.serializers.progress import progress_of, rung_of


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
    return Experiment("x", method="m", plan=plan, trials=made, units=units_all)


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
    progress = progress_of(_experiment(plan, trials), now=0)

    assert progress.fraction == pytest.approx(fraction)
    assert progress.units_full == full


@pytest.mark.parametrize(
    ("units", "runs", "left"),
    [
        # Nine trials of which three went on to 3 and two to 9 have trained more than expected:
        # what is left are the runs that were asked for, each to its next rung.
        ([1, 1, 1, 1, 1, 1, 3, 9, 9], [6], 6),
        ([1, 1, 1, 1, 1, 1, 3, 9, 9], [0, 6], 2 + 6),
        ([1, 1, 1, 1, 1, 1, 3, 9], [6], 6 + 1),
        # Before that, what is expected is more.
        ([1, 1, 1, 1, 1, 1, 1, 1, 1], [0], 12),
    ],
)
def test_time_left_covers_what_is_asked_for(
    units: list[float], runs: list[int], left: float
) -> None:
    """It does not end up at nothing while trials wait for their turn."""
    experiment = _experiment(LADDER, [(0, trained, False) for trained in units])
    experiment.throughput = Throughput([(0.0, 0.0), (10.0, 10.0)])
    for trial in experiment.trials:
        trial.run, trial.over = 1, 0 if trial.index in runs else 1

    assert progress_of(experiment, now=10.0).eta_seconds == pytest.approx(left)


@pytest.mark.parametrize("name", ["async_halving", "hyperband", "random", "adaptive_asha"])
@pytest.mark.parametrize("seed", range(5))
def test_progress_grows(name: str, seed: int) -> None:
    """Event by event it never shrinks, and reaches 1 with the end alone."""
    history = play(seed, name=name)
    fold = tables()
    fold.hold([it.record for it in history.decisions])
    last = 0.0
    for written in history.facts:
        fold.fold([written.record])
        state = shown(fold)
        progress = progress_of(state, now=0)
        assert last <= progress.fraction + 1e-9
        assert (progress.fraction == 1.0) == (state.ended is not None)
        last = progress.fraction


def test_rung_of_a_trial() -> None:
    """The highest rung whose length it has reached; none before the first."""
    trial = Trial(index=0, bracket=0, hparams={}, seed=0)
    found = []
    for time in (0.5, 1, 2, 3, 9, 20):
        trial.validations.append(Validation(int(time), time, {}))
        found.append(rung_of(trial, [1, 3, 9]))

    assert found == [None, 0, 0, 1, 2, 2]


def test_throughput() -> None:
    """Units left over the rate that was seen, less the time that has passed since."""
    throughput = Throughput()
    assert throughput.seconds_for(10, now=0) is None
    throughput.add("2026-01-01T00:00:00Z", 0)
    assert throughput.seconds_for(10, now=0) is None
    throughput.add("2026-01-01T00:00:10Z", 5)
    now = seconds_of("2026-01-01T00:00:12Z")
    assert now is not None
    assert throughput.seconds_for(10, now) == 18
    assert throughput.seconds_for(10, now + 100) == 0


def test_throughput_with_odd_clocks() -> None:
    """Times that go back, stand still or are none are left out; a pause begins anew."""
    throughput = Throughput()
    for time, units in (("2026-01-01T00:00:10Z", 1), ("2026-01-01T00:00:05Z", 2), ("soon", 3)):
        throughput.add(time, units)
    assert len(throughput.marks) == 1
    throughput.add("2026-01-01T00:00:10Z", 4)
    assert throughput.seconds_for(1, now=0) is None
    throughput.reset()
    assert throughput.marks == []


def test_throughput_is_bounded() -> None:
    """Only the newest reports are kept."""
    throughput = Throughput()
    for second in range(200):
        throughput.add(f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z", second)

    assert len(throughput.marks) == 64


def test_nothing_planned_yet() -> None:
    """Before the searcher has spoken there is neither progress nor an estimate."""
    history = History()
    history.write(submitted(), origin="client/x")
    fold = tables()
    fold.fold([it.record for it in history.facts])

    assert progress_of(shown(fold), 0) == (0.0, 0.0, None, None)


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
