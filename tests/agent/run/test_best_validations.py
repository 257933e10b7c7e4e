"""The best validation of an experiment, as an agent reads it from the ledger for a trial."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.publisher import Publisher
from rung.agent.run import best_validations
from rung.agent.run.best_validations import BestValidations
from rung.core.ipc.protocol import BestFound, BestRequested
from rung.events import LedgerUnavailable, Payload, fact, topic
from rung.events.allocation import AllocationLost
from rung.events.experiment import ExperimentSubmitted
from rung.events.trial import MetricValue, TrialExited, TrialStatusSet, TrialValidated
from rung.ledger import Draft, Ledger, MemoryLedger, Record
from rung.ledger.sqlite.ledger import SqliteLedger
from support.agent_end import run_spec

OWN = "exp00000"
MINUTE = BestRequested(7, 60.0)


def submitted(experiment_id: str = OWN) -> ExperimentSubmitted:
    """Return the beginning of an experiment."""
    return ExperimentSubmitted(experiment_id=experiment_id, config={}, source="", code_digest=None)


def validated(
    trial: int, step: int, loss: MetricValue, run: int = 1, experiment: str = OWN, **more: float
) -> TrialValidated:
    """Return a validation."""
    return TrialValidated(
        experiment_id=experiment,
        trial_id=f"{experiment}.{trial}",
        run=run,
        steps_completed=step,
        metrics={"loss": loss, **more},
    )


def exited(trial: int, run: int = 1) -> TrialExited:
    """Return the end of a run."""
    return TrialExited(
        experiment_id=OWN,
        trial_id=f"{OWN}.{trial}",
        run=run,
        agent_id="a1",
        outcome="failed",
        exit_code=1,
        signal=None,
        message="",
    )


def lost(trial: int, run: int = 1) -> AllocationLost:
    """Return that a run was lost with its agent."""
    return AllocationLost(
        pool="default",
        allocation_id=f"{OWN}.{trial}.{run}",
        experiment_id=OWN,
        trial_id=f"{OWN}.{trial}",
        run=run,
        reason="its agent was lost",
    )


class CountingLedger(MemoryLedger):
    """A ledger that counts what is read, and is away when told so."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.records = 0
        self.away = False

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Read, or be away."""
        if self.away:
            raise LedgerUnavailable("no broker answers")
        found = await super().read(topic, partition, position, limit)
        self.records += len(found)
        return found


class Agent:
    """The parts of an agent that answer."""

    def __init__(self, outbox: Outbox, ledger: Ledger) -> None:
        self.outbox = outbox
        self.publisher = Publisher(outbox, ledger)
        self.answers = BestValidations(ledger, outbox, self.publisher)
        self._ledger = ledger
        self._sequence = 0

    async def record(self, *facts: Payload) -> None:
        """Put facts on record, as agents and services do."""
        drafts = []
        for data in facts:
            self._sequence += 1
            event = fact(data, source="/t", origin="t", sequence=self._sequence, time="2026-01-01")
            drafts.append(Draft.of(event))
        await self._ledger.append(drafts)

    async def best(self, **searcher: Any) -> float | None:
        """Return the answer to a trial, which must be one."""
        config = {"searcher": {"metric": "loss", "smaller_is_better": True} | searcher}
        found = await self.answers.answer(run_spec(config=config), MINUTE)
        assert (found.number, found.problem) == (7, "")
        return found.value


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    """Give an open outbox."""
    made = Outbox(tmp_path / "spool.db")
    made.open("a1", "host")
    yield made
    await made.close()


@pytest.fixture
def ledger() -> CountingLedger:
    """Give a ledger in memory."""
    return CountingLedger()


@pytest.fixture
def agent(outbox: Outbox, ledger: CountingLedger) -> Agent:
    """Give an agent on that ledger."""
    return Agent(outbox, ledger)


@pytest.mark.parametrize(
    ("facts", "smallest", "largest"),
    [
        ([], None, None),
        ([validated(0, 1, "NaN"), validated(0, 2, "-Infinity")], None, None),
        ([validated(0, 1, 0.5), validated(0, 2, "NaN"), validated(1, 1, 0.25)], 0.25, 0.5),
        ([validated(0, 1, 2.0), validated(3, 1, 3.0), exited(3)], 2.0, 3.0),
        ([validated(0, 1, 2.0, experiment="exp00001"), validated(0, 1, 3.0)], 3.0, 3.0),
        ([validated(0, 1, 2.0), exited(0), validated(0, 2, 1.0)], 2.0, 2.0),
        ([validated(0, 1, 2.0), lost(0), validated(0, 2, 9.0)], 2.0, 2.0),
        ([validated(0, 1, 2.0), lost(0), validated(0, 2, 1.0, run=2)], 1.0, 2.0),
        ([validated(0, 3, 2.0), exited(0), validated(0, 2, 1.0, run=2)], 2.0, 2.0),
        ([validated(0, 1, 2.0), validated(0, 1, 1.0)], 2.0, 2.0),
        ([validated(0, 9, 2.0, batches=5.0), validated(0, 8, 1.0, batches=6.0)], 1.0, 2.0),
    ],
    ids=[
        "nothing",
        "no finite value",
        "some finite values",
        "of a trial that has ended",
        "of another experiment",
        "of a run that has ended",
        "of a run that was lost",
        "of the run after it",
        "of a step that was validated by the run before",
        "of one step twice",
        "by the time metric",
    ],
)
async def test_what_counts(
    agent: Agent, facts: list[Payload], smallest: float | None, largest: float | None
) -> None:
    """As in the gateway: finite values, later than the one before, of a run that is not over."""
    await agent.record(submitted("exp00001"), submitted(), *facts)
    assert await agent.best() == smallest
    other = Agent(agent.outbox, agent._ledger)
    assert await other.best(smaller_is_better=False) == largest


async def test_without_a_metric_there_is_none(agent: Agent) -> None:
    """What is not named in the file cannot be compared; another one is not taken for it."""
    await agent.record(submitted(), validated(0, 1, 0.5, accuracy=0.75))
    assert await agent.best(metric=None) is None
    other = Agent(agent.outbox, agent._ledger)
    assert await other.best(metric="accuracy") == 0.75


async def test_a_text_that_names_an_event(agent: Agent) -> None:
    """What a script writes into its facts is neither a submission nor a validation."""
    text = f"{ExperimentSubmitted.TYPE} {TrialValidated.TYPE}"
    status = TrialStatusSet(experiment_id=OWN, trial_id=f"{OWN}.0", run=1, status=text)
    await agent.record(submitted(), validated(0, 1, 0.5), status, validated(0, 2, 0.75))
    assert await agent.best() == 0.5


async def test_the_next_answer_reads_only_what_is_new(
    agent: Agent, ledger: CountingLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reads back to the submission and no further; later ones go on from there."""
    monkeypatch.setattr(best_validations, "_WINDOW", 4)
    monkeypatch.setattr(best_validations, "_WINDOW_MAX", 16)
    others = [validated(0, step, 0.0, experiment="exp00001") for step in range(1, 401)]
    await agent.record(submitted("exp00001"), *others, submitted(), validated(0, 1, 0.5))
    await agent.record(*others[:50])
    assert await agent.best() == 0.5
    assert 2 * 52 <= ledger.records <= 2 * 52 + 16
    before = ledger.records
    assert await agent.best() == 0.5
    assert ledger.records == before
    await agent.record(validated(1, 1, 0.25))
    assert await agent.best() == 0.25
    assert ledger.records == before + 1


async def test_a_ledger_in_a_file(outbox: Outbox, tmp_path: Path) -> None:
    """Where others are skipped by the ledger itself, the answer is the same."""
    ledger = await SqliteLedger.open(tmp_path / "ledger")
    try:
        agent = Agent(outbox, ledger)
        facts = [validated(trial, 1, 1.0 + trial) for trial in range(300)]
        others = [validated(0, step, 0.0, experiment="exp00001") for step in range(1, 2_001)]
        await agent.record(submitted("exp00001"), submitted(), *facts, *others)
        assert await agent.best() == 1.0
        await agent.record(validated(7, 2, 0.5))
        assert await agent.best() == 0.5
    finally:
        await ledger.close()


async def test_only_so_many_experiments_are_kept(
    agent: Agent, ledger: CountingLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was dropped is read anew; those asked for last are not."""
    monkeypatch.setattr(best_validations, "_KEPT", 2)
    names = ["exp00000", "exp00001", "exp00002"]
    for name in names:
        await agent.record(submitted(name), validated(0, 1, 0.5, experiment=name))

    async def reads(name: str) -> bool:
        before = ledger.records
        spec = run_spec(experiment_id=name)
        assert (await agent.answers.answer(spec, MINUTE)).value == 0.5
        return ledger.records > before

    assert [await reads(name) for name in names] == [True] * 3
    assert [await reads(name) for name in reversed(names)] == [False, False, True]


async def test_own_reports_count(agent: Agent) -> None:
    """What the trial has reported before it asks is awaited, until the ledger has it."""
    await agent.record(submitted(), validated(1, 1, 0.5))
    agent.outbox.put(validated(0, 1, 0.25))
    asking = asyncio.create_task(agent.best())
    publishing = asyncio.create_task(agent.publisher.run())
    assert await asking == 0.25
    publishing.cancel()


async def test_reports_that_cannot_be_published(agent: Agent) -> None:
    """Then there is no answer in time, and it says why."""
    await agent.record(submitted())
    agent.outbox.put(validated(0, 1, 0.25))
    found = await agent.answers.answer(run_spec(), BestRequested(7, 0.05))
    assert found == BestFound(
        7,
        problem="the trial's own reports are not on record yet after 0.05 s, because the ledger is"
        " slow or away",
    )


async def test_a_ledger_that_is_away(agent: Agent, ledger: CountingLedger) -> None:
    """The answer is the ledger's error; once it is back, the next request is answered."""
    await agent.record(submitted(), validated(0, 1, 0.5))
    ledger.away = True
    found = await agent.answers.answer(run_spec(), MINUTE)
    problem = "the experiment's validations could not all be read: no broker answers"
    assert found == BestFound(7, problem=problem)
    ledger.away = False
    assert await agent.best() == 0.5


async def test_a_submission_that_was_removed(agent: Agent, ledger: CountingLedger) -> None:
    """Without the beginning of the record there is no best of all."""
    await agent.record(submitted(), validated(0, 1, 0.5), validated(0, 2, 1.0))
    await ledger.trim(topic.EXPERIMENTS, 0, 2)
    found = await agent.answers.answer(run_spec(), MINUTE)
    assert found.value is None
    assert "the submission of exp00000 was removed from the ledger" in found.problem
