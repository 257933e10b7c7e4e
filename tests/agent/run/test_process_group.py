"""A run of several processes on one agent: they begin together, and the first failure ends all."""

from typing import Any

import pytest

from rung.agent.run import process_group
from rung.events.allocation import AllocationReleased
from rung.events.metric import LogsPrinted
from rung.events.trial import TrialExited, TrialStarted
from support.agent_rig import SPEAK, Rig
from support.processes import children_of

pytestmark = pytest.mark.processes

RANK = "import os, sys, time\nrank = int(os.environ['RUNG_RANK'])\n"


def ranks_of(ended: Any, stream: str = "stdout") -> dict[int, list[str]]:
    """Return what each rank printed."""
    found: dict[int, list[str]] = {}
    for printed in ended.of(LogsPrinted):
        for line in printed.lines:
            if line.stream == stream:
                found.setdefault(line.rank, []).append(line.text)
    return found


async def test_a_process_for_each_slot(running: Rig) -> None:
    """Each knows its place; what it prints bears its rank; the run is told of once."""
    script = RANK + (
        "names = ['RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE']\n"
        "print([int(os.environ['RUNG_' + name]) for name in names])"
    )
    ended = await running.run_script(script, slots=[0, 2, 3])
    assert ranks_of(ended) == {rank: [f"[{rank}, 3, {rank}, 3, 0, 1]"] for rank in range(3)}
    assert (ended.exit.outcome, ended.exit.exit_code) == ("finished", 0)
    for kind in (TrialStarted, TrialExited, AllocationReleased):
        assert len(ended.of(kind)) == 1


async def test_a_single_slot_is_told_no_rendezvous(running: Rig) -> None:
    """With one slot no port is kept and no variable of a framework is set."""
    ended = await running.run_script(
        "import os; print(sorted(n for n in os.environ if n in "
        "{'RANK', 'MASTER_ADDR', 'TF_CONFIG', 'RUNG_CHIEF', 'GLOO_SOCKET_IFNAME'}))"
    )
    assert ended.printed() == ["[]"]


async def test_the_run_ends_when_all_have_ended(running: Rig) -> None:
    """Rank 0 may be done first; the run is over when the others are."""
    script = RANK + (
        "import select\n"
        "from rung import core\n"
        "with core.init() as ctx:\n"
        "    pids = ctx.distributed.allgather(os.getpid())\n"
        "    before = os.pidfd_open(pids[max(0, rank - 1)])\n"
        "    ctx.distributed.barrier()\n"
        "if rank: select.select([before], [], [])\n"
        "print('done')"
    )
    ended = await running.run_script(script, slots=[0, 1, 2])
    assert ranks_of(ended) == {rank: ["done"] for rank in range(3)}
    assert ended.exit.outcome == "finished"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise ValueError('no data')", "rank 1: ValueError: no data (exit code 1)"),
        ("os.kill(os.getpid(), 9)", "rank 1: killed by signal 9 (SIGKILL)"),
        ("sys.exit(3)", "rank 1: exit code 3"),
    ],
)
async def test_one_failure_ends_all(running: Rig, how: str, message: str) -> None:
    """The others are stopped at once; the run failed, in the words of the rank that failed."""
    script = RANK + f"if rank == 1: {how}\ntime.sleep(60)"
    ended = await running.run_script(script, slots=[0, 1, 2])
    assert ended.exit.outcome == "failed"
    assert ended.exit.message.startswith(message)
    assert children_of(running.agent._fork_servers.pid) == []


async def test_who_ignores_the_stop_is_killed(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that hangs, deaf to SIGTERM, does not keep the slots."""
    monkeypatch.setattr(process_group, "STOP_S", 0.2)
    script = RANK + (
        "import signal\n"
        "from rung import core\n"
        "with core.init() as ctx:\n"
        "    signal.signal(15, signal.SIG_IGN)\n"
        "    ctx.distributed.barrier()\n"
        "    if rank == 2: raise SystemExit('broken')\n"
        "    while True: time.sleep(9)"
    )
    ended = await running.run_script(script, slots=[0, 1, 2])
    assert (ended.exit.outcome, ended.exit.message) == (
        "failed",
        "rank 2: broken (exit code 1)",
    )


async def test_a_kill_before_the_processes_are_asked_for_ends_them(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is killed in the moment before it is made does not train on."""
    run_group = process_group.ProcessGroup.run

    async def killed_first(self: process_group.ProcessGroup, *request: Any, **more: Any) -> bool:
        (run,) = running.agent._runs.values()
        run.ask("kill")
        return await run_group(self, *request, **more)

    monkeypatch.setattr(process_group.ProcessGroup, "run", killed_first)
    ended = await running.run_script("import time; time.sleep(60)", slots=[0, 1])
    assert (ended.exit.outcome, ended.exit.signal) == ("killed", 9)


async def test_a_refusal_of_any_rank_is_the_runs(running: Rig) -> None:
    """Hyperparameters that another rank than the chief refuses are refused."""
    script = (
        RANK + "from rung import core\n"
        "with core.init() as ctx:\n"
        "    if rank == 1: raise core.InvalidHP('too deep')\n"
        "    time.sleep(60)"
    )
    ended = await running.run_script(script, slots=[0, 1])
    assert (ended.exit.outcome, ended.exit.message) == ("invalid_hp", "rank 1: too deep")


async def test_only_rank_0_speaks_for_the_run(running: Rig) -> None:
    """Reports of other ranks are nobody's, whatever API they are made by."""
    script = RANK + SPEAK.replace("rank=0", "rank=rank") + "hello(); report('training', 1, x=rank)"
    ended = await running.run_script(script, slots=[0, 1, 2])
    assert ended.rows == [("training", 1, {"x": 0.0})]


async def test_ranks_speak_to_each_other(running: Rig) -> None:
    """`ctx.distributed` works between the processes of a run."""
    script = (
        "from rung import core\n"
        "with core.init() as ctx:\n"
        "    ranks = ctx.distributed\n"
        "    print(ranks.allgather(ranks.rank), ranks.broadcast(ranks.rank + 7))"
    )
    ended = await running.run_script(script, slots=[0, 1, 2, 3])
    assert ranks_of(ended) == {rank: ["[0, 1, 2, 3] 7"] for rank in range(4)}


async def test_all_leave_at_the_same_step(running: Rig) -> None:
    """A preemption stops all ranks behind the same step, and the chief stores the checkpoint."""
    script = RANK + (
        "from rung import core\n"
        "with core.init() as ctx:\n"
        "    step = 0\n"
        "    while not ctx.preempt.should_preempt():\n"
        "        step += 1\n"
        "        if step == 3: print('here', flush=True)\n"
        "        time.sleep(0.001 * rank)\n"
        "    assert ctx.distributed.allgather(step) == [step] * ctx.distributed.size\n"
        "    with ctx.checkpoint.store_path(steps_completed=step) as (path, name):\n"
        "        (path / 'rank').write_text(str(rank))\n"
    )
    allocation = await running.grant(code=running.code(train=script), slots=[0, 1, 2])
    await running.until_printed("here")
    await running.signal(allocation, "preempt")
    ended = await running.end_of(allocation)
    assert ended.exit.outcome == "preempted"
    (name,) = [p.checkpoint_id for p in ended.payloads if hasattr(p, "checkpoint_id")]
    assert running.store.read(f"checkpoints/exp00001/{name}/rank") == b"0"

    restore = (
        "from rung import core\n"
        "with core.init() as ctx:\n"
        "    with ctx.checkpoint.restore_path(ctx.checkpoint.download_latest()) as path:\n"
        "        print((path / 'rank').read_text())"
    )
    code = running.code(train=restore)
    again = await running.end_of(await running.grant(code=code, slots=[1, 3], restore=[name]))
    assert ranks_of(again) == {0: ["0"], 1: ["0"]}


async def test_torch_is_told_where_to_meet(running: Rig) -> None:
    """The variables of `torch.distributed` are there, and the port is free for rank 0."""
    script = RANK + (
        "import socket\n"
        "names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR']\n"
        "print([os.environ[name] for name in names])\n"
        "if rank == 0:\n"
        "    listener = socket.socket()\n"
        "    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    listener.bind(('127.0.0.1', int(os.environ['MASTER_PORT'])))\n"
        "    listener.listen()\n"
    )
    ended = await running.run_script(script, slots=[1, 2])
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    assert ranks_of(ended) == {r: [f"['{r}', '2', '{r}', '2', '127.0.0.1']"] for r in (0, 1)}


async def test_no_launcher_means_one_process_with_all_slots(running: Rig) -> None:
    """`launcher: none` leaves it to the entrypoint to start what it likes."""
    script = "import os; print(os.environ['RUNG_SIZE'], os.environ['NNODES'])"
    ended = await running.run_script(script, slots=[0, 1, 2], distributed={"launcher": "none"})
    assert ranks_of(ended) == {0: ["1 1"]}


async def test_the_cause_is_told_from_what_follows_it(running: Rig) -> None:
    """A rank that only missed another is not blamed, even where it is heard of first."""
    script = RANK + (
        "import signal\n"
        "from rung import core\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {15})\n"
        "with core.init() as ctx:\n"
        "    ctx.distributed.barrier()\n"
        "if rank == 0: raise ConnectionResetError('Connection reset by peer')\n"
        "signal.sigwait({15})\n"
        "raise ValueError('no data')"
    )
    ended = await running.run_script(script, slots=[0, 1])
    assert ended.exit.message == "rank 1: ValueError: no data (exit code 1)"
