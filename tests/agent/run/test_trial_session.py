"""What a process says over its socket, raw, and what the agent makes of it."""

import signal

import pytest

from rung.events.allocation import AgentJoined, AllocationReleased
from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.events.metric import MetricsReported
from rung.events.trial import TrialExited, TrialRestored, TrialStarted, TrialValidated
from rung.runtime.http.limits import Limits
from support.agent_rig import SPEAK, Ended, Rig
from support.processes import eventually

pytestmark = pytest.mark.processes


def _ignored(ended: Ended) -> list[str]:
    """Return the lines of a run's log about messages that were ignored."""
    ignored = "rung ignored a message of the script"
    return [text for text in ended.printed("platform") if text.startswith(ignored)]


async def test_speaks(running: Rig) -> None:
    """What a process says becomes facts in the order in which it said it."""
    first = await running.run_script("print(1)")
    given = [f"{first.allocation_id}.1", f"{first.allocation_id}.0"]
    script = SPEAK + (
        "hello()\n"
        f"say(type='restored', checkpoint_id={given[0]!r}, steps_completed=1)\n"
        "report('training', 2, loss=0.5)\n"
        "report('validation', 2, loss='NaN')\n"
        "say(type='stored', checkpoint_id=os.environ['RUNG_ALLOCATION'] + '.2', steps_completed=2,"
        " size_bytes=3, files=1, digest='d')\n"
        f"say(type='damaged', checkpoint_id={given[1]!r}, reason='a file is short')\n"
        "report('training', 3, loss=0.25)\n"
    )
    ended = await running.run_script(script, restore=given)
    kinds = [type(payload) for payload in ended.payloads if "Log" not in type(payload).__name__]
    assert kinds == [
        TrialStarted,
        TrialRestored,
        MetricsReported,
        TrialValidated,
        CheckpointStored,
        CheckpointDamaged,
        MetricsReported,
        TrialExited,
        AllocationReleased,
    ]
    assert ended.rows == [
        ("training", 2, {"loss": 0.5}),
        ("validation", 2, {"loss": "NaN"}),
        ("training", 3, {"loss": 0.25}),
    ]
    said = f"checkpoint {given[1]} is damaged: a file is short"
    assert ("platform", "warning", said) in ended.lines


@pytest.mark.parametrize(
    "checkpoint_id",
    [
        "exp00001.77.1.5",
        "exp00002.0.1.5",
        "../exp00002/exp00002.0.1.5",
        "{own}",
        "{own}.",
        "{own}0.5",
        "{own}./../../exp00002",
        "{own}.5\n",
        "{own}.5.6",
    ],
)
@pytest.mark.parametrize("restore", [[], ["exp00001.9.1.5"]], ids=["first", "resumed"])
async def test_reports_on_checkpoints_of_others(
    running: Rig, checkpoint_id: str, restore: list[str]
) -> None:
    """A run can neither claim nor condemn what another stored, nor say that it restored it."""
    script = SPEAK + (
        "hello()\n"
        f"its = {checkpoint_id!r}.replace('{{own}}', os.environ['RUNG_ALLOCATION'])\n"
        "say(type='stored', checkpoint_id=its, steps_completed=5, size_bytes=1, files=1,"
        " digest='d')\n"
        "say(type='restored', checkpoint_id=its, steps_completed=5)\n"
        "say(type='damaged', checkpoint_id=its, reason='because')\n"
    )
    ended = await running.run_script(script, restore=restore)
    kinds = [type(payload) for payload in ended.payloads if "Log" not in type(payload).__name__]
    assert kinds == [TrialStarted, TrialExited, AllocationReleased]
    assert len(_ignored(ended)) == 3


async def test_reports_of_a_killed_process(running: Rig) -> None:
    """What a process had said when SIGKILL hit it is all there, before its exit."""
    script = SPEAK + (
        "hello()\n"
        "for step in range(5000): report('training', step, loss=float(step))\n"
        "print('last words', flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = await running.run_script(script)
    assert [step for _, step, _ in ended.rows] == list(range(5000))
    assert ended.printed() == ["last words"]
    assert ended.exit.signal == signal.SIGKILL
    assert isinstance(ended.payloads[-1], AllocationReleased)


async def test_never_waits_for_the_welcome(running: Rig) -> None:
    """Reports count even if the process was gone before the agent had accepted it."""
    script = SPEAK.replace("return channel", "pass; return 0 and channel") + (
        "hello(); report('validation', 1, loss=1.0); os._exit(0)\n"
    )
    allocations = [await running.grant(code=running.code(train=script)) for _ in range(8)]
    for allocation in allocations:
        assert (await running.end_of(allocation)).rows == [("validation", 1, {"loss": 1.0})]


async def test_bad_messages(running: Rig) -> None:
    """What is no message is skipped with a line in the run's log; the rest counts."""
    script = SPEAK + (
        "hello()\n"
        "channel.sendall(b'nonsense\\n')\n"
        "say(type='conquered', world=True)\n"
        "report('training', 1, loss='high')\n"
        "report('training', -1, loss=1.0)\n"
        "report('', 1, loss=1.0)\n"
        "report('training', 2, loss=1.0)\n"
        "channel.sendall(b'x' * 9_000_000 + b'\\n')\n"
        "report('validation', 2, **{f'loss{n:06}': 1.0 for n in range(40_000)})\n"
        "report('training', 3, loss=1.0)\n"
        "channel.sendall(b'{\"type\":')\n"
    )
    ended = await running.run_script(script)
    assert [step for _, step, _ in ended.rows] == [2, 3]
    notes = _ignored(ended)
    assert len(notes) == 8
    assert any("more than 524288" in note for note in notes)
    assert ended.of(TrialValidated) == []
    (other,) = [note for note in ended.printed("platform") if note not in notes]
    assert "without a validation" in other
    assert ended.exit.outcome == "finished"


@pytest.mark.parametrize("first", ["hello(token='guess')", "report('training', 1, loss=1.0)"])
async def test_strangers(running: Rig, first: str) -> None:
    """Who does not know the allocation's token is disconnected and changes nothing."""
    ended = await running.run_script(
        SPEAK + first + "\ntry: print(repr(channel.recv(1)))\nexcept OSError: print(repr(b''))"
    )
    assert ended.printed() == ["b''"]
    assert ended.rows == []


MANY = (
    SPEAK
    + """
def another():
    found = socket.socket(socket.AF_UNIX)
    found.connect(os.environ["RUNG_SOCKET"])
    return found
def greeted():
    global channel
    channel = another()
    try:
        return "welcome" in hello()
    except OSError:
        return False
held = []
for number in range(40):
    held.append(another())
"""
)


@pytest.fixture
async def limited(running: Rig) -> Rig:
    """Give an agent that lets a run have 8 connections, and all of them 12."""
    await running.until(AgentJoined)
    running.agent._ipc_server.limits = Limits(
        connections=12, connections_per_address=8, head_s=5.0, head_bytes=1024
    )
    return running


async def test_connections_that_say_nothing_give_way(limited: Rig) -> None:
    """However many a run opens, those that count are 8, and a process of it is still heard."""
    script = MANY + (
        "print(greeted(), flush=True)\n"
        "report('training', 1, loss=1.0)\n"
        "import signal; signal.pause()"
    )
    allocations = [await limited.grant(code=limited.code(train=script)) for _ in range(2)]
    await limited.until(MetricsReported, count=2)
    ipc_server = limited.agent._ipc_server
    assert sum(client.counted for client in ipc_server.unauthenticated.values()) <= 12 - 2
    assert ipc_server._count <= 12
    for allocation in allocations:
        await limited.signal(allocation, "kill")
        assert (await limited.end_of(allocation)).printed() == ["True"]
    await eventually(lambda: ipc_server._count == 0)


async def test_processes_beyond_the_limit_are_refused(limited: Rig) -> None:
    """Those that have said hello stay, and the log says why another one was not heard."""
    script = MANY + (
        "held = []\n"
        "for number in range(20):\n"
        "    held.append((greeted(), channel))\n"
        "print([good for good, _ in held].count(True))\n"
        'held[0][1].sendall(b\'{"type": "alive"}\\n\')\n'
    )
    ended = await limited.run_script(script)
    assert ended.printed() == ["8"], ended.lines
    (note,) = _ignored(ended)
    assert "there are 8 connections of" in note


async def test_a_long_hello_is_cut(limited: Rig) -> None:
    """Nobody has the agent keep megabytes before it is known who speaks."""
    script = SPEAK + "channel.sendall(b'x' * 4096)\nprint(channel.recv(1))"
    assert (await limited.run_script(script)).printed() == ["b''"]


async def test_hyperparameters_refused(running: Rig) -> None:
    """A refusal is no failure of the script, whatever its exit code."""
    script = SPEAK + "hello()\nsay(type='hparams_refused', reason='lr too high')\nsys.exit(1)"
    exited = (await running.run_script(script)).exit
    assert (exited.outcome, exited.message) == ("invalid_hp", "lr too high")


async def test_back_pressure(rig: Rig) -> None:
    """While the disk is full a script waits in the end; nothing it said is lost."""
    rig.start()
    await rig.until(AgentJoined)
    outbox = rig.agent._outbox
    outbox._pending_bytes_max = 10_000
    (pages,) = outbox._file._db.execute("PRAGMA page_count").fetchone()
    outbox._file._db.execute(f"PRAGMA max_page_count = {pages}")
    script = SPEAK + (
        "hello()\nfor step in range(20_000):\n"
        "    report('training', step, loss=1.0, note=2.0)\n"
        "    if step % 10 == 0: print('line', step)\n"
    )
    allocation = await rig.grant(code=rig.code(train=script))
    await eventually(lambda: outbox.saturated)
    waiting_bytes = outbox._pending_bytes
    outbox._file._db.execute("PRAGMA max_page_count = 1000000")
    ended = await rig.end_of(allocation)
    assert waiting_bytes < 1_000_000
    reported = [step for group, step, _ in ended.rows if group == "training"]
    assert reported == list(range(20_000))
    assert ended.printed() == [f"line {step}" for step in range(0, 20_000, 10)]
