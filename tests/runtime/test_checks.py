"""Whether a process is alive and ready, with loops on a ledger that comes and goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from rung.events import LedgerUnavailable
from rung.ledger import Draft, MemoryLedger
from rung.runtime import host
from rung.runtime.health import checks
from rung.runtime.health.checks import ProcessHealth
from rung.runtime.metrics import catalog
from rung.runtime.metrics.observed_ledger import ObservedLedger
from runtime.tally import Tally, pause


class _Away(MemoryLedger):
    """A ledger in memory whose place can go away and come back."""

    def __init__(self) -> None:
        super().__init__(partitions=2)
        self.there = asyncio.Event()
        self.there.set()
        self.silent = False

    async def end(self, topic: str, partition: int) -> int:
        """Answer, refuse, or say nothing at all."""
        await self._reach()
        return await super().end(topic, partition)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """As above."""
        await self._reach()
        return await super().append(drafts)

    async def _reach(self) -> None:
        if self.there.is_set():
            return
        if not self.silent:
            raise LedgerUnavailable("broker 1 is away")
        await self.there.wait()


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> ProcessHealth:
    """The signs of life of this test's process: nothing is fresh for long, patience is short."""
    monkeypatch.setattr(checks, "_FRESH_S", 0.0)
    monkeypatch.setattr(checks, "ANSWERS_WITHIN_S", 0.1)
    health = ProcessHealth(patience_s=0.2)
    for module in ("retry", "metrics.observed_ledger"):
        monkeypatch.setattr(f"rung.runtime.{module}.HEALTH", health)
    return health


@contextlib.asynccontextmanager
async def _hosting(ledger: MemoryLedger, health: ProcessHealth) -> AsyncIterator[None]:
    task = asyncio.create_task(host(ObservedLedger(ledger, health), Tally()))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until(
    asked: Callable[[], Awaitable[list[str]]], *, well: bool, least: int = 1
) -> list[str]:
    async with asyncio.timeout(10):
        while True:
            reasons = await asked()
            if (len(reasons) >= least) != well:
                return reasons
            await asyncio.sleep(0.01)


async def _pause(ledger: MemoryLedger, number: int) -> None:
    event = pause(number)
    await ledger.append([Draft.of(event)])


async def test_a_process_is_not_ready_before_its_loops_run(health: ProcessHealth) -> None:
    """Nor is it ill: it just began."""
    assert await health.readiness() == ["the ledger is not open yet"]
    ObservedLedger(MemoryLedger(), health)
    assert await health.readiness() == ["no loop runs yet"]
    assert await health.liveness() == []


async def test_a_process_is_ready_when_it_has_folded(health: ProcessHealth) -> None:
    """All loops have caught up."""
    ledger = _Away()
    await _pause(ledger, 1)
    async with _hosting(ledger, health):
        await _until(health.readiness, well=True)
        assert await health.liveness() == []
    assert health._lags() == {}


async def test_a_ledger_that_refuses_makes_a_process_unready_and_not_ill(
    health: ProcessHealth,
) -> None:
    """A new start would not bring the broker back; when it is back, all is well by itself."""
    ledger = _Away()
    async with _hosting(ledger, health):
        await _until(health.readiness, well=True)
        ledger.there.clear()

        assert await health.readiness() == ["the ledger: broker 1 is away"]
        assert await health.liveness() == []
        ledger.there.set()
        await _until(health.readiness, well=True)


async def test_a_ledger_that_says_nothing_is_away_too(health: ProcessHealth) -> None:
    """A probe does not wait for it."""
    ledger = _Away()
    async with _hosting(ledger, health):
        await _until(health.readiness, well=True)
        ledger.silent = True
        ledger.there.clear()

        [reason] = await health.readiness()
        assert reason.startswith("the ledger: no answer within")
        assert await health.liveness() == []


async def test_an_append_that_never_returns_makes_a_process_ill(health: ProcessHealth) -> None:
    """The ledger answers others, and this call hangs: a new start may mend that."""
    ledger = _Away()
    async with _hosting(ledger, health):
        await _until(health.readiness, well=True)
        ledger.silent = True
        ledger.there.clear()
        event = pause(1)
        await MemoryLedger.append(ledger, [Draft.of(event)])

        async def hangs() -> list[str]:
            found = await health.liveness()
            return [it for it in found if "append to searches has not returned" in it]

        await _until(hangs, well=False)
        ledger.there.set()
        await _until(health.liveness, well=True)


async def test_a_follower_that_is_given_nothing_makes_a_process_ill(health: ProcessHealth) -> None:
    """The partition grows, the ledger answers, and the loop sleeps on."""

    class Deaf(_Away):
        async def end(self, topic: str, partition: int) -> int:
            return 5

    async with _hosting(Deaf(), health):  # two loops, each in its own time
        reasons = await _until(health.liveness, well=False, least=2)

    assert all("none arrive" in reason for reason in reasons)


async def test_a_loop_that_the_ledger_failed_is_unready_and_counted(health: ProcessHealth) -> None:
    """It starts again, and whoever reads the counters sees that it does."""
    restarts = catalog.LOOP_RESTARTS.labels("searcher")
    before = restarts._value.get()
    ledger = _Away()
    async with _hosting(ledger, health):
        await _until(health.readiness, well=True)
        ledger.there.clear()
        event = pause(1)
        await MemoryLedger.append(ledger, [Draft.of(event)])

        async def rests() -> list[str]:
            return [line for line in await health.readiness() if "starts again after" in line]

        await _until(rests, well=False)
        assert restarts._value.get() > before
        assert await health.liveness() == []
        ledger.there.set()
        await _until(health.readiness, well=True)


async def test_what_a_process_needs_beside_the_ledger_is_asked(health: ProcessHealth) -> None:
    """By name, with a reason, and not for ever."""
    answers: list[str | None] = ["connection refused", None]

    async def check() -> str | None:
        if not answers:
            await asyncio.Event().wait()
        answer = answers.pop(0)
        if answer is None:
            raise OSError("no route")
        return answer

    async with _hosting(_Away(), health):
        await _until(health.readiness, well=True)
        with health.check("ClickHouse", check):
            assert await health.readiness() == ["ClickHouse: connection refused"]
            assert await health.readiness() == ["ClickHouse: OSError: no route"]
            assert await health.readiness() == ["ClickHouse: no answer within 0 s"]
        assert await health.readiness() == []


async def test_a_process_that_ends_is_not_ready(health: ProcessHealth) -> None:
    """Load balancers turn away before it is gone."""
    async with _hosting(_Away(), health):
        await _until(health.readiness, well=True)
        health.stopping = True

        assert await health.readiness() == ["the process ends"]


async def test_where_readers_are_can_be_measured(health: ProcessHealth) -> None:
    """Lag by consumer, topic and partition; partitions held; snapshots; all gone with the loop."""
    ledger = _Away()
    await _pause(ledger, 1)
    with health.measured("searcher"):
        async with _hosting(ledger, health):
            await _until(health.readiness, well=True)
            await health.refresh()
            lags = {
                place: lag
                for place, lag in catalog.LAG_RECORDS.read().items()
                if place[0] == "searcher"  # it listens to what operators ask besides
            }
            assert lags == {
                ("searcher", "experiments", "0"): 0.0,
                ("searcher", "experiments", "1"): 0.0,
            }
            assert catalog.PARTITIONS_HELD.read() == {("experiments",): 2.0}
            assert set(catalog.SNAPSHOT_AGE_SECONDS.read()) == {
                ("searcher", "0"),
                ("searcher", "1"),
            }
            assert [service for _, service in catalog.BUILD_INFO.read()] == ["searcher"]
        assert catalog.LAG_RECORDS.read() == {}
    assert catalog.BUILD_INFO.read() == {}
