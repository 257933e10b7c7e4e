"""What an agent tells of its runs and of its outbox."""

from dataclasses import dataclass
from pathlib import Path

from rung.agent.membership.suspension import Suspension
from rung.agent.monitoring.agent_metrics import measured
from rung.agent.outbox.outbox import Outbox
from rung.events import decode
from rung.events.allocation import AgentLeft
from rung.runtime.metrics import catalog
from rung.runtime.tracing import following

_GONE = AgentLeft(pool="default", agent_id="a", incarnation=1)
_TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@dataclass
class _Run:
    launched: bool


async def test_runs_and_spool_are_read_while_the_agent_lives(tmp_path: Path) -> None:
    """How many, how large, how old; nothing is left when it has gone."""
    outbox = Outbox(tmp_path / "spool.db")
    outbox.open("a", "a")
    runs = {"1": _Run(launched=True), "2": _Run(launched=False), "3": _Run(launched=True)}
    suspension = Suspension([tmp_path], outbox, lambda _: None)
    with measured(outbox, runs, suspension):
        assert catalog.AGENT_SUSPENDED.read() == {(): 0.0}
        suspension.reason = "the disk is full"
        assert catalog.AGENT_SUSPENDED.read() == {(): 1.0}
        await outbox.durable(outbox.put(_GONE, _GONE))
        assert catalog.RUNS.read() == {("preparing",): 1.0, ("running",): 2.0}
        assert catalog.SPOOL_RECORDS.read() == {(): 2.0}
        assert catalog.SPOOL_BYTES.read()[()] > 4096
        assert catalog.SPOOL_OLDEST_SECONDS.read()[()] >= 0.0
    assert catalog.SPOOL_RECORDS.read() == {}
    await outbox.close()


async def test_the_oldest_fact_is_as_old_as_the_first_that_is_held(
    tmp_path: Path,
) -> None:
    """It grows while nothing is brought away, shrinks with what is, and is 0 when all is."""
    now_s = 100.0
    outbox = Outbox(tmp_path / "spool.db", clock=lambda: now_s)
    outbox.open("a", "a")
    first = outbox.put(_GONE)
    now_s = 160.0
    second = outbox.put(_GONE)
    now_s = 200.0
    assert outbox.oldest_s == 100.0
    outbox.forget(first)
    assert outbox.oldest_s == 40.0
    outbox.forget(second)
    assert outbox.oldest_s == 0.0
    await outbox.close()


async def test_what_follows_from_a_request_carries_its_trace(tmp_path: Path) -> None:
    """And what follows from none carries none."""
    outbox = Outbox(tmp_path / "spool.db")
    outbox.open("a", "a")
    with following(_TRACE):
        outbox.put(_GONE)
    await outbox.durable(outbox.put(_GONE))
    entries = await outbox.read(0, 10)

    assert [decode(it.draft.value).traceparent for it in entries] == [_TRACE, None]
    await outbox.close()
