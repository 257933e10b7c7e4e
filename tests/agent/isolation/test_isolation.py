"""A trial cannot act as its neighbour, as the agent, or as the owner.

Where the kernel refuses namespaces, these tests hold the agent to saying so. As root they run once
as root and once more, in a process of its own, as a user without any rights.
"""

import grp
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from agent.stored_checkpoint import RESTORE, STORE, stored_elsewhere
from agent.unprivileged import run_tests
from rung.agent.isolation import namespaces
from rung.agent.isolation.isolation import (
    Isolation,
    IsolationRefused,
    UserIds,
    _problem_with_namespaces,
    groups_of,
    isolation_of,
)
from rung.agent.settings import Settings
from rung.events.allocation import AgentJoined
from rung.events.checkpoint import CheckpointStored
from rung.storage import FolderStore, read_manifest
from support.agent_rig import EXPERIMENT, SPEAK, Rig
from support.processes import alive, eventually

pytestmark = pytest.mark.processes

USERS = UserIds(60000, 60009)

VICTIM = SPEAK + (
    "import time\n"
    "hello()\n"
    "open('secret', 'w').write('mine')\n"
    f"open('/dev/shm/rung-test-{os.getpid()}', 'w').write('mine')\n"
    "report('validation', 1, loss=0.5)\n"
    "print('ready', flush=True)\n"
    "time.sleep(600)\n"
)

ATTACK = """
import ctypes, json, os, pathlib, signal, socket, sys
wanted = json.loads(sys.argv[1])
found = {}

def attempt(name, act):
    try:
        found[name] = act()
    except OSError as error:
        found[name] = type(error).__name__

def tokens():
    own = os.environ["RUNG_ALLOCATION_TOKEN"].encode()
    seen = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        seen += b"RUNG_ALLOCATION_TOKEN=" in text and own not in text
    return seen

def trace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None) == 0:
        libc.ptrace(17, pid, None, None)
        return "attached"
    raise OSError(ctypes.get_errno(), "refused")

def report():
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(os.environ["RUNG_SOCKET"])
    hello = {"type": "hello", "allocation_id": wanted["victim"], "token": wanted["token"],
             "rank": 0, "pid": os.getpid()}
    worst = {"type": "reported", "kind": "validation", "step": 2, "time_ms": 1,
             "values": {"loss": -99}}
    channel.sendall(json.dumps(hello).encode() + b"\\n" + json.dumps(worst).encode() + b"\\n")
    return "welcome" if channel.recv(1) else "refused"

attempt("tokens", tokens)
attempt("report", report)
for name in ("agent_pid", "victim_pid"):
    attempt(f"kill {name}", lambda: os.kill(wanted[name], 0) or "may")
    if wanted["trace"]:  # where it may, the process stands still afterwards
        attempt(f"trace {name}", lambda: trace(wanted[name]))
for path in wanted["files"]:
    attempt(path, lambda: len(open(path, "rb").read()))
attempt("write", lambda: open(wanted["files"][0], "w") and "written")
attempt("own", lambda: open("../" + os.environ["RUNG_TRIAL"] + "/train.py").read()[:0])
attempt("umount", lambda: ctypes.CDLL(None).umount2(wanted["folder"].encode(), 2))
print(json.dumps(found))
"""


def refused_here() -> bool:
    """Whether this kernel refuses namespaces to this user; asked as the agent asks."""
    return bool(_problem_with_namespaces())


async def _joined(rig: Rig) -> str:
    return (await rig.until(AgentJoined))[0].isolation


async def _attack(rig: Rig, tmp_path: Path, *, trace: bool) -> tuple[dict[str, Any], str]:
    """Let one trial attack another and the agent; return what it got, and the victim's id."""
    token, ledger = tmp_path / "data" / "token", tmp_path / "data" / "ledger.db"
    token.write_text("the owner's")
    ledger.write_text("all of it")
    foreign = rig.folder / "objects" / "checkpoints" / "exp00002" / "exp00002.0.1.5" / "model"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("weights")
    victim = await rig.grant("X=1 python3 train.py", code=rig.code(train=VICTIM))
    await rig.until_printed("ready")
    trial_session = rig.agent._runs[victim].trial_session
    (pid,) = rig.agent._fork_servers._mains.values()
    work = rig.folder / "agent" / "work" / victim.rpartition(".")[0]
    files = [
        str(token),
        str(ledger),
        str(rig.folder / "agent" / "spool.db"),
        str(work / "secret"),
        str(foreign),
        f"/dev/shm/rung-test-{os.getpid()}",  # noqa: S108 - the test's own
    ]
    wanted = {
        "victim": victim,
        "token": trial_session.token,
        "agent_pid": os.getpid(),
        "victim_pid": pid,
        "files": files,
        "trace": trace,
        "folder": str(rig.folder / "agent"),
    }
    ended = await rig.run_script(
        ATTACK, entrypoint=["python3", "train.py", json.dumps(wanted)], slots=[1]
    )
    assert ended.exit.outcome == "finished", ended.lines
    found = json.loads(ended.printed()[-1])
    assert alive(pid)
    return found, victim


async def test_a_trial_cannot_act_as_another_or_as_the_owner(rig: Rig, tmp_path: Path) -> None:
    """It sees no process, file or shared memory of theirs, and cannot report in their name."""
    (tmp_path / "data").mkdir()
    rig.start(isolation="auto", hide=(tmp_path / "data",))
    if refused_here():
        assert (await _joined(rig)).startswith("none: the kernel refuses namespaces")
        return
    assert await _joined(rig) == "namespaces"
    found, victim = await _attack(rig, tmp_path, trace=True)
    assert found.pop("own") == ""
    assert found.pop("report") == "refused"
    assert found.pop("tokens") == 0
    assert found.pop("umount") == -1
    assert found.pop("write") in {"OSError", "FileNotFoundError", "PermissionError"}
    assert set(found.values()) == {"ProcessLookupError", "FileNotFoundError"}, found
    await rig.signal(victim, "kill")
    rows = (await rig.end_of(victim)).rows
    assert rows == [("validation", 1, {"loss": 0.5})]


async def test_without_isolation_a_stolen_token_is_of_no_use(rig: Rig, tmp_path: Path) -> None:
    """The agent asks the kernel which process speaks, and says that nothing else protects."""
    (tmp_path / "data").mkdir()
    rig.start(isolation="off")
    assert await _joined(rig) == "none: switched off"
    found, victim = await _attack(rig, tmp_path, trace=False)
    assert found["tokens"] >= 1
    assert found["report"] == "refused"
    await rig.signal(victim, "kill")
    assert (await rig.end_of(victim)).rows == [("validation", 1, {"loss": 0.5})]
    os.unlink(f"/dev/shm/rung-test-{os.getpid()}")  # noqa: PTH108, S108 - as above


async def test_a_link_in_the_place_of_a_checkpoint_shows_nothing(rig: Rig, tmp_path: Path) -> None:
    """A run sees the checkpoints that it starts from, and not where a link there leads."""
    rig.start(isolation="auto")
    if refused_here():
        assert (await _joined(rig)).startswith("none: the kernel refuses namespaces")
        return
    assert await _joined(rig) == "namespaces"
    secret = rig.folder / "agent" / "secret"
    secret.mkdir()
    others = rig.folder / "objects" / "checkpoints" / "exp00002"
    (others / "exp00002.0.1.5").mkdir(parents=True)
    (others / "exp00002.0.1.5" / "model").write_text("weights")
    (others / "exp00002.1.1.5").symlink_to(secret)
    script = (
        "import os, sys\n"
        "for path in sys.argv[1:]:\n"
        "    print(sorted(os.listdir(path)) if os.path.isdir(path) else 'nothing')\n"
    )
    paths = [str(others / "exp00002.0.1.5"), str(others / "exp00002.1.1.5"), str(secret)]
    ended = await rig.run_script(
        script,
        restore=["exp00002.0.1.5", "exp00002.1.1.5"],
        entrypoint=["python3", "train.py", *paths],
    )
    assert ended.exit.outcome == "finished", ended.lines
    assert ended.printed() == ["['model']", "nothing", "nothing"]


@pytest.mark.parametrize("isolation", ["auto", "off"])
async def test_a_run_writes_in_its_area_and_reads_in_others(rig: Rig, isolation: str) -> None:
    """In a folder store; of others it sees the checkpoint alone that it starts from."""
    rig.start(isolation=isolation)
    confined = await _joined(rig) == "namespaces"
    store = FolderStore(rig.folder / "objects")
    given = stored_elsewhere(store.area("speech"), rig.folder / "files")
    areas = {"exp00001": "teams/vision", "exp00002": "speech"}
    see = "import glob\nprint(glob.glob('{objects}/**/*.5', recursive=True))\n"
    script = see.format(objects=store.root) + RESTORE + STORE
    ended = await rig.run_script(script, restore=[given], areas=areas)
    assert ended.exit.outcome == "finished", ended.lines
    seen, *printed = ended.printed()
    assert printed[:2] == [f"latest {given}", "5 more"]
    (told,) = ended.of(CheckpointStored)
    own = store.area("teams/vision")
    assert read_manifest(own, "exp00001", told.checkpoint_id).digest == told.digest
    assert store.list("checkpoints/") == []
    theirs = store.root / "areas" / "speech" / "checkpoints" / "exp00002" / given
    assert not confined or seen == f"[{str(theirs)!r}]"
    first = (await rig.run_script(STORE, areas=areas)).of(CheckpointStored)[0].checkpoint_id
    again = await rig.run_script(RESTORE, restore=[first], areas=areas)
    assert again.printed()[0] == f"latest {first}"
    await eventually(lambda: not list((rig.folder / "agent").glob("staged-areas/exp*")))
    assert not list(own.root.glob("checkpoints/*/.incoming/exp*"))


async def test_a_link_in_the_place_of_data_shows_nothing_that_is_hidden(rig: Rig) -> None:
    """One run replaces a folder with data by a link; the next one sees nothing behind it."""
    rig.start(isolation="auto")
    if refused_here():
        return
    await _joined(rig)
    secret = rig.folder / "agent" / "secret"
    secret.mkdir()
    data = rig.folder / "shared"
    data.mkdir()
    attack = f"import os\nos.rmdir({str(data)!r})\nos.symlink({str(secret)!r}, {str(data)!r})\n"
    assert (await rig.run_script(attack)).exit.outcome == "finished"
    ended = await rig.run_script(
        f"import os\nprint(os.path.isdir({str(data)!r}))\n",
        data={"sources": {"train": str(data)}},
    )
    assert ended.printed() == ["False"]
    own = rig.folder / "agent" / "own"  # named as it is, it is shown
    own.mkdir()
    ended = await rig.run_script(
        f"import os\nprint(os.listdir({str(own)!r}))\n", data={"sources": {"train": str(own)}}
    )
    assert ended.printed() == ["[]"]


def test_a_run_is_shown_nothing_through_a_link(tmp_path: Path) -> None:
    """What takes the place of a folder of its own after that was looked at is refused."""
    hidden = tmp_path / "hidden"
    (hidden / "own" / "inner").mkdir(parents=True)
    (hidden / "secret").mkdir()
    (hidden / "own" / "link").symlink_to(hidden / "secret")
    (hidden / "way").symlink_to(hidden / "own")
    os.close(namespaces._open_below(str(hidden / "own" / "inner"), ["/other", str(hidden)]))
    os.close(namespaces._open_below(str(hidden), [str(hidden)]))
    for name in ("own/link", "way/inner", "own/missing"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory|No such file"):
            namespaces._open_below(str(hidden / name), [str(hidden)])


async def test_a_run_lives_and_dies_in_its_namespaces_as_outside(rig: Rig) -> None:
    """It is no first process; its daemons end with it; its ranks share memory and processes."""
    rig.start(isolation="auto")
    if refused_here():
        assert (await _joined(rig)).startswith("none: the kernel refuses namespaces")
        return
    mark = f"rung-isolation-test-{os.getpid()}"
    script = (
        "import json, os, subprocess, sys, time\n"
        "from rung import core\n"
        "assert os.getpid() != 1\n"
        "with core.init() as ctx:\n"
        "    ranks, rank = ctx.distributed, ctx.distributed.rank\n"
        "    pids = ranks.allgather(os.getpid())\n"
        "    [os.kill(pid, 0) for pid in pids]\n"
        "    if rank == 0:\n"
        "        open('/dev/shm/all', 'w').write('ours')\n"
        "    ranks.barrier()\n"
        "    print(open('/dev/shm/all').read())\n"
        "    with ctx.checkpoint.store_path(steps_completed=3) as (path, _):\n"
        "        (path / 'model').write_text('weights')\n"
        "    sleep = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)',"
        f" '{mark}']\n"
        "    daemon = subprocess.Popen(sleep, stdout=subprocess.PIPE, start_new_session=True)\n"
        "    daemon.stdout.readline()\n"
    )
    ended = await rig.run_script(script, slots=[0, 1])
    assert ended.exit.outcome == "finished", ended.lines
    assert ended.printed() == ["ours", "ours"]
    assert not _with_argument(mark)
    work = rig.folder / "agent" / "work"
    marks = rig.folder / "objects" / "checkpoints" / EXPERIMENT / ".incoming"
    await eventually(lambda: not list(work.iterdir()) and not marks.exists())
    again = await rig.run_script(
        "from rung import core\n"
        "with core.init() as ctx,"
        " ctx.checkpoint.restore_path(ctx.checkpoint.download_latest()) as path:\n"
        "    print((path / 'model').read_text())\n",
        restore=["exp00001.0.1.3"],
    )
    assert again.printed() == ["weights"]


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("raise SystemExit(7)", 7, None),
        ("import os; os.kill(os.getpid(), 9)", None, 9),
        ("import os; os.abort()", None, 6),
        ("import os, signal; os.kill(1, signal.SIGKILL); raise SystemExit(3)", 3, None),
    ],
)
async def test_how_it_ended(rig: Rig, script: str, code: int | None, number: int | None) -> None:
    """Exit codes and signals are those of the script; it cannot end what is above it."""
    rig.start(isolation="auto")
    ended = await rig.run_script(script)
    if refused_here():
        return
    assert (ended.exit.exit_code, ended.exit.signal) == (code, number)


def test_namespaces_are_not_made_beside_other_threads() -> None:
    """A process with threads is refused: its copy could wait for ever for what they had locked."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(OSError, match=r"has \d+ threads instead of one"):
            namespaces.probe()
    finally:
        over.set()
        thread.join()


async def test_grace_stacks_and_a_warm_parent_that_dies(rig: Rig) -> None:
    """Signals arrive, a process that hangs shows its stacks, and none outlives its fork server."""
    rig.start(isolation="auto")
    script = (
        "import time\n"
        "from rung import core\n"
        "def stuck():\n    while True: time.sleep(60)\n"
        "with core.init():\n    stuck()\n"
    )
    hung = await rig.end_of(await rig.grant(code=rig.code(train=script), hang_timeout=3.0))
    assert hung.exit.outcome == "failed"
    assert any("stuck" in text for text in hung.printed("stderr"))
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    asked = await rig.grant(code=rig.code(train=script))
    await rig.until_printed("ready")
    await rig.signal(asked, "preempt")
    left = await rig.end_of(asked)
    assert left.exit.outcome == "preempted"
    mark = f"rung-isolation-orphan-{os.getpid()}"
    await rig.grant(
        ["python3", "train.py", mark],
        code=rig.code(
            train="import os, subprocess, sys\n"
            "subprocess.run(['sleep', '600'], env={**os.environ, 'M': sys.argv[1]})"
        ),
    )
    await eventually(lambda: bool(_with_variable(f"M={mark}")))
    assert rig.agent._fork_servers.pid is not None
    os.kill(rig.agent._fork_servers.pid, 9)
    await rig.until(AgentJoined, count=2)
    assert not _with_variable(f"M={mark}")


async def test_a_data_folder_behind_a_link(tmp_path: Path) -> None:
    """What is hidden and what is shown is the same, by whatever path the folders are reached."""
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    rig = Rig(tmp_path / "linked")
    rig.start(isolation="auto")
    try:
        ended = await rig.run_script(
            "import os\n"
            "from rung import core\n"
            "with core.init() as ctx:\n"
            "    with ctx.checkpoint.store_path(steps_completed=3) as (path, _):\n"
            "        (path / 'model').write_text('weights')\n"
            "print(os.path.exists('../../spool.db'))\n"
        )
        assert ended.exit.outcome == "finished", ended.lines
        assert ended.printed() == [str(refused_here())]
    finally:
        await rig.close()


async def test_a_cluster_is_never_without(tmp_path: Path, monkeypatch: Any) -> None:
    """An agent that may neither change users nor make namespaces says so, and what would help."""
    monkeypatch.setattr("rung.agent.isolation.isolation._problem_with_users", lambda *_: "may not")
    monkeypatch.setattr(
        "rung.agent.isolation.isolation._problem_with_namespaces", lambda: "refused"
    )
    chosen = {"folder": tmp_path, "users": USERS, "hidden": [tmp_path]}
    with pytest.raises(IsolationRefused, match=r"SETGID and SETUID, or set --isolation off"):
        isolation_of("auto", cluster=True, **chosen)  # type: ignore[arg-type]
    found = isolation_of("auto", cluster=False, **chosen)  # type: ignore[arg-type]
    assert str(found) == "none: the kernel refuses namespaces: refused"
    with pytest.raises(IsolationRefused, match="--isolation namespaces does not work here"):
        isolation_of("namespaces", cluster=False, **chosen)  # type: ignore[arg-type]
    off = isolation_of("off", cluster=True, **chosen)  # type: ignore[arg-type]
    assert str(off) == "none: switched off"


@pytest.mark.parametrize("text", ["", "60000", "0-5", "9-8", "a-b", "1-99999999999"])
def test_user_ids_that_are_none(text: str) -> None:
    """What is no range of user ids is refused by name."""
    with pytest.raises(ValueError, match="trial_uids"):
        UserIds.parse(text)


def test_groups_are_named_or_numbered() -> None:
    """Each is named once; one that is not there is refused by name."""
    root = grp.getgrgid(0).gr_name
    assert groups_of("") == ()
    assert groups_of(f"61234, {root},61234") == (61234, 0)
    with pytest.raises(ValueError, match="no group 'nobodys-group'"):
        groups_of("61234,nobodys-group")


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (0, "root's group"),
        (60500, "one trial to the others"),
        (2**32 - 1, "not a valid group id"),
        (1234, "the agent's own group"),
    ],
)
def test_groups_that_no_trial_gets(
    group: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither root's, nor the agent's, nor another trial's."""
    monkeypatch.setattr(os, "getegid", lambda: 1234)
    with pytest.raises(ValueError, match=why):
        Settings(folder=tmp_path, objects_url="s3://bucket", trial_groups=(61234, group))


def test_user_ids_are_used_in_turn() -> None:
    """Runs at one time have different ones; one that was freed comes last; too few is an error."""
    isolation = Isolation("users", users=UserIds(7, 9))
    assert [isolation.user_of(name) for name in "aabc"] == [7, 7, 8, 9]
    with pytest.raises(OSError, match="all user ids of 7-9 are in use"):
        isolation.user_of("d")
    isolation.release("b")
    assert isolation.user_of("d") == 8


@pytest.mark.e2e
def test_as_a_user_without_rights() -> None:
    """The same holds where the agent is an ordinary user."""
    if os.geteuid() != 0:
        return  # all of the above has been that
    run_tests(Path(__file__))


def _with_argument(mark: str) -> list[int]:
    return _processes("cmdline", mark)


def _with_variable(mark: str) -> list[int]:
    return _processes("environ", mark)


def _processes(name: str, mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) in {os.getpid(), os.getppid()}:
            continue
        try:
            if mark.encode() in (folder / name).read_bytes() and alive(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
