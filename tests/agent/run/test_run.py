"""One run: what its process does, what the agent makes of it."""

import gzip
import re
from typing import Any

import pytest

from rung.events.allocation import AllocationReleased
from rung.events.trial import (
    CODE_REFUSED,
    ExitOutcome,
    TrialExited,
    TrialStarted,
)
from support.agent_rig import Rig
from support.processes import alive, children_of, eventually, exists

pytestmark = pytest.mark.processes


async def test_finished(running: Rig) -> None:
    """A script that ends by itself is started, finished and released, in this order."""
    ended = await running.run_script("print('hello')")
    kinds = [type(payload) for payload in ended.payloads if "Log" not in type(payload).__name__]
    assert kinds == [TrialStarted, TrialExited, AllocationReleased]
    exited = ended.exit
    assert (exited.outcome, exited.exit_code, exited.signal) == ("finished", 0, None)
    assert not exited.message
    assert ended.printed() == ["hello"]


@pytest.mark.parametrize(
    ("script", "outcome", "code", "number", "message"),
    [
        ("raise SystemExit(3)", "failed", 3, None, "exit code 3"),
        ("import sys; sys.exit('no data')", "failed", 1, None, "no data (exit code 1)"),
        ("import nothing_there", "failed", 1, None, "ModuleNotFoundError: No module named"),
        ("def broken(:", "failed", 1, None, "SyntaxError: invalid syntax"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "failed",
            None,
            9,
            "killed by signal 9 (SIGKILL); did the machine run out of memory?",
        ),
        ("import os; os.abort()", "failed", None, 6, "killed by signal 6 (SIGABRT)"),
        ("import os; os._exit(0)", "finished", 0, None, ""),
    ],
)
async def test_ends(
    running: Rig,
    *,
    script: str,
    outcome: ExitOutcome,
    code: int | None,
    number: int | None,
    message: str,
) -> None:
    """However a script ends, the exit says how, in words that a person understands."""
    exited = (await running.run_script(script)).exit
    assert (exited.outcome, exited.exit_code, exited.signal) == (outcome, code, number)
    assert message in exited.message


async def test_traceback(running: Rig) -> None:
    """A traceback begins with the user's frame, and its lines are errors."""
    ended = await running.run_script("def f():\n    1 / 0\nf()")
    stderr = [(level, text) for stream, level, text in ended.lines if stream == "stderr"]
    assert {level for level, _ in stderr} == {"error"}
    assert re.fullmatch(r'  File "/.+/train.py", line 3, in <module>', stderr[1][1])
    assert stderr[-1][1] == "ZeroDivisionError: division by zero"
    assert ended.exit.message.startswith("ZeroDivisionError: division by zero")


async def test_runs_as_main(running: Rig) -> None:
    """A script finds argv, path, name and folder as a fresh interpreter would set them."""
    code = running.code(
        train="import sys, os, other\n"
        "print(__name__, __file__ == os.path.abspath('train.py'), sys.argv, other.VALUE)\n"
        "print(sys.path[0] == os.getcwd(), sys.modules['__main__'].__dict__ is globals())",
        other="VALUE = 5",
    )
    ended = await running.end_of(await running.grant("python3 train.py a 'b c'", code=code))
    assert ended.printed() == ["__main__ True ['train.py', 'a', 'b c'] 5", "True True"]


async def test_a_script_that_changes_its_folder(running: Rig) -> None:
    """A script finds its own file and its source from any folder."""
    script = (
        "import inspect, os\nos.chdir('/')\ndef f(): return 1\n"
        "print(open(__file__).readline(), inspect.getsource(f), end='')\n"
    )
    ended = await running.run_script(script)
    assert ended.printed() == ["import inspect, os", " def f(): return 1"]


@pytest.mark.parametrize("entrypoint", ["python3 train.py a", "python3 -m train a"])
async def test_modules_named_as_imported_ones(running: Rig, entrypoint: str) -> None:
    """A script's own modules have precedence over those that the fork server has imported."""
    train = "import sys, queue, signal\nprint(queue.OWN, signal.__name__, sys.argv[1:])"
    code = running.code(train=train, queue="OWN = 5")
    ended = await running.end_of(await running.grant(entrypoint, code=code))
    assert ended.printed() == ["5 signal ['a']"]


async def test_an_end_before_the_length(running: Rig) -> None:
    """That a script ended well before its length is in its log; otherwise nothing is."""
    report = "from rung import core\nwith core.init() as ctx:\n"
    report += "    ctx.train.report_validation_metrics({at}, {{'loss': 1.0}})\n"
    noted = []
    for script in ("print(1)", report.format(at=3), report.format(at=10)):
        ended = await running.run_script(script)
        assert ended.exit.outcome == "finished"
        noted.append([text for stream, _, text in ended.lines if stream == "platform"])
    none, early, whole = noted
    ends = "the script ended by itself, with exit code 0"
    assert none == [f"{ends}, without a validation; its length in batches is 10"]
    assert early == [f"{ends}, at 3, by its last validation; its length in batches is 10"]
    assert whole == []


async def test_behind_a_shell(running: Rig) -> None:
    """A crash in a pipe or in the background fails the run; what the shell has works."""
    code = running.code(train="raise SystemExit(3)", fine="print('fine')")
    for line in ("python3 train.py | cat", "python3 train.py &", "exec python3 train.py"):
        exited = (await running.end_of(await running.grant(line, code=code))).exit
        assert (exited.outcome, exited.exit_code) == ("failed", 3), line
    ended = await running.end_of(await running.grant("ulimit -c 0; python3 fine.py", code=code))
    assert ended.printed() == ["fine"]


async def test_module(running: Rig) -> None:
    """`python -m name` runs a module."""
    code = running.code(train="import sys\nprint(__name__, sys.argv[1:], __spec__.name)")
    ended = await running.end_of(await running.grant("python -m train x", code=code))
    assert ended.printed() == ["__main__ ['x'] train"]


@pytest.mark.parametrize(
    ("entrypoint", "printed"),
    [
        ("echo one && echo $((1 + 1))", ["one", "2"]),
        (["echo", "a b", "$HOME"], ["a b $HOME"]),
        ("python -c 'print(6*7)'", ["42"]),
        (["python3", "-O", "train.py"], ["ran"]),
        ("X=1 python3 train.py", ["ran"]),
    ],
)
async def test_other_programs(running: Rig, entrypoint: Any, printed: list[str]) -> None:
    """Entrypoints that are no plain Python script run as programs."""
    code = running.code(train="print('ran')")
    ended = await running.end_of(await running.grant(entrypoint, code=code))
    assert ended.printed() == printed
    assert ended.exit.outcome == "finished"


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        (None, "entrypoint None: give a command such as `python3 train.py`"),
        ("", "entrypoint ''"),
        ("python3 'train.py", "No closing quotation"),
        ("no-such-program-here", "no-such-program-here: command not found"),
        (["no-such-program-here"], "no-such-program-here: No such file or directory"),
        ("python3 missing.py", "can't open file"),
        ("python3 -m missing", "No module named missing"),
    ],
)
async def test_bad_entrypoints(running: Rig, entrypoint: Any, message: str) -> None:
    """An entrypoint that cannot run is a failure that says why."""
    ended = await running.end_of(await running.grant(entrypoint))
    assert ended.exit.outcome == "failed"
    assert message in ended.exit.message


async def test_missing_code(running: Rig) -> None:
    """Without its code archive a run fails, and the agent goes on."""
    ended = await running.end_of(await running.grant(code="0" * 64))
    assert ended.exit.outcome == "failed"
    assert f"the code archive {'0' * 64} is missing" in ended.exit.message
    assert (await running.run_script("print(1)")).exit.outcome == "finished"


async def test_refused_code(running: Rig) -> None:
    """The end of a run whose archive is refused says that no other run can do better."""
    for data in (b"no archive", gzip.compress(b"no tar")):
        ended = await running.end_of(await running.grant(code=running.archive(data)))
        assert (ended.exit.outcome, ended.exit.fault) == ("failed", CODE_REFUSED)
        assert "cannot be unpacked" in ended.exit.message


async def test_environment(running: Rig) -> None:
    """A run gets the experiment's variables, and cannot override the platform's."""
    script = (
        "import os\n"
        "print(os.environ['A'], os.environ['B'], os.environ['RUNG_ALLOCATION'], "
        "os.environ['OMP_NUM_THREADS'], 'RUNG_TOKEN' in os.environ)"
    )
    variables = ["A=1=2", "B=", "RUNG_ALLOCATION=mine", "OMP_NUM_THREADS=3"]
    ended = await running.run_script(script, environment={"environment_variables": variables})
    assert ended.printed() == [f"1=2  {ended.allocation_id} 3 False"]


async def test_variables_for_an_interpreter(running: Rig) -> None:
    """A variable that an interpreter reads at its start takes effect."""
    script = "import sys, time; print(sys.flags.hash_randomization, time.localtime(0).tm_hour)"
    variables = {"cpu": ["PYTHONHASHSEED=0", "TZ=AAA-3"], "cuda": ["PYTHONHASHSEED=random"]}
    ended = await running.run_script(script, environment={"environment_variables": variables})
    assert ended.printed() == ["0 3"]
    ended = await running.run_script(script, environment={"environment_variables": ["TZ=AAA-4"]})
    assert ended.printed() == ["0 4"]


async def test_a_process_has_the_name_of_its_run(running: Rig) -> None:
    """Where `top` and `ps -o comm` show it."""
    ended = await running.run_script("print(open('/proc/self/comm').read().strip())")
    assert ended.printed() == [ended.allocation_id[:15]]


async def test_leaves_nothing_behind(running: Rig) -> None:
    """Children, daemons and children of daemons are gone once the run is released."""
    script = (
        "import os, subprocess, sys, time\n"
        "sleeper = [sys.executable, '-c', 'import time; print(\"up\", flush=True); "
        "time.sleep(600)']\n"
        "def daemon():\n"
        "    here, there = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            subprocess.Popen(sleeper, start_new_session=True)\n"
        "            print('pid', os.getpid(), flush=True)\n"
        "            os.write(there, b'x')\n"
        "            time.sleep(600)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    os.read(here, 1)\n"
        "daemon()\n"
        "child = subprocess.Popen(sleeper, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print('pid', child.pid, 'own', os.getpid(), flush=True)\n"
    )
    ended = await running.run_script(script)
    assert ended.exit.outcome == "finished"
    pids = [int(word) for line in ended.printed() for word in line.split() if word.isdecimal()]
    assert len(pids) == 3
    assert not [pid for pid in pids if alive(pid)]
    assert children_of(running.agent._fork_servers.pid) == []


async def test_a_checkpoint_that_was_cut_off_takes_no_room(running: Rig) -> None:
    """What a run was storing when it died is deleted, as no other run may come to do it."""
    script = (
        "import os\n"
        "from rung import core\n"
        "def cut_off(draft):\n"
        "    draft.write('state', lambda file: file.write(b'half'))\n"
        "    os.kill(os.getpid(), 9)\n"
        "with core.init() as ctx:\n"
        "    ctx.checkpoint.save_async(lambda draft: draft.write('state', lambda file:\n"
        "        file.write(b'whole')), steps_completed=1)\n"
        "    ctx.checkpoint.wait()\n"
        "    ctx.checkpoint.save_async(cut_off, steps_completed=2)\n"
        "    ctx.checkpoint.wait()\n"
    )
    ended = await running.run_script(script)
    assert ended.exit.signal == 9

    def stored() -> set[str]:
        return {info.name.split("/")[2] for info in running.store.list("checkpoints/")}

    await eventually(lambda: stored() == {f"{ended.allocation_id}.1"})


async def test_long_line(running: Rig) -> None:
    """A line of 10 MB arrives in pieces, whole."""
    ended = await running.run_script("print('x' * 10_000_000 + 'end')")
    printed = ended.printed()
    assert "".join(printed) == "x" * 10_000_000 + "end"
    assert max(map(len, printed)) <= 64 * 1024


async def test_the_working_folder_is_the_trials(running: Rig) -> None:
    """A run finds what the run before wrote; where that is not here, its log says so."""
    script = (
        "import os, sys\nprint(os.getcwd(), os.path.exists('out'))\nopen('out', 'w').close()\n"
    )
    code = running.code(train=script)
    first = await running.end_of(await running.grant(code=code))
    second = await running.end_of(
        await running.grant(code=code, restore=[f"{first.allocation_id}.1"])
    )
    other = await running.end_of(await running.grant(code=code, restore=["exp00001.7.1.1"]))
    folder = first.printed()[0].split()[0]
    assert (first.printed(), second.printed()) == ([f"{folder} False"], [f"{folder} True"])
    noted = [
        any("are not here" in text for text in it.printed("platform")) for it in (second, other)
    ]
    assert noted == [False, True]
    assert other.printed()[0].endswith(" False")


async def test_own_copy_of_the_code(running: Rig) -> None:
    """What a run writes into its files reaches no other run, and goes with it."""
    script = (
        "import os\nprint(open('train.py').read().count('more'))\n"
        "open('train.py', 'a').write('# more')\nprint(os.getcwd())"
    )
    code = running.code(train=script)
    folders = []
    for _ in range(2):
        ended = await running.end_of(await running.grant(code=code))
        count, folder = ended.printed()
        assert count == "2"
        folders.append(folder)
    await running.stop()
    assert not [folder for folder in folders if exists(folder)]


async def test_finishing_touches(running: Rig) -> None:
    """Threads are joined, exit functions called, open files written, as an interpreter does."""
    script = (
        "import atexit, tempfile, threading, time, other\n"
        "atexit.register(lambda: print('bye'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "kept = tempfile.TemporaryDirectory()\nprint(kept.name)\n"
        "class Last:\n    def __del__(self): print('deleted')\nlast = Last()\n"
    )
    code = running.code(
        train=script, other="class Last:\n    def __del__(self): print('too')\nlast = Last()"
    )
    ended = await running.end_of(await running.grant(code=code))
    folder, *rest = ended.printed()
    assert rest == ["thread", "bye", "deleted", "too"]
    assert not exists(folder)
