"""A script's life as a run: reports, goals, preemption, refusal."""

import math
import os

import pytest
from structlog.testing import capture_logs

from core.conftest import Managed
from rung import core
from rung.core._train import TargetLength
from rung.core.ipc.protocol import Acknowledged, Hello, HparamsRefused
from support.agent_end import TOKEN, run_spec


def test_a_run_introduces_itself_and_learns_what_it_is(managed: Managed) -> None:
    """The process proves that it may speak, and knows hyperparameters, seed and the rest."""
    agent, ctx = managed(run=2, length=10)
    (hello,) = agent.hellos
    assert hello == Hello("exp00000.3.2", TOKEN, 0, os.getpid(), hello.stream)
    assert len(hello.stream) == 16
    assert (ctx.hparams, ctx.seed) == ({"lr": 0.1}, 17)
    assert ctx.info.managed
    assert (ctx.info.agent_id, ctx.info.slot_ids) == ("agent-1", [0])
    trial = ctx.info.trial
    assert (trial.trial_id, trial.run, trial.length) == ("exp00000.3", 2, 10)
    assert core.get_info() == ctx.info
    assert len(agent.hellos) == 1


def test_reports_arrive_in_order_and_before_the_end(managed: Managed) -> None:
    """Whatever was reported is with the agent once the context is closed."""
    agent, ctx = managed()
    for step in range(1, 301):
        ctx.train.report_training_metrics(step, {"loss": 1 / step})
    ctx.train.report_validation_metrics(300, {"loss": math.nan, "accuracy": -math.inf})
    ctx.train.report_metrics("test", 300, {"loss": 1})
    ctx.close()
    agent.wait_for_end()
    assert [step for step, _ in agent.reports("training")] == list(range(1, 301))
    assert agent.reports("validation") == [(300, {"loss": "NaN", "accuracy": "-Infinity"})]
    assert agent.reports("test") == [(300, {"loss": 1.0})]


def test_a_validation_without_the_searchers_metric_is_refused(managed: Managed) -> None:
    """The error names the metric, the field that asks for it, and what was given."""
    agent, ctx = managed()
    with pytest.raises(
        core.MetricMissing, match=r"lack 'loss'.*searcher\.metric; given: 'accuracy'"
    ):
        ctx.train.report_validation_metrics(1, {"accuracy": 0.5})
    ctx.close()
    agent.wait_for_end()
    assert agent.messages == []


def test_metrics_that_are_too_large_are_refused(managed: Managed) -> None:
    """What a ledger might not take never leaves the script, which learns why, and goes on."""
    agent, ctx = managed()
    with pytest.raises(core.ReportRefused, match=r"step 3: 40000 values make \d+ bytes.* fewer"):
        ctx.train.report_training_metrics(3, {f"loss{n}": 1.0 for n in range(40_000)})
    ctx.train.report_training_metrics(4, {"loss": 1.0})
    ctx.close()
    agent.wait_for_end()
    assert agent.reports("training") == [(4, {"loss": 1.0})]


def test_a_time_metric_of_its_own_must_be_reported(managed: Managed) -> None:
    """A search by a metric of the script's cannot go on without it, nor with NaN."""
    _, ctx = managed(time_metric="tokens", length=100)
    with pytest.raises(core.MetricMissing, match=r"lack 'tokens'.*searcher\.time_metric"):
        ctx.train.report_validation_metrics(1, {"loss": 0.5})
    with pytest.raises(core.ReportRefused, match=r"'tokens'.*finite"):
        ctx.train.report_validation_metrics(1, {"loss": 0.5, "tokens": math.nan})
    ctx.train.report_validation_metrics(1, {"loss": 0.5, "tokens": 99})
    assert not ctx.preempt.should_preempt()
    ctx.train.report_validation_metrics(2, {"loss": 0.5, "tokens": 100})
    assert ctx.preempt.should_preempt()


@pytest.mark.parametrize(("unit", "steps"), [("epochs", [3, 500, 1000]), ("records", [5, 10])])
def test_steps_that_hardly_are_what_the_search_counts_are_told(
    managed: Managed, unit: str, steps: list[int]
) -> None:
    """Batches in place of epochs end a run far too soon, and in place of records far too late."""
    _, ctx = managed(time_metric=unit, length=16)
    with capture_logs() as logs:
        for step in steps:
            ctx.train.report_validation_metrics(step, {"loss": 0.5})
    [line] = logs
    assert line["log_level"] == "warning"
    assert f"report '{unit}' with each validation" in line["event"]


@pytest.mark.parametrize(
    ("unit", "metrics"), [("epochs", {}), ("batches", {}), ("records", {"records": 4})]
)
def test_steps_may_be_counted_as_the_search_counts(
    managed: Managed, unit: str, metrics: dict[str, int]
) -> None:
    """A script whose steps are epochs, or that says the time itself, hears nothing of it."""
    _, ctx = managed(time_metric=unit, length=4)
    with capture_logs() as logs:
        for step in range(1, 5):
            ctx.train.report_validation_metrics(step, {"loss": 0.5} | metrics)
    assert ctx.preempt.should_preempt()
    assert logs == []


def test_ranks_other_than_the_chief_tell_of_no_doubt() -> None:
    """All ranks report the same, and one of them speaks for the run."""
    target = TargetLength(run_spec(time_metric="records", length=4), tells=False)
    with capture_logs() as logs:
        target.check(4, {"loss": 0.5})
    assert target.reached
    assert logs == []


def test_a_run_at_its_length_has_finished(managed: Managed) -> None:
    """Leaving at the length is no acknowledged preemption; the step counts as batches."""
    agent, ctx = managed(length=2)
    ctx.train.report_validation_metrics(1, {"loss": 0.5})
    assert not ctx.preempt.should_preempt()
    ctx.train.report_validation_metrics(2, {"loss": 0.5})
    assert ctx.preempt.should_preempt()
    ctx.close()
    agent.wait_for_end()
    assert agent.of(Acknowledged) == []


def test_training_metrics_do_not_reach_the_length(managed: Managed) -> None:
    """Only a validation counts towards the length."""
    _, ctx = managed(length=2)
    ctx.train.report_training_metrics(5, {"loss": 0.5})
    assert not ctx.preempt.should_preempt()


def test_a_preemption_is_seen_and_acknowledged_once(managed: Managed) -> None:
    """The answer to the first look that sees it; later looks say the same and send nothing."""
    agent, ctx = managed()
    assert not ctx.preempt.should_preempt()
    agent.preempt()
    while not ctx.preempt.should_preempt(auto_ack=False):
        pass
    assert agent.of(Acknowledged) == []
    assert ctx.preempt.should_preempt()
    assert ctx.preempt.should_preempt()
    ctx.close()
    agent.wait_for_end()
    assert agent.of(Acknowledged) == [Acknowledged()]


def test_refused_hyperparameters_are_told(managed: Managed) -> None:
    """An InvalidHP that leaves the block reaches the agent with its words, and goes on."""
    agent, ctx = managed()
    with pytest.raises(core.InvalidHP), ctx:
        raise core.InvalidHP("kernel larger than the image")
    agent.wait_for_end()
    assert agent.messages == [HparamsRefused("kernel larger than the image")]


def test_an_early_exit_is_told(managed: Managed) -> None:
    """Determined's way of saying the same."""
    agent, ctx = managed()
    ctx.train.report_early_exit(core.EarlyExitReason.INVALID_HP)
    agent.wait_for(lambda end: len(end.of(HparamsRefused)) == 1)


def test_another_error_is_not_swallowed(managed: Managed) -> None:
    """What was reported before a crash arrives, and the crash stays a crash."""
    agent, ctx = managed()

    def train() -> None:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ctx:
        train()
    agent.wait_for_end()
    assert len(agent.messages) == 1


def test_reports_after_the_end_are_refused(managed: Managed) -> None:
    """A closed context says so."""
    _, ctx = managed()
    ctx.close()
    ctx.close()
    with pytest.raises(RuntimeError, match="closed"):
        ctx.train.report_training_metrics(1, {"loss": 1.0})


def test_heartbeats_are_told_at_most_once_a_second(managed: Managed) -> None:
    """A sign of life may be given in every step: the agent hears of few of them."""
    agent, ctx = managed()
    for _ in range(1_000):
        ctx.train.heartbeat()
    assert agent.beats <= 1
    ctx.train._heartbeat_at = 0.0  # as after a second
    ctx.train.heartbeat()
    ctx.close()
    agent.wait_for_end()
    assert 1 <= agent.beats <= 2
    assert agent.messages == []
