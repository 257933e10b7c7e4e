"""A run's configuration on its way to the agent: fetched by digest before the run is made."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.events import topic
from rung.events.allocation import AllocationGranted
from rung.events.trial import TrialStarted, Withdrawal
from rung.storage import FolderStore, ObjectError, ObjectMissing, ObjectUnavailable
from support.agent_rig import Rig

_PRINTS = "import os\nprint('told', os.environ['WORD'])\n"


class Troubled(FolderStore):
    """A store that has a problem with configurations."""

    problem: ObjectError | None = None

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def get(self, name: str, target: Path) -> None:
        """Fetch an object."""
        problem = self.problem if name.startswith("configs/") else None
        if problem is not None:
            self._loop.call_soon_threadsafe(self.asked.set)
            raise problem
        super().get(name, target)


@pytest.fixture
async def store(tmp_path: Path) -> Troubled:
    """Give the store of the rig."""
    return Troubled(tmp_path / "objects")


@pytest.fixture
async def troubled(
    tmp_path: Path, store: Troubled, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rig]:
    """Give a rig whose agent has a store with a problem."""
    monkeypatch.setattr("rung.agent.agent.open_store", lambda _: store)
    made = Rig(tmp_path, store=store)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("inline", [False, True])
async def test_by_digest_and_of_an_earlier_release(rig: Rig, *, inline: bool) -> None:
    """A run gets the same configuration, whether its events name it or hold it."""
    rig.start()
    variables = {"environment_variables": ["WORD=hello"]}
    ended = await rig.run_script(_PRINTS, inline=inline, environment=variables)

    assert (ended.exit.outcome, ended.printed()) == ("finished", ["told hello"])


async def test_events_of_a_run_do_not_hold_it(rig: Rig) -> None:
    """What every agent of the pool decodes is small, however large the configuration is."""
    rig.start()
    await rig.end_of(await rig.grant(code=rig.code(train=""), description="x" * 10_000))
    [granted] = [
        record
        for record in await rig.ledger.read(topic.PLACEMENTS, 0, 0, 100)
        if AllocationGranted.TYPE.encode() in record.value
    ]

    assert len(granted.value) < 1_500


async def test_one_that_is_missing_fails_the_run(troubled: Rig, store: Troubled) -> None:
    """The failure says so, and what brings it back; the slots are free again."""
    store.problem = ObjectMissing("no such object")
    troubled.start()
    ended = await troubled.end_of(await troubled.grant(code=troubled.code(train="")))

    assert (ended.exit.outcome, ended.exit.machine, ended.exit.fault) == ("failed", False, "")
    assert "is missing in the object store" in ended.exit.message
    assert "rung objects copy" in ended.exit.message


@pytest.mark.parametrize(("how", "outcome"), [("preempt", "preempted"), ("kill", "killed")])
async def test_a_run_stops_while_its_configuration_is_waited_for(
    troubled: Rig, store: Troubled, how: Withdrawal, outcome: str
) -> None:
    """The store is away; the scheduler gets the slots back all the same."""
    store.problem = ObjectUnavailable("no route to the store")
    troubled.start()
    allocation_id = await troubled.grant(code=troubled.code(train=""))
    await store.asked.wait()
    await troubled.signal(allocation_id, how)
    ended = await troubled.end_of(allocation_id)

    assert (ended.exit.outcome, ended.exit.message) == (outcome, "withdrawn before it started")
    assert ended.of(TrialStarted) == []


async def test_a_run_starts_once_the_store_is_back(troubled: Rig, store: Troubled) -> None:
    """An object store that is away costs time, nothing else."""
    store.problem = ObjectUnavailable("no route to the store")
    troubled.start()
    allocation_id = await troubled.grant(code=troubled.code(train="print('here')"))
    await store.asked.wait()
    store.problem = None

    assert (await troubled.end_of(allocation_id)).printed() == ["here"]


async def test_an_agent_leaves_while_a_configuration_is_waited_for(
    troubled: Rig, store: Troubled
) -> None:
    """Nothing is said of such a run: it is lost with the agent's leaving."""
    store.problem = ObjectUnavailable("no route to the store")
    troubled.start()
    allocation_id = await troubled.grant(code=troubled.code(train=""))
    await store.asked.wait()
    await troubled.stop()

    assert (await troubled.ended_run(allocation_id)).payloads == []
