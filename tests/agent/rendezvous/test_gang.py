"""A run over two agents: they find each other, and fail together."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.pair import Pair, running_pair
from agent.standing_clock import LIMIT_S, soon, stand
from rung.agent.monitoring import stack_dump
from rung.agent.objects.data_provisioning import Provision
from rung.agent.rendezvous import rendezvous
from rung.events import decode, topic
from rung.events.allocation import (
    AgentJoined,
    AgentResumed,
    AllocationAddressed,
    AllocationLost,
    AllocationReleased,
    AllocationSignaled,
)
from rung.events.checkpoint import CheckpointStored
from rung.events.metric import LogsPrinted
from rung.events.trial import TrialExited, TrialStarted
from support.agent_rig import EXPERIMENT, POOL, Ended

pytestmark = pytest.mark.processes

WORDS = (
    "from rung import core\n"
    "with core.init() as ctx:\n"
    "    ranks = ctx.distributed\n"
    "    print(ranks.allgather((ranks.rank, ranks.cross_rank)), ranks.allgather_local(ranks.rank))"
)


TRAINS = (
    "from rung import core\n"
    "with core.init() as ctx:\n"
    "    ctx.distributed.barrier()\n"
    "    print('trains', flush=True)\n"
    "    while not ctx.preempt.should_preempt():\n"
    "        pass\n"
    "    if ctx.distributed.is_chief:\n"
    "        with ctx.checkpoint.store_path(steps_completed=4) as (folder, _):\n"
    "            (folder / 'weights').write_text('4')\n"
    "    ctx.distributed.barrier()"
)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Give two running agents on one ledger and one store."""
    async with running_pair(tmp_path) as both:
        yield both


def printed(ended: Ended, stream: str = "stdout") -> dict[int, list[str]]:
    """Return what each rank printed."""
    found: dict[int, list[str]] = {}
    for each in ended.of(LogsPrinted):
        for line in each.lines:
            if line.stream == stream:
                found.setdefault(line.rank, []).append(line.text)
    return found


async def test_ranks_on_two_agents_find_each_other(pair: Pair) -> None:
    """Four ranks on two agents gather; the first agent alone says that the run began and ended."""
    ended = await pair.end_of(await pair.grant(WORDS))
    everyone = "[(0, 0), (1, 0), (2, 1), (3, 1)]"
    assert printed(ended) == {
        rank: [f"{everyone} {[0, 1] if rank < 2 else [2, 3]}"] for rank in range(4)
    }
    assert [each.agent_id for each in ended.of(TrialStarted)] == ["a1"]
    assert (ended.exit.agent_id, ended.exit.outcome) == ("a1", "finished")


async def test_a_failure_on_the_second_agent_ends_the_run_on_both(pair: Pair) -> None:
    """All who speak of the run's end give the words of the rank that failed first."""
    script = (
        "import os, time\n"
        "if os.environ['RUNG_RANK'] == '3': raise ValueError('no data')\n"
        "time.sleep(60)"
    )
    scheduler = asyncio.create_task(pair.pass_failures_on())
    ended = await pair.end_of(await pair.grant(script))
    await scheduler
    exits = ended.of(TrialExited)
    assert {each.agent_id for each in exits} == {"a1", "a2"}
    assert exits[0].agent_id == "a2" or exits[1].agent_id == "a2"
    assert {(each.outcome, each.message) for each in exits} == {
        ("failed", "rank 3: ValueError: no data (exit code 1)")
    }
    released = {each.agent_id: each.failed for each in ended.of(AllocationReleased)}
    assert released == {"a1": "", "a2": "rank 3: ValueError: no data (exit code 1)"}


@pytest.mark.parametrize(
    "other", ["peer.recv(1); raise ConnectionResetError('reset by peer')", "pause()"]
)
async def test_a_machine_that_fails_one_part_fails_the_run(pair: Pair, other: str) -> None:
    """All who speak of the run's end say that it is the machine's, whoever is heard of first."""
    script = (
        "import os, socket, time\n"
        "from signal import pause\n"
        "from rung.storage import ObjectError\n"
        f"place = '\\x00{uuid.uuid4()}'\n"
        "peer = socket.socket(socket.AF_UNIX)\n"
        "if os.environ['RUNG_RANK'] == '3':\n"
        "    peer.bind(place)\n"
        "    peer.listen()\n"
        "    connections = [peer.accept() for _ in range(3)]\n"
        "    raise ObjectError('no checkpoint: the disk is full')\n"
        "while peer.connect_ex(place):\n"
        "    time.sleep(0.01)\n"
        f"{other}"
    )
    scheduler = asyncio.create_task(pair.pass_failures_on())
    ended = await pair.end_of(await pair.grant(script))
    await scheduler
    exits = {each.agent_id: (each.outcome, each.machine) for each in ended.of(TrialExited)}
    assert exits == {"a1": ("failed", True), "a2": ("failed", True)}


async def test_a_fault_at_an_unknown_step_cannot_repeat_itself(pair: Pair) -> None:
    """The second agent does not hear how far the run was, so it names no kind of fault."""
    script = (
        "import os, time\n"
        "from rung import core\n"
        "with core.init() as ctx:\n"
        "    ctx.train.report_training_metrics(7, {'loss': 1.0})\n"
        "    ctx.distributed.barrier()\n"
        "    if ctx.distributed.rank == int(os.environ['VICTIM']): raise ValueError('no data')\n"
        "    time.sleep(60)"
    )
    faults = {}
    for victim in ("0", "3"):
        scheduler = asyncio.create_task(pair.pass_failures_on())
        variables = {"environment_variables": [f"VICTIM={victim}"]}
        ended = await pair.end_of(await pair.grant(script, environment=variables))
        await scheduler
        own = "a1" if victim == "0" else "a2"
        (exited,) = [each for each in ended.of(TrialExited) if each.agent_id == own]
        faults[own] = (exited.fault, exited.steps_completed)
    assert faults == {"a1": ("ValueError", 7), "a2": ("", None)}


async def test_a_failure_on_the_first_agent_ends_the_second(pair: Pair) -> None:
    """The other agent stops its part and says nothing of its own about the run."""
    script = (
        "import os, time\nif os.environ['RUNG_RANK'] == '0': raise SystemExit(4)\ntime.sleep(60)"
    )
    scheduler = asyncio.create_task(pair.pass_failures_on())
    ended = await pair.end_of(await pair.grant(script))
    await scheduler
    assert (ended.exit.agent_id, ended.exit.message) == ("a1", "rank 0: exit code 4")


async def test_a_run_that_lost_an_agent_has_not_failed(pair: Pair) -> None:
    """Ranks that broke with those of a lost agent wait for word of that; they were killed then."""
    script = (
        "import os, time\n"
        "if os.environ['RUNG_RANK'] == '0':\n"
        "    raise ConnectionResetError('Connection reset by peer')\n"
        "time.sleep(60)"
    )
    allocation = await pair.grant(script)
    await pair.first.until_printed("rank 0: ConnectionResetError")
    trial, _, run = allocation.rpartition(".")
    await pair.first.decide(
        AllocationLost(
            pool=POOL,
            allocation_id=allocation,
            experiment_id=EXPERIMENT,
            trial_id=trial,
            run=int(run),
            reason="agent a2 was lost",
        )
    )
    exited = (await pair.end_of(allocation)).exit
    assert (exited.agent_id, exited.outcome, exited.fault) == ("a1", "killed", "")


@pytest.mark.e2e
@pytest.mark.parametrize("stopped", ["a1", "a2"])
async def test_a_run_checkpoints_when_either_agent_is_told_to_stop(
    pair: Pair, stopped: str
) -> None:
    """The agent has itself drained; the scheduler asks all parts, of which none is lost."""
    allocation = await pair.grant(TRAINS)
    await pair.first.until_printed("trains")
    scheduler = asyncio.create_task(pair.drain(allocation))
    await (pair.first if stopped == "a1" else pair.second).stop()
    assert scheduler.done()
    ended = await pair.end_of(allocation)
    assert (ended.exit.agent_id, ended.exit.outcome) == ("a1", "preempted")
    assert [it.steps_completed for it in ended.of(CheckpointStored)] == [4]


async def test_what_agents_say_of_their_parts(pair: Pair) -> None:
    """Each tells a host, a port for each of its ranks and one more, and a public key."""
    await pair.end_of(await pair.grant("pass", distributed={"interface": "lo"}))
    records = await pair.first.ledger.read(topic.POOLS, 0, 0, 1000)
    said = [decode(record.value).data for record in records]
    parts = [each for each in said if isinstance(each, AllocationAddressed)]
    assert {each.agent_id for each in parts} == {"a1", "a2"}
    assert {each.host for each in parts} == {"127.0.0.1"}
    assert [len(set(each.ports)) for each in parts] == [3, 3]
    assert len({each.public_key for each in parts}) == 2


async def test_agents_wait_for_one_that_still_brings_data(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a node takes for its data, the run starts then; the log says why it waits."""
    monkeypatch.setattr(rendezvous, "NOTED_EVERY_S", 0.05)
    provisioning, came = pair.second.agent._provisioning, asyncio.Event()
    bring = provisioning.open

    async def slowly(*request: Any) -> Provision:
        await came.wait()
        return await bring(*request)

    monkeypatch.setattr(provisioning, "open", slowly)
    allocation = await pair.grant("print('trained')")
    await pair.first.until_printed("do not have the run's data yet: a2")
    came.set()
    ended = await pair.end_of(allocation)
    assert ended.exit.outcome == "finished"
    assert printed(ended) == {rank: ["trained"] for rank in range(4)}


@pytest.mark.parametrize("slow", ["a1", "a2"])
async def test_an_agent_dies_while_a_gang_meets(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """Its next life has the address that it announced, and the one that it had read."""
    monkeypatch.setattr(rendezvous, "NOTED_EVERY_S", 0.05)
    await pair.first.until(AgentJoined, count=2)
    await pair.first.stop()
    pair.first.start(unattended_s=60.0)
    await pair.first.until(AgentJoined, count=3)
    slower, faster = (pair.first, pair.second) if slow == "a1" else (pair.second, pair.first)
    provisioning, came = slower.agent._provisioning, asyncio.Event()
    bring = provisioning.open

    async def slowly(*request: Any) -> Provision:
        await came.wait()
        return await bring(*request)

    monkeypatch.setattr(provisioning, "open", slowly)
    allocation = await pair.grant("print('trained')")
    await faster.until_printed(f"do not have the run's data yet: {slow}")
    await pair.first.abandon()
    pair.first.start(unattended_s=60.0)
    await pair.first.until(AgentResumed)
    came.set()
    ended = await pair.end_of(allocation)
    assert ended.exit.outcome == "finished"
    assert printed(ended) == {rank: ["trained"] for rank in range(4)}
    assert len(await pair.first.until(AllocationAddressed)) == 2
    assert len(await pair.first.until(AgentJoined)) == 3


async def test_a_gang_that_waits_for_an_agent_can_be_killed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a run that is not wanted any more."""
    monkeypatch.setattr(rendezvous, "NOTED_EVERY_S", 0.05)
    monkeypatch.setattr(pair.second.agent._provisioning, "open", lambda *_: asyncio.Event().wait())
    allocation = await pair.grant("print('trained')")
    await pair.first.until_printed("waiting for other agents")
    await pair.first.decide(
        AllocationSignaled(pool=POOL, allocation_id=allocation, agents=["a1", "a2"], how="kill")
    )
    assert (await pair.end_of(allocation)).exit.outcome == "killed"


async def test_an_interface_that_is_not_there_fails_the_run(pair: Pair) -> None:
    """The message names it and those that there are."""
    allocation = await pair.grant("pass", distributed={"interface": "none0"})
    ended = await pair.end_of(allocation)
    assert {each.outcome for each in ended.of(TrialExited)} == {"failed"}
    assert "no network interface" in ended.of(TrialExited)[0].message or (
        "none0" in ended.of(TrialExited)[0].message
    )


async def test_ranks_elsewhere_may_wait_for_the_store_of_the_first_agent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first agent alone takes silence for a hang where it carries checkpoints on."""
    first, second = [await stand(rig) for rig in (pair.first, pair.second)]
    monkeypatch.setattr(stack_dump, "_WRITES_S", 0.0)  # who is taken to hang is killed at once
    for rig in (pair.first, pair.second):
        monkeypatch.setattr(rig.agent._checkpoint_upload, "staged", True)
    script = (
        "import os, time\n"
        "from rung import core\n"
        "from rung.core import _train as train\n"
        "train._HEARTBEAT_S = 0\n"
        "with core.init() as ctx:\n"
        "    ctx.train.heartbeat()\n"
        "    for step in range(1, 5):\n"
        f"        while not os.path.exists({str(tmp_path / 'step')!r} + str(step)):\n"
        "            time.sleep(0.01)\n"
        "        ctx.train.report_training_metrics(step, {'loss': 1.0})\n"
    )
    allocation = await pair.grant(script, hang_timeout=LIMIT_S)
    await pair.first.until(TrialStarted)
    watches = [rig.agent._runs[allocation]._watchdog for rig in (pair.first, pair.second)]
    await soon(lambda: all(watchdog._sends_reports for watchdog in watches))
    for step in range(1, 5):
        first.now_s += 0.75 * LIMIT_S
        second.now_s += 2 * LIMIT_S
        await first.looked_at()
        (tmp_path / f"step{step}").touch()
        await soon(lambda: watches[0]._message_at == first.now_s)
    ended = await pair.end_of(allocation)
    assert {each.outcome for each in ended.of(TrialExited)} == {"finished"}
