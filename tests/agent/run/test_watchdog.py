"""Watching a run: hangs end it with its stacks in the log, and readings of the machine arrive."""

import contextlib
import itertools
from pathlib import Path

import pytest

from agent.standing_clock import LIMIT_S, StandingClock, soon, stand
from rung.agent.monitoring import stack_dump
from rung.events.metric import MetricRow, MetricsReported
from rung.events.trial import TrialStarted
from support.agent_rig import SPEAK, Ended, Rig

pytestmark = pytest.mark.processes

_OUTERMOST = "in _run_module_as_main"
"""The last that a process prints of its stacks."""


@pytest.fixture
async def clock(running: Rig) -> StandingClock:
    """The clock of the agent that runs; without a turn of it, no run hangs."""
    return await stand(running)


@pytest.fixture
def unhurried(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has the time that it needs to print its stacks, down to the outermost frame."""
    asked = itertools.count(1)

    async def printed() -> None:
        (run,) = running.agent._runs.values()
        number = next(asked)
        with contextlib.suppress(TimeoutError):
            await soon(
                lambda: "".join(run._event_buffer.last_lines(0)).count(_OUTERMOST) >= number
            )

    monkeypatch.setattr(stack_dump, "_printed", printed)


async def hang(
    rig: Rig, clock: StandingClock, script: str, *places: str, event_buffer: bool = False
) -> Ended:
    """Let time pass once a script is where it says, and has reported; return its end."""
    allocation = await rig.grant(code=rig.code(train=script), hang_timeout=LIMIT_S)
    for place in places:
        await rig.until_printed(place)
    if event_buffer:
        await rig.until(MetricsReported)
    clock.now_s += 2 * LIMIT_S
    return await rig.end_of(allocation)


@pytest.mark.usefixtures("unhurried")
async def test_a_hung_run_shows_its_stacks_and_fails(running: Rig, clock: StandingClock) -> None:
    """Who says nothing for the time given is shown, thread by thread, and killed: a failure."""
    script = SPEAK + (
        "import threading\n"
        "def waits_for_ever(who):\n"
        "    sys.stdout.write(f'{who} waits\\n'); sys.stdout.flush()\n"
        "    threading.Event().wait()\n"
        "hello(); report('training', 3, loss=1.0)\n"
        "threading.Thread(target=waits_for_ever, args=['one'], daemon=True).start()\n"
        "waits_for_ever('another')\n"
    )
    ended = await hang(running, clock, script, "one waits", "another waits", event_buffer=True)
    exited = ended.exit
    assert (exited.outcome, exited.signal) == ("failed", 9)
    assert (exited.fault, exited.steps_completed) == ("hang", 3)
    assert "it hangs: it has reported nothing for 0.05 s, after step 3" in exited.message
    stacks = "\n".join(ended.printed("stderr"))
    assert stacks.count("in waits_for_ever") == 2
    assert "Current thread" in stacks
    assert any("; its stacks:" in line for line in ended.printed("platform"))


@pytest.mark.usefixtures("unhurried")
async def test_a_run_that_is_stuck_in_a_library_shows_its_stacks(
    running: Rig, clock: StandingClock
) -> None:
    """Even a main thread that never comes back from C, with the interpreter's lock, is shown."""
    script = SPEAK + (
        "import ctypes\n"
        "def in_a_library():\n"
        "    print('waits', flush=True)\n"
        "    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)\n"
        "hello(); in_a_library()\n"
    )
    ended = await hang(running, clock, script, "waits")
    assert ended.exit.fault == "hang"
    assert "before its first step" in ended.exit.message
    assert "in in_a_library" in "\n".join(ended.printed("stderr"))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("say(type='fetch', number=1, name='checkpoints/exp00001/c/state')", '"type":"fetched"'),
        (
            (
                "say(type='stored', steps_completed=3, size_bytes=1, files=1, digest='x',\n"
                "    checkpoint_id=os.environ['RUNG_ALLOCATION'] + '.3')"
            ),
            '"type":"shipped"',
        ),
        ("say(type='best_requested', number=1, within_s=60)", '"type":"best_found"'),
    ],
)
async def test_to_wait_for_the_store_or_the_ledger_is_no_hang(
    running: Rig, clock: StandingClock, monkeypatch: pytest.MonkeyPatch, said: str, answer: str
) -> None:
    """While a checkpoint or an answer comes, silence does not count; then the time begins anew."""

    async def slow(*_: object) -> str:
        for _again in range(2):
            clock.now_s += 2 * LIMIT_S
            await clock.looked_at()
        return ""

    checkpoint_upload = running.agent._checkpoint_upload
    monkeypatch.setattr(checkpoint_upload, "staged", True)
    monkeypatch.setattr(checkpoint_upload, "fetch", slow)
    monkeypatch.setattr(checkpoint_upload, "upload", slow)
    monkeypatch.setattr(running.agent._publisher, "published", slow)
    script = SPEAK + (
        f"import threading\nhello()\n{said}\n"
        "print(channel.makefile().readline(), flush=True)\n"
        "threading.Event().wait()\n"
    )
    allocation = await running.grant(code=running.code(train=script), hang_timeout=LIMIT_S)
    await running.until_printed(answer)
    clock.now_s += LIMIT_S / 2
    await clock.looked_at()
    clock.now_s += LIMIT_S
    assert (await running.end_of(allocation)).exit.fault == "hang"


@pytest.mark.usefixtures("unhurried")
async def test_all_processes_of_a_hung_run_are_shown(running: Rig, clock: StandingClock) -> None:
    """Workers that were forked show their stacks; a program of another kind is at least named."""
    script = SPEAK + (
        "import subprocess, time\n"
        "def works():\n    print('works', flush=True); time.sleep(600)\n"
        "def waits():\n    print('waits', flush=True); time.sleep(600)\n"
        "hello()\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "if os.fork() == 0: works()\n"
        "waits()\n"
    )
    ended = await hang(running, clock, script, "works", "waits")
    stacks = "\n".join(ended.printed("stderr"))
    assert "in works" in stacks
    assert "in waits" in stacks
    assert any(
        "(sleep 600)" in line and "no handler" in line for line in ended.printed("platform")
    )


async def test_signs_of_life_keep_a_run_alive(
    running: Rig, clock: StandingClock, tmp_path: Path
) -> None:
    """Reports and heartbeats count; what is printed does not matter."""
    script = SPEAK + (
        "import time\nhello()\n"
        "for step in range(6):\n"
        f"    while not os.path.exists({str(tmp_path)!r} + f'/step{{step}}'): time.sleep(0.01)\n"
        "    say(type='alive') if step % 2 else report('training', step, loss=1.0)\n"
    )
    allocation = await running.grant(code=running.code(train=script), hang_timeout=LIMIT_S)
    await running.until(TrialStarted)
    watchdog = running.agent._runs[allocation]._watchdog
    for step in range(6):
        clock.now_s += 0.75 * LIMIT_S
        await clock.looked_at()
        (tmp_path / f"step{step}").touch()
        await soon(lambda: watchdog._message_at == clock.now_s)
    assert (await running.end_of(allocation)).exit.outcome == "finished"


async def test_without_a_limit_a_run_may_be_silent(running: Rig) -> None:
    """0 and nothing mean that silence is no fault."""
    for silent in ({}, {"hang_timeout": 0}):
        ended = await running.run_script("import time; time.sleep(0.3)", **silent)
        assert ended.exit.outcome == "finished"


async def test_a_run_that_is_asked_to_leave_has_its_own_deadline(
    running: Rig, clock: StandingClock, tmp_path: Path
) -> None:
    """Within the grace period silence is no hang."""
    script = SPEAK + (
        "import time\nhello(); print('here', flush=True)\n"
        "channel.makefile().readline(); print('asked', flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'late')!r}): time.sleep(0.01)\n"
        "say(type='acknowledged')\n"
    )
    allocation = await running.grant(code=running.code(train=script), hang_timeout=LIMIT_S)
    await running.until_printed("here")
    await running.signal(allocation, "preempt")
    await running.until_printed("asked")
    clock.now_s += 2 * LIMIT_S
    await clock.looked_at()
    (tmp_path / "late").touch()
    assert (await running.end_of(allocation)).exit.outcome == "preempted"


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("raise MemoryError", "host_memory", "the machine ran out of memory: lower"),
        (
            "raise OSError(28, 'No space left on device')",
            "disk_full",
            "a disk is full: make room on the agent's disk",
        ),
        (
            "open('/dev/full', 'w').write('x' * 100_000)",
            "disk_full",
            "a disk is full: make room on the agent's disk",
        ),
        (
            "import nothing_there",
            "missing_module",
            "the module nothing_there is not there: put it into the code folder",
        ),
        (
            (
                "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
                "bytearray(2**34)"
            ),
            "host_memory",
            "(MemoryError (exit code 1))",
        ),
        ("1 / 0", "ZeroDivisionError", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "exit code 3", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "", "killed by signal 9"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11", "SIGSEGV"),
    ],
)
async def test_faults_are_named(running: Rig, script: str, kind: str, words: str) -> None:
    """A real failure gets its kind and its sentence, and keeps its own words."""
    exited = (await running.run_script(script)).exit
    assert (exited.outcome, exited.fault) == ("failed", kind)
    assert words in exited.message


async def test_vitals_are_reported(rig: Rig) -> None:
    """What a run takes of the machine comes as metrics of a kind of their own, by the second."""
    rig.start(sample_s=0.1)
    script = "block = bytearray(b'x') * 50_000_000\nwhile True: pass"
    allocation = await rig.grant(code=rig.code(train=script))
    await rig.until(TrialStarted)

    def full(row: MetricRow) -> bool:
        computed = float(row.values.get("cpu_percent", 0))
        return computed > 0 and float(row.values["memory_bytes"]) > 50_000_000

    found = await rig.until(MetricsReported, lambda it: any(map(full, it.rows)), 2)
    await rig.signal(allocation, "kill")
    rows = [row for reported in found for row in reported.rows]
    assert {row.kind for row in rows} == {"system"}
    assert all(row.step == row.time_ms // 1000 for row in rows)
    last = rows[-1].values
    assert float(last["memory_bytes"]) > 50_000_000
    assert last["processes"] == 1
    assert {"host_cpu_percent", "host_memory_percent", "host_disk_free_bytes"} <= last.keys()
    assert {"disk_write_bytes_per_s", "host_network_in_bytes_per_s"} <= last.keys()


async def test_a_run_of_a_moment_has_no_vitals(running: Rig) -> None:
    """Readings begin after the first period, so short runs say what they said."""
    assert (await running.run_script("print(1)")).rows == []
