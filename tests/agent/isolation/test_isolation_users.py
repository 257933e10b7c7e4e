"""Where the agent may change users, each trial is a user of its own."""

import json
import os
import tempfile
from pathlib import Path

import psutil
import pytest

from agent.isolation.test_isolation import ATTACK, VICTIM
from agent.stored_checkpoint import RESTORE, STORE, store_at
from agent.unprivileged import OPENED, run_tests
from rung.agent.isolation import namespaces
from rung.agent.isolation.isolation import as_owner_of
from rung.events.allocation import AgentJoined
from rung.events.checkpoint import CheckpointStored
from rung.events.metric import MetricsReported
from servers.seaweed import Seaweed
from support.agent_rig import Rig

pytestmark = pytest.mark.e2e


async def test_trials_are_users_apart(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One can do nothing to another or to the agent; checkpoints come and go all the same."""
    if OPENED not in os.environ:
        return
    store = store_at(seaweed, monkeypatch)
    with tempfile.TemporaryDirectory(prefix="rung-users-") as name:
        folder = Path(name)
        os.chmod(name, 0o711)  # noqa: PTH101, S103 - others pass through it
        rig = Rig(folder, store=store)
        rig.start(isolation="auto")
        try:
            joined = (await rig.until(AgentJoined))[0]
            assert joined.isolation == "user ids 60000-60999"
            victim = await rig.grant("X=1 python3 train.py", code=rig.code(train=VICTIM))
            await rig.until_printed("ready")
            (pid,) = rig.agent._fork_servers._mains.values()
            assert psutil.Process(pid).uids().real == 60000
            work = folder / "agent" / "work" / victim.rpartition(".")[0]
            wanted = {
                "victim": victim,
                "token": rig.agent._runs[victim].trial_session.token,
                "agent_pid": os.getpid(),
                "victim_pid": pid,
                "files": [
                    str(folder / "agent" / "spool.db"),
                    f"/proc/{os.getpid()}/environ",
                    str(work / "secret"),
                ],
                "trace": True,
                "folder": str(folder / "agent"),
            }
            ended = await rig.run_script(
                ATTACK, entrypoint=["python3", "train.py", json.dumps(wanted)], slots=[1]
            )
            assert ended.exit.outcome == "finished", ended.lines
            found = json.loads(ended.printed()[-1])
            assert (found.pop("own"), found.pop("report")) == ("", "refused")
            assert (found.pop("tokens"), found.pop("umount")) == (0, -1)
            assert set(found.values()) == {"PermissionError"}, found
            await rig.signal(victim, "kill")
            assert (await rig.end_of(victim)).rows == [("validation", 1, {"loss": 0.5})]
            stored = await rig.run_script(STORE)
            assert stored.exit.outcome == "finished", stored.lines
            (fact,) = stored.of(CheckpointStored)
            restored = await rig.run_script(RESTORE, restore=[fact.checkpoint_id])
            assert restored.printed()[:2] == [f"latest {fact.checkpoint_id}", "3000000 more"]
        finally:
            await rig.close()


GROUP = 61234
USES = """
import os, pathlib, time
print(os.getuid(), os.getgid(), os.getgroups(), flush=True)
print(pathlib.Path({data!r}).read_text(), flush=True)
while not pathlib.Path({go!r}).exists():
    with open("written", "wb") as file:
        file.write(bytes(1_000_000))
        os.fsync(file.fileno())
    time.sleep(0.05)
"""


async def test_trials_have_the_groups_that_are_given_and_are_measured() -> None:
    """What a group may read they may read; what they write to disk is in their metrics.

    The agent has the rights of the chart's, so it may not trace processes of other users.
    """
    if OPENED not in os.environ:
        return
    with tempfile.TemporaryDirectory(prefix="rung-users-", dir="/var/tmp") as name:
        folder = Path(name)
        os.chmod(name, 0o711)  # noqa: PTH101, S103 - others pass through it
        data = folder / "data"
        data.write_text("the group's")
        os.chown(data, 0, GROUP)
        data.chmod(0o640)
        namespaces._set_capabilities(sum(1 << number for number in (0, 1, 3, 5, 6, 7)))
        os.setgroups([4321])  # of the agent's alone
        rig = Rig(folder)
        rig.start(isolation="users", trial_groups=(GROUP,), sample_s=0.1)
        rig.agent._checkpoint_upload.staged = True  # as where objects lie in S3
        try:
            joined = (await rig.until(AgentJoined))[0]
            assert joined.isolation == f"user ids 60000-60999, groups {GROUP}"
            script = USES.format(data=str(data), go=str(folder / "go"))
            allocation = await rig.grant(code=rig.code(train=script))
            await rig.until(
                MetricsReported,
                lambda it: any(row.values.get("disk_write_bytes_per_s") for row in it.rows),
            )
            (folder / "go").touch()
            ended = await rig.end_of(allocation)
            assert ended.exit.outcome == "finished", ended.lines
            assert ended.printed() == [f"60000 60000 [{GROUP}]", "the group's"]
            given = [f"{allocation}.1"]
            again = await rig.end_of(await rig.grant(code=rig.code(train=script), restore=given))
            assert again.printed()[0] == f"60001 60001 [{GROUP}]"
            kept = folder / "agent" / "kept" / ended.allocation_id.rpartition(".")[0]
            assert (kept / "written").stat().st_uid == 60001
        finally:
            await rig.close()


def test_links_lead_no_further_than_the_rights_of_a_run(tmp_path: Path) -> None:
    """What the agent reads and writes for a run it may not read and write for itself."""
    if OPENED not in os.environ:
        return
    secret = tmp_path / "secret"
    secret.write_text("the agent's")
    secret.chmod(0o600)
    own = tmp_path / "own"
    own.mkdir()
    (own / "link").symlink_to(secret)
    os.chown(own, 60000, 60000)
    tmp_path.chmod(0o755)
    with as_owner_of(own), pytest.raises(PermissionError):
        (own / "link").read_text()
    with as_owner_of(own), pytest.raises(PermissionError):
        (own / "link").write_text("overwritten")
    assert secret.read_text() == "the agent's"


def test_on_a_machine_that_is_open_to_other_users() -> None:
    """All of it, as root, where other users reach the interpreter."""
    if os.geteuid() == 0 and OPENED not in os.environ:
        run_tests(Path(__file__), root=True)
