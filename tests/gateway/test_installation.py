"""The installation: agents, queue, dead letters, status, audit."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.api import Audit, Difference
from rung.events import Event, partition_of, topic
from rung.events import decision as decided
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AgentResumed,
    AgentSuspended,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    DrainRequested,
    JoinRefused,
    Share,
    Slot,
)
from rung.events.trial import RunRequested, RunSpec, RunWithdrawn
from rung.gateway.projections.pools import Pool, evolve
from rung.gateway.serializers import pools as pool_serializers
from rung.gateway.settings import Settings
from rung.ledger import Draft, MemoryLedger, Record
from support.gateway.client import Client
from support.gateway.scenario import EXPERIMENT, History, submitted


def _requested(number: int, priority: int = 42) -> RunRequested:
    trial_id = f"{EXPERIMENT}.{number}"
    return RunRequested(
        pool="default",
        reason="",
        experiment_id=EXPERIMENT,
        slots=1,
        priority=priority,
        max_slots=None,
        spec=RunSpec(
            experiment_id=EXPERIMENT,
            trial_id=trial_id,
            trial_index=number,
            run=1,
            hparams={},
            seed=1,
            length=1,
            time_metric="batches",
            restore=[],
            code_digest=None,
            config={},
        ),
    )


def _joined(agent: str, incarnation: int = 1) -> AgentJoined:
    slots = [Slot(id=n, kind="cpu", name=f"CPU slot {n}") for n in range(2)]
    return AgentJoined(
        pool="default", agent_id=agent, incarnation=incarnation, hostname="host", slots=slots
    )


def _drained(agent: str, incarnation: int = 1) -> DrainRequested:
    return DrainRequested(
        pool="default", agent_id=agent, incarnation=incarnation, reason="the cloud preempts it"
    )


def _granted(number: int, *shares: Share) -> AllocationGranted:
    asked = _requested(number)
    return AllocationGranted(
        pool="default", allocation_id=asked.allocation_id, shares=list(shares), spec=asked.spec
    )


def _pool(*data: Any) -> Pool:
    """Fold events into a pool."""
    pool = Pool("default")
    for each in data:
        evolve(pool, Event(id="i", source="s", subject="s", time="t", data=each))
    return pool


ON_A = Share(agent_id="a", incarnation=1, slots=[0])
ON_B = Share(agent_id="b", incarnation=1, slots=[0, 1])


def _released(number: int, agent: str) -> AllocationReleased:
    return AllocationReleased(
        pool="default",
        allocation_id=f"{EXPERIMENT}.{number}.1",
        agent_id=agent,
        incarnation=1,
    )


def _ended(kind: type[Any]) -> Any:
    return kind(
        pool="default",
        allocation_id=f"{EXPERIMENT}.0.1",
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.0",
        run=1,
        reason="r",
    )


def _here(folder: str, incarnation: int) -> AgentJoined:
    return msgspec.structs.replace(
        _joined("a", incarnation), folder_id=folder, session=f"{folder}{incarnation}"
    )


def _refused(folder: str, incarnation: int, *, in_use: bool = True) -> JoinRefused:
    return JoinRefused(
        pool="default",
        agent_id="a",
        incarnation=incarnation,
        session=f"{folder}{incarnation}",
        known=1,
        in_use=in_use,
        reason="two agents are called 'a'",
    )


def test_a_refused_agent_is_a_problem_and_takes_no_place() -> None:
    """The agent that was there stays what it was; the problem ends with either of the two."""
    twice = [_here("F", 1), _here("G", 9), _refused("G", 9)]
    goodbye = AgentLeft(pool="default", agent_id="a", incarnation=9, session="G9")

    pool = _pool(*twice)
    (agent,) = pool_serializers.agents(pool)
    assert (agent.incarnation, agent.state) == (1, "joined")
    assert pool_serializers.problems(pool) == [
        "an agent is refused since t: two agents are called 'a'"
    ]
    pool = _pool(*twice, goodbye)
    assert pool_serializers.problems(pool) == []
    assert pool.agents["a"].state == "joined"
    pool = _pool(*twice, AgentLost(pool="default", agent_id="a", incarnation=1, silent_ms=1))
    assert pool_serializers.problems(pool) == []


def test_a_restored_folder_is_no_problem() -> None:
    """It joins again at once; an id that nobody had before is not there after a refusal."""
    pool = _pool(_here("F", 5), _here("F", 3), _refused("F", 3, in_use=False))
    assert pool.agents["a"].incarnation == 5
    assert pool_serializers.problems(pool) == []
    assert _pool(_here("F", 5), _refused("F", 5)).agents == {}


def test_a_suspended_agent_is_a_problem_until_it_goes_on() -> None:
    """It is counted apart, keeps its slots in sight, and one that is drained stays drained."""
    reason = "the disk is full"
    told = AgentSuspended(pool="default", agent_id="a", incarnation=1, session="", reason=reason)
    over = AgentResumed(pool="default", agent_id="a", incarnation=1, session="")

    pool = _pool(_joined("a"), told)
    assert pool_serializers.problems(pool) == ["agent a takes nothing new: the disk is full"]
    status = pool_serializers.pool_status(pool, 0)
    assert (status.agents, status.slots, status.suspended) == (0, 0, 1)
    pool = _pool(_joined("a"), told, over)
    assert (pool.agents["a"].state, pool.agents["a"].reason) == ("joined", None)
    assert _pool(_joined("a"), _drained("a"), told, over).agents["a"].state == "draining"
    assert _pool(_joined("a"), told, _joined("a", 2)).agents["a"].state == "joined"


@pytest.mark.parametrize(
    ("events", "waiting", "running"),
    [
        ([_requested(0)], 1, 0),
        ([_requested(0), _granted(0, ON_A)], 0, 1),
        ([_requested(0), _granted(0, ON_A, ON_B), _released(0, "a")], 0, 1),
        ([_requested(0), _granted(0, ON_A, ON_B), _released(0, "a"), _released(0, "b")], 0, 0),
        ([_requested(0), _granted(0, ON_A), _ended(AllocationLost)], 0, 0),
        ([_requested(0), _ended(AllocationDropped)], 0, 0),
        ([_granted(0, ON_A), _ended(AllocationLost), _released(0, "a")], 0, 0),
    ],
)
def test_allocations(events: list[Any], waiting: int, running: int) -> None:
    """An allocation waits until it is granted or dropped, and runs until its last part is over."""
    pool = _pool(*events)

    assert (len(pool.waiting), len(pool.running)) == (waiting, running)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([_joined("a")], [("joined", 1)]),
        ([_joined("a"), _joined("a", 2)], [("joined", 2)]),
        ([_joined("a", 2), _joined("a", 1)], [("joined", 2)]),
        ([_joined("a"), AgentLeft(pool="default", agent_id="a", incarnation=1)], [("left", 1)]),
        ([_joined("a"), _drained("a")], [("draining", 1)]),
        ([_joined("a", 2), _drained("a")], [("joined", 2)]),
        ([_joined("a"), _drained("a"), _joined("a", 2)], [("joined", 2)]),
        (
            [
                _joined("a"),
                _drained("a"),
                AgentLeft(pool="default", agent_id="a", incarnation=1),
                _drained("a"),
            ],
            [("left", 1)],
        ),
        (
            [
                _joined("a", 2),
                AgentLost(pool="default", agent_id="a", incarnation=1, silent_ms=1),
            ],
            [("joined", 2)],
        ),
        (
            [
                _joined("a"),
                AgentLost(pool="default", agent_id="a", incarnation=1, silent_ms=1),
                _joined("a", 2),
            ],
            [("joined", 2)],
        ),
    ],
)
def test_agents(events: list[Any], expected: list[tuple[str, int]]) -> None:
    """An agent is what its newest incarnation is; what is said of an earlier one is late."""
    assert [(a.state, a.incarnation) for a in _pool(*events).agents.values()] == expected


async def _decide(world: World, *data: Any) -> None:
    """Append decisions on the last fact of the pool."""
    partition = partition_of("default", world.ledger.partitions("pools"))
    position = await world.ledger.end("pools", partition) - 1
    cause = Event(id="cause", source="s", subject="s", time="t", data=_joined("a"))
    events = [
        decided(each, source="/rung/scheduler", cause=cause, position=position, index=index)
        for index, each in enumerate(data)
    ]
    await world.ledger.append([Draft.of(it) for it in events])


async def test_agents_and_queue_are_shown(world: World) -> None:
    """Slots with what holds them; what waits by priority; the pool in numbers."""
    await world.write(
        _joined("a"),
        _joined("b"),
        _joined("c"),
        AgentLeft(pool="default", agent_id="b", incarnation=1),
        _drained("c"),
        _requested(0),
        _requested(1),
        _requested(2, priority=1),
        RunWithdrawn(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.1",
            run=1,
            pool="default",
            how="preempt",
            reason="",
        ),
    )
    await _decide(world, _granted(0, ON_A))
    async with world.gateway() as client:
        agents = (await client.get("/agents"))["items"]
        queue = await client.get("/queue?limit=1")
        rest = await client.get(f"/queue?cursor={queue['next_cursor']}")
        status = await client.get("/status")

    assert [(it["id"], it["state"], it["reason"]) for it in agents] == [
        ("a", "joined", None),
        ("b", "left", None),
        ("c", "draining", "the cloud preempts it"),
    ]
    assert [slot["allocation_id"] for slot in agents[0]["slots"]] == [f"{EXPERIMENT}.0.1", None]
    assert [it["trial_id"] for it in queue["items"]] == [f"{EXPERIMENT}.2"]
    assert [(it["trial_id"], it["withdrawn"]) for it in rest["items"]] == [
        (f"{EXPERIMENT}.1", True)
    ]
    assert [it["reason"] for it in queue["items"] + rest["items"]] == [None, None]
    assert status["pools"] == [
        {
            "name": "default",
            "agents": 1,
            "slots": 2,
            "slots_used": 1,
            "waiting": 2,
            "draining": 1,
            "suspended": 0,
            "policy": "priority",
            "options": {},
        }
    ]


async def test_queue_says_what_can_never_be_placed(world: World) -> None:
    """What only waits for its turn has no reason; what no agent could hold has one."""
    large = msgspec.structs.replace(_requested(1), slots=3)
    await world.write(_joined("a"), _requested(0), large)
    async with world.gateway() as client:
        queue = (await client.get("/queue"))["items"]

    assert [it["reason"] is None for it in queue] == [True, False]
    assert queue[1]["reason"].startswith("pool default cannot give a trial 3 slots")


async def test_an_experiment_says_that_it_can_never_be_placed(world: World) -> None:
    """As long as its trials wait, and there is no agent for them."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    await world.play(history)
    await world.write(msgspec.structs.replace(_joined("a"), pool="other"))
    async with world.gateway() as client:
        path = f"/experiments/{EXPERIMENT}"
        shown = await until(lambda: client.get(path), lambda it: it["trial_states"].get("waiting"))
        assert shown["unplaced"].startswith("pool default has no agent")
        await world.write(_joined("b"))
        await until(lambda: client.get(path), lambda it: it["unplaced"] is None)


async def _lacks(client: Client) -> list[object]:
    """Return what a server says of agents that are too small, or not there."""
    text = EXPERIMENT_FILE + "resources: {slots_per_trial: 3}\n"
    policy = msgspec.json.encode({"policy": "priority", "options": {}})
    validated = await client.call("POST", "/experiments/validate", data=text.encode())
    configured = await client.call("POST", "/pools/new/configure", data=policy)
    (queued,) = (await client.get("/queue"))["items"]
    return [validated.json["warnings"], configured.json["warnings"], queued["reason"]]


async def test_a_server_that_catches_up_reports_no_lack_of_agents(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents may have joined in what it has not folded yet."""
    world.folder = tmp_path / "projections"
    await world.write(_joined("a"), msgspec.structs.replace(_requested(0), slots=3))
    async with world.gateway() as client:
        caught_up = await _lacks(client)
    read, let = MemoryLedger.read, asyncio.Event()

    async def late(ledger: MemoryLedger, name: str, *place: int) -> list[Record]:
        if name == topic.POOLS:
            await let.wait()
        return await read(ledger, name, *place)

    monkeypatch.setattr(MemoryLedger, "read", late)
    world.settings = Settings(start_timeout=0.05)
    async with world.gateway() as client:
        catching_up = await _lacks(client)
        let.set()

    assert all(caught_up)
    assert catching_up == [[], [], None]


async def test_dead_letters_are_shown(world: World) -> None:
    """A message that cannot be read is a dead letter, and the next one is folded all the same."""
    await world.ledger.append([Draft("experiments", EXPERIMENT, b"nonsense \xff")])
    await world.write(submitted())
    async with world.gateway() as client:
        letters = await client.get("/deadletters")
        shown = await client.get(f"/experiments/{EXPERIMENT}")
    async with world.gateway() as client:
        again = await client.get("/deadletters")

    (letter,) = letters["items"]
    assert (letter["reader"], letter["topic"], letter["key"]) == (
        "gateway",
        "experiments",
        EXPERIMENT,
    )
    assert "not an event" in letter["reason"]
    assert letter["value"].startswith("nonsense")
    assert shown["state"] == "active"
    assert again["count"] == 1


async def test_status_counts(client: Client) -> None:
    """Experiments by state."""
    for _ in range(3):
        await client.submit(EXPERIMENT_FILE)
    status = await client.get("/status")

    assert status["experiments"] == {"active": 3}
    assert status["dead_letters"] == 0
    assert status["version"]


async def test_audit_is_passed_on(world: World) -> None:
    """The verdict is what the audit that was brought along says, of the whole id."""
    await world.write(submitted())

    async def audit(experiment_id: str) -> Audit:
        difference = Difference(
            process="searcher", key=experiment_id, position=3, index=0, recorded={}, decided=None
        )
        return Audit(same=False, decisions=7, differences=[difference], verdicts=[])

    world.audit = audit
    async with world.gateway() as client:
        verdict = await client.get(f"/experiments/{EXPERIMENT[:3]}/audit")

    assert (verdict["same"], verdict["decisions"], verdict["verdicts"]) == (False, 7, [])
    assert verdict["differences"] == [
        {
            "process": "searcher",
            "key": EXPERIMENT,
            "position": 3,
            "index": 0,
            "recorded": {},
            "decided": None,
        }
    ]


async def test_without_audit(world: World) -> None:
    """A gateway without deciders says that it cannot."""
    await world.write(submitted())
    async with world.gateway() as client:
        answer = await client.call("GET", f"/experiments/{EXPERIMENT}/audit")

    assert (answer.status, answer.kind) == (503, "unavailable")


async def test_restart_goes_on_from_files(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a gateway folded is where the next one starts; a damaged file is rebuilt."""
    world.folder = tmp_path / "projections"
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    await world.play(history)
    async with world.gateway() as client:
        before = await client.get(f"/experiments/{EXPERIMENT}")
    (world.folder / "pools.db").write_bytes(b"nonsense")
    reads: list[tuple[str, int]] = []
    read = MemoryLedger.read

    async def note(
        ledger: MemoryLedger, name: str, partition: int, position: int, limit: int
    ) -> list[Record]:
        if limit > 1:
            reads.append((name, position))
        return await read(ledger, name, partition, position, limit)

    monkeypatch.setattr(MemoryLedger, "read", note)
    with capture_logs() as logs:
        async with world.gateway() as client:
            after = await client.get(f"/experiments/{EXPERIMENT}")

    assert before == after
    assert stat.S_IMODE(world.folder.stat().st_mode) == 0o700
    assert ("searches", 0) not in reads
    (rebuilt,) = [it for it in logs if it["event"] == "projection rebuilt"]
    assert rebuilt["path"].endswith("pools.db")
    assert "damaged" in rebuilt["reason"]
