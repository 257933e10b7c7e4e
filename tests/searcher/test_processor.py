"""The life of an experiment."""

from typing import Any

import msgspec
import pytest

from rung.events import Payload
from rung.events.allocation import AgentLeft
from rung.events.checkpoint import CheckpointDamaged
from rung.events.errors import InvalidConfig
from rung.events.experiment import CancelRequested, SearchPlanned, Submission
from rung.events.trial import RunRequested, RunWithdrawn, TrialRequested, TrialStarted
from rung.methods.rng import trial_seed
from rung.searcher.processor import Searcher
from rung.searcher.state import State
from support.runtime.bare import Bare
from support.searcher.scenario import (
    EXPERIMENT,
    Scenario,
    config,
    exited,
    kinds,
    submitted,
    validated,
)


def two(**fields: Any) -> Scenario:
    """Return a search of four trials, two at once."""
    return Scenario(config(**({"max_trials": 4, "max_concurrent_trials": 2} | fields)))


def state_of(decisions: list[Payload]) -> str:
    """Return the state in which the experiment ended."""
    assert kinds(decisions)[-1] == "ExperimentEnded"
    return decisions[-1].state  # type: ignore[union-attr]


def test_a_submission_is_planned_and_started() -> None:
    """First the plan, then each trial with its run, complete enough to be trained."""
    settings = config(max_trials=2)
    scenario = Scenario(settings, code_digest="c0de")
    planned, requested, run, *_ = scenario.first
    assert isinstance(planned, SearchPlanned)
    assert (planned.method, planned.time_metric) == ("random", "epochs")
    assert isinstance(requested, TrialRequested)
    assert requested.seed == trial_seed(7, 0)
    assert isinstance(run, RunRequested)
    assert (run.pool, run.slots, run.priority, run.reason) == ("a", 1, 42, "first run")
    assert (run.spec.trial_id, run.spec.run, run.spec.length) == (f"{EXPERIMENT}.0", 1, 16)
    assert (run.spec.code_digest, run.spec.hparams) == ("c0de", requested.hparams)
    expected = {name: value for name, value in settings.items() if name != "hyperparameters"}
    assert run.spec.config == expected


def test_runs_carry_the_submission() -> None:
    """Each run is for whom the experiment is, also after a restart; the file's weight is not read.

    What an earlier release recorded has no submission, whatever weight its file had.
    """
    settings = config(max_trials=2)
    settings["resources"]["weight"] = 3.0
    submission = Submission(owner="ada", workspace="vision", weight=2.0, time_ms=7)
    for said in (submission, None):
        searcher = Searcher()
        state = searcher.initial(EXPERIMENT)
        fact = msgspec.structs.replace(submitted(settings), submission=said)
        searcher.evolve(state, fact)
        state = msgspec.json.decode(msgspec.json.encode(state), type=State)
        decisions = searcher.decide(state, fact)

        runs = [each for each in decisions if isinstance(each, RunRequested)]
        assert [run.submission for run in runs] == [said, said]


@pytest.mark.parametrize("digest", [None, "9f86d081"])
def test_runs_name_the_configuration_or_carry_it(digest: str | None) -> None:
    """Whether an experiment was submitted with a digest is on record; so is what its runs say."""
    settings = config(max_trials=1)
    searcher = Searcher()
    state = searcher.initial(EXPERIMENT)
    fact = msgspec.structs.replace(submitted(settings), config_digest=digest)
    searcher.evolve(state, fact)
    state = msgspec.json.decode(msgspec.json.encode(state), type=State)
    decisions = searcher.decide(state, fact)
    [spec] = [each.spec for each in decisions if isinstance(each, RunRequested)]
    whole = {name: value for name, value in settings.items() if name != "hyperparameters"}

    assert spec.config_digest == digest
    assert spec.config == ({} if digest else whole)
    assert (b'"config":' in msgspec.json.encode(spec)) == (digest is None)


def test_a_configuration_that_cannot_be_searched_is_raised() -> None:
    """It got past the gateway, so the experiment is set aside with the field's path."""
    searcher = Bare(Searcher())
    with pytest.raises(InvalidConfig, match=r"searcher\.max_trials"):
        searcher.evolve(searcher.initial(EXPERIMENT), submitted(config()))


def test_a_pause_withdraws_and_a_resumption_requests() -> None:
    """Paused runs leave with a checkpoint; afterwards the same trials go on."""
    scenario = two()
    decisions = scenario.pause()
    assert kinds(decisions) == ["ExperimentPaused", "RunWithdrawn", "RunWithdrawn"]
    assert isinstance(decisions[1], RunWithdrawn)
    assert decisions[1].how == "preempt"
    assert scenario.exit(0, "preempted") == []
    assert scenario.drop(1) == []
    decisions = scenario.resume()
    assert kinds(decisions) == ["ExperimentResumed", "RunRequested", "RunRequested"]
    assert [spec.run for spec in scenario.specs.values()] == [2, 2]


def test_pausing_twice_is_pausing_once() -> None:
    """A second pause, and a second resumption, change nothing."""
    scenario = two()
    scenario.pause()
    assert scenario.pause() == []
    scenario.resume()
    assert scenario.resume() == []


def test_resuming_before_the_exit_arrived() -> None:
    """The new run is requested when the old one has ended, also after a second pause."""
    scenario = two()
    scenario.pause()
    assert kinds(scenario.resume()) == ["ExperimentResumed"]
    assert kinds(scenario.exit(0, "preempted")) == ["RunRequested"]
    assert kinds(scenario.pause()) == ["ExperimentPaused", "RunWithdrawn"]
    assert scenario.exit(1, "preempted") == []


def test_nothing_starts_while_paused() -> None:
    """A trial that ends within a pause makes room that is filled afterwards."""
    scenario = two()
    scenario.report(0, 16, 0.5)
    scenario.pause()
    assert kinds(scenario.exit(0)) == ["TrialClosed"]
    assert kinds(scenario.resume()) == ["ExperimentResumed", "TrialRequested", "RunRequested"]


def test_a_paused_search_without_anything_left_ends() -> None:
    """When the last trial ends within a pause, so does the experiment."""
    scenario = two(max_trials=1)
    scenario.report(0, 16, 0.5)
    scenario.pause()
    assert state_of(scenario.exit(0)) == "completed"


def test_a_stop_within_a_pause() -> None:
    """A report of a run that is leaving still counts, and may end its trial."""
    scenario = Scenario(config("async_halving", max_trials=2, num_rungs=2, divisor=4.0))
    scenario.report(0, 4, 0.1)
    scenario.pause()
    assert kinds(scenario.report(1, 4, 0.2)) == ["TrialStopped"]
    assert kinds(scenario.exit(1, "preempted")) == ["TrialClosed"]


def test_a_cancellation_lets_trials_checkpoint() -> None:
    """Runs are preempted, trials closed as they leave, the experiment with the last of them."""
    scenario = two()
    decisions = scenario.cancel()
    assert kinds(decisions) == ["RunWithdrawn", "RunWithdrawn"]
    assert isinstance(decisions[0], RunWithdrawn)
    assert decisions[0].how == "preempt"
    assert kinds(scenario.exit(1, "preempted")) == ["TrialClosed"]
    assert kinds(scenario.resume()) == []
    assert kinds(scenario.pause()) == []
    assert state_of(scenario.exit(0, "failed")) == "canceled"


def test_a_kill_after_a_cancellation() -> None:
    """Those that do not leave are killed; a second kill and a late cancellation add nothing."""
    scenario = two()
    scenario.cancel()
    decisions = scenario.kill()
    assert kinds(decisions) == ["RunWithdrawn", "RunWithdrawn"]
    assert isinstance(decisions[0], RunWithdrawn)
    assert decisions[0].how == "kill"
    assert scenario.kill() == []
    assert scenario.cancel() == []
    scenario.exit(0, "killed")
    assert state_of(scenario.exit(1, "killed")) == "canceled"


@pytest.mark.parametrize("way", ["cancel", "kill"])
def test_a_paused_experiment_ends_at_once(way: str) -> None:
    """Where nothing runs any more there is nothing to wait for."""
    scenario = two()
    scenario.pause()
    scenario.exit(0, "preempted")
    scenario.exit(1, "preempted")
    decisions = getattr(scenario, way)()
    assert kinds(decisions) == ["TrialClosed", "TrialClosed", "ExperimentEnded"]
    assert state_of(decisions) == "canceled"


def test_resting_trials_are_canceled_too() -> None:
    """A trial that waits for the others of its rung is closed at once."""
    scenario = Scenario(config("hyperband", max_time=4, divisor=2.0))
    scenario.train(0, 0.5)
    decisions = scenario.cancel()
    assert kinds(decisions)[-1] == "TrialClosed"
    assert decisions[-1].trial_id == f"{EXPERIMENT}.0"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (("finished", "finished"), "completed"),
        (("failed", "finished"), "completed"),
        (("failed", "failed"), "errored"),
        (("invalid_hp", "failed"), "errored"),
    ],
)
def test_one_good_trial_completes_an_experiment(ends: tuple[Any, Any], expected: str) -> None:
    """An experiment is errored when all of its trials are."""
    space = {"a": {"type": "categorical", "vals": [1, 2]}}
    scenario = Scenario(config("grid", space=space, max_restarts=0))
    for index, end in enumerate(ends):
        scenario.report(index, 1, 0.5)
        decisions = scenario.exit(index, end)
    assert state_of(decisions) == expected


def test_after_the_end_nothing_follows() -> None:
    """Whatever is said of an ended experiment changes nothing, and little is kept of it."""
    scenario = two(max_trials=1)
    scenario.train(0, 0.5)
    assert (scenario.state.phase, scenario.state.experiment) == ("ended", None)
    assert scenario.exit(0) == []
    assert scenario.cancel() == []
    assert scenario.tell(submitted(config(max_trials=1))) == []


def test_decisions_on_record_are_authoritative() -> None:
    """Where another version let a trial go on, it goes on; it is not stopped after its end."""
    scenario = Scenario(config("async_halving", max_trials=3, num_rungs=2, divisor=4.0))
    scenario.report(0, 4, 0.1)
    scenario.evolve(validated(1, 4, 0.2))
    scenario.evolve(validated(1, 16, 0.05))
    scenario.evolve(exited(1, 1, "finished"))
    [closed, *rest] = scenario.report(2, 3, 0.3)
    assert closed.state == "completed"  # type: ignore[union-attr]
    assert rest == []


def test_requests_before_a_submission_are_ignored() -> None:
    """An experiment that is not known cannot be canceled."""
    searcher = Bare(Searcher())
    state = searcher.initial(EXPERIMENT)
    fact = CancelRequested(experiment_id=EXPERIMENT)
    searcher.evolve(state, fact)
    assert (searcher.decide(state, fact), state.phase) == ([], "new")


def test_a_second_submission_changes_nothing() -> None:
    """An experiment is what it was submitted as."""
    scenario = two()
    assert scenario.tell(submitted(config("single"))) == []


def test_facts_of_no_concern_change_nothing() -> None:
    """That a process lives, or what another topic says, is folded without effect."""
    scenario = two()
    trial: dict[str, Any] = {"experiment_id": EXPERIMENT, "trial_id": f"{EXPERIMENT}.0", "run": 1}
    assert scenario.tell(TrialStarted(agent_id="a1", **trial)) == []
    assert scenario.tell(AgentLeft(pool="a", agent_id="a1", incarnation=1)) == []


def test_a_damaged_checkpoint_is_not_restored_again() -> None:
    """What a run found damaged is left out of the next run's choices."""
    scenario = two()
    scenario.store(0, 100, "a")
    scenario.store(0, 200, "b")
    fact = CheckpointDamaged(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.0",
        run=1,
        checkpoint_id="b",
        reason="a digest differs",
    )
    assert scenario.tell(fact) == []
    scenario.exit(0, "failed")
    assert scenario.specs[0].restore == ["a"]
