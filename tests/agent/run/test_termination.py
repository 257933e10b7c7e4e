"""Making a run leave: by word, by signal, by force."""

import asyncio
import signal
from pathlib import Path

import pytest

from rung.agent.outbox import publisher
from rung.agent.run.termination import ASKED_BY, Termination, grace_period_of
from rung.events.trial import TrialStarted
from support.agent_rig import SPEAK, FickleLedger, Rig

pytestmark = pytest.mark.processes


async def test_preempted(running: Rig) -> None:
    """A run that acknowledges a preemption and leaves with 0 was preempted."""
    script = SPEAK + (
        "hello(); print('here', flush=True)\n"
        "assert json.loads(channel.makefile().readline())['type'] == 'preempt'\n"
        "say(type='acknowledged')\n"
    )
    allocation = await running.grant(code=running.code(train=script))
    await running.until_printed("here")
    await running.signal(allocation, "preempt")
    assert (await running.end_of(allocation)).exit.outcome == "preempted"


@pytest.mark.parametrize("final", [True, False])
async def test_a_run_learns_whether_its_trial_is_stopped(
    running: Rig,
    final: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Only what the search stops needs no checkpoint to go on from."""
    script = (
        "from rung import core\n"
        "with core.init() as ctx:\n"
        "    print('here', flush=True)\n"
        "    while not ctx.preempt.should_preempt(): assert not ctx.preempt.final\n"
        "    print('final', ctx.preempt.final)\n"
    )
    allocation = await running.grant(code=running.code(train=script))
    await running.until_printed("here")
    await running.signal(allocation, "preempt", final=final)
    ended = await running.end_of(allocation)
    assert ended.exit.outcome == "preempted"
    assert f"final {final}" in ended.printed()


async def test_ignores_preemption(running: Rig) -> None:
    """Who does not leave within the grace period is killed."""
    script = SPEAK + "hello(); print('here', flush=True)\nimport time\nwhile True: time.sleep(9)"
    allocation = await running.grant(code=running.code(train=script), preemption_timeout=0.1)
    await running.until_printed("here")
    await running.signal(allocation, "preempt")
    exited = (await running.end_of(allocation)).exit
    assert (exited.outcome, exited.signal) == ("killed", 9)
    assert "did not leave within 0.1 s" in exited.message


async def test_preempted_without_the_api(running: Rig) -> None:
    """A program that does not speak with the agent is asked by SIGTERM."""
    allocation = await running.grant("echo here && exec sleep 60")
    await running.until_printed("here")
    await running.signal(allocation, "preempt")
    exited = (await running.end_of(allocation)).exit
    assert (exited.outcome, exited.signal) == ("killed", 15)


@pytest.mark.parametrize("entrypoint", ["python3 train.py", "python3 train.py | cat"])
async def test_sigterm_leaves_a_script_its_workers(running: Rig, entrypoint: str) -> None:
    """A script can use its worker processes when it saves because of a SIGTERM."""
    script = (
        "import multiprocessing, signal, sys, time\n"
        "worker = multiprocessing.Process(target=time.sleep, args=[600], daemon=True)\n"
        "worker.start()\n"
        "def save(*_):\n"
        "    worker.join(0.2)\n"
        "    print('alive', worker.is_alive())\n"
        "    sys.exit(0)\n"
        "signal.signal(15, save)\n"
        "print('here', flush=True)\n"
        "signal.pause()\n"
    )
    allocation = await running.grant(entrypoint, code=running.code(train=script))
    await running.until_printed("here")
    await running.signal(allocation, "preempt")
    ended = await running.end_of(allocation)
    assert ended.printed() == ["here", "alive True"]
    assert ended.exit.outcome == "preempted"


async def test_who_only_asks_for_information_gets_sigterm(running: Rig) -> None:
    """`get_info` alone does not mean that a script learns of requests to exit."""
    script = "from rung import core\ncore.get_info()\nprint('here')\nimport time\ntime.sleep(600)"
    allocation = await running.grant(code=running.code(train=script))
    await running.until_printed("here")
    await running.signal(allocation, "preempt")
    exited = (await running.end_of(allocation)).exit
    assert (exited.outcome, exited.signal) == ("killed", 15)


async def test_killed_while_ignoring_sigterm(running: Rig) -> None:
    """A kill ends a script that ignores every signal that it can."""
    script = (
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('here')\n"
        "while True: time.sleep(9)"
    )
    allocation = await running.grant(code=running.code(train=script))
    await running.until_printed("here")
    await running.signal(allocation, "kill")
    exited = (await running.end_of(allocation)).exit
    assert (exited.outcome, exited.signal, exited.message) == ("killed", 9, "killed, as asked")


async def test_withdrawn_before_it_started(rig: Rig) -> None:
    """A run that is signaled while it waits for the fork server never starts."""
    rig.start(cold=False)
    allocation = await rig.grant("python3 train.py")
    await rig.signal(allocation, "kill")
    ended = await rig.end_of(allocation)
    assert (ended.exit.outcome, ended.exit.message) == ("killed", "withdrawn before it started")
    assert ended.of(TrialStarted) == []


@pytest.mark.parametrize(("first", "second"), [(0.01, 60.0), (60.0, 0.01)])
async def test_who_is_asked_twice_gets_no_longer(first: float, second: float) -> None:
    """The earlier of two deadlines holds, and its words say when."""
    sent: asyncio.Queue[signal.Signals] = asyncio.Queue()
    termination = Termination(sent.put_nowait)
    termination.ask(first, [], spoke=True)
    termination.ask(second, [], spoke=True)
    async with asyncio.timeout(5):
        assert await sent.get() == signal.SIGKILL
    assert "within 0.01 s" in (termination.conduct.sent_sigkill or "")


async def test_who_is_asked_twice_gets_one_signal() -> None:
    """A second SIGTERM would end what a script does about the first."""
    sent: list[signal.Signals] = []
    termination = Termination(sent.append)
    for _ in range(2):
        termination.ask(60.0, [], spoke=False)
    termination.close()
    assert sent == [signal.SIGTERM]


async def test_who_is_told_to_stop_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is away, so no scheduler answers: the agent asks its runs, and goes in time."""
    monkeypatch.setattr(publisher, "_CLOSE_S", 0.1)
    ledger = FickleLedger()
    rig = Rig(tmp_path, ledger)
    rig.start(leave_s=60.0)
    await rig.grant(code=rig.code(train=SPEAK + "hello(); print('here'); hello()"))
    await rig.until_printed("here")
    ledger.away = True
    async with asyncio.timeout(10):
        await rig.stop()
    assert ledger.refused.is_set()


@pytest.mark.parametrize(("notice_s", "leave_s"), [(120.0, 30.0), (30.0, 7.5), (0.0, 5.0)])
def test_a_notice_is_used_up(notice_s: float, leave_s: float) -> None:
    """Trials have most of it; what is left is for their checkpoints and the agent's goodbye."""
    grace_period = grace_period_of(notice_s, 5.0)
    assert grace_period.leave_s == pytest.approx(leave_s)
    assert notice_s == 0 or 0.9 < ASKED_BY + sum(grace_period) / notice_s < 1
