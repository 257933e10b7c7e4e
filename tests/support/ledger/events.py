"""Events for the tests of the archive: a ledger in which some experiments were decided."""

from rung.events import Event, Payload, decision, fact
from rung.events.allocation import AgentJoined, AllocationDropped, Slot
from rung.events.checkpoint import CheckpointRetired
from rung.events.experiment import ExperimentPaused, PauseRequested
from rung.events.metric import LogLine, LogsPrinted, MetricRow, MetricsReported
from rung.ledger import Draft, Ledger

TIME = "2025-01-01T00:00:00Z"


def drafted(event: Event) -> Draft:
    """Return the draft of an event."""
    return Draft.of(event)


async def state_fact(ledger: Ledger, payload: Payload, number: int) -> tuple[Event, int]:
    """Append a fact; return it with its position."""
    event = fact(payload, source="/rung/test", origin="test", sequence=number, time=TIME)
    (position,) = await ledger.append([drafted(event)])
    return event, position


async def decide(ledger: Ledger, payload: Payload, cause: Event, position: int) -> None:
    """Append a decision."""
    event = decision(payload, source="/rung/test", cause=cause, position=position, index=0)
    await ledger.append([drafted(event)])


async def populate(ledger: Ledger, experiments: list[str], rounds: int = 5) -> None:
    """Write facts with their decisions on all topics, those of all experiments interleaved."""
    number = 0
    for _ in range(rounds):
        for key in experiments:
            number += 1
            cause, position = await state_fact(ledger, PauseRequested(experiment_id=key), number)
            await decide(ledger, ExperimentPaused(experiment_id=key), cause, position)
            retired = CheckpointRetired(
                experiment_id=key, trial_id=f"{key}.0", checkpoint_id="c", reason="old"
            )
            await decide(ledger, retired, cause, position)
            row = MetricRow(kind="training", step=number, time_ms=0, values={"loss": 0.1})
            line = LogLine(rank=0, stream="stdout", level="info", time_ms=0, text="one\ntwo 世界")
            trial = f"{key}.0"
            for stream in (
                MetricsReported(experiment_id=key, trial_id=trial, run=1, rows=[row]),
                LogsPrinted(experiment_id=key, trial_id=trial, run=1, lines=[line]),
            ):
                number += 1
                await state_fact(ledger, stream, number)
        number += 1
        slot = Slot(id=0, kind="cpu", name="CPU slot 0")
        joined = AgentJoined(
            pool="default", agent_id="a", incarnation=number, hostname="h", slots=[slot]
        )
        cause, position = await state_fact(ledger, joined, number)
        dropped = AllocationDropped(
            pool="default",
            allocation_id="x.0.1",
            experiment_id="x",
            trial_id="x.0",
            run=1,
            reason="-",
        )
        await decide(ledger, dropped, cause, position)
