"""Runs whose objects lie in S3: they hold no keys, and lose nothing when the store is away."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from agent.metadata import metadata_service
from agent.stored_checkpoint import RESTORE, STORE, store_at, stored_elsewhere
from rung.agent import agent
from rung.agent.objects.checkpoint_upload import CheckpointUpload, Owner
from rung.agent.objects.run_objects import RunObjects
from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.outbox_file import Change, MessagesTaken, RunSaved
from rung.agent.run.saved_run import saved_run
from rung.core.ipc.protocol import Uploaded
from rung.core.ipc.staged_folder import ANNOUNCED
from rung.events import Payload
from rung.events.allocation import AgentJoined, AgentLeft
from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.events.trial import RunSpec, TrialExited, TrialRestored
from rung.storage import FolderStore, ObjectMissing, read_manifest
from servers.seaweed import Seaweed
from support.agent_rig import SPEAK, Rig
from support.processes import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
async def rig(
    tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rig]:
    """Give a rig whose objects are in S3."""
    made = Rig(tmp_path, store=store_at(seaweed, monkeypatch))
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Rig, Seaweed]]:
    """Give a rig whose store the test may take away, with a running agent."""
    with Seaweed(tmp_path / "server") as server:
        made = Rig(tmp_path, store=store_at(server, monkeypatch))
        made.start()
        await made.until(AgentJoined)
        try:
            yield made, server
        finally:
            await made.close()


async def test_a_checkpoint_goes_by_way_of_the_agent(running: Rig) -> None:
    """It is told once it is whole in the store, before the end of its run; nothing stays here."""
    ended = await running.run_script(STORE)
    (told,) = ended.of(CheckpointStored)
    found = read_manifest(running.store, "exp00001", told.checkpoint_id)
    assert (told.digest, told.size_bytes, told.files) == (found.digest, 3_000_004, 2)
    assert told.steps_completed == 5
    kinds = [type(payload) for payload in ended.payloads]
    assert kinds.index(CheckpointStored) < kinds.index(TrialExited)
    assert ended.exit.outcome == "finished"
    await eventually(lambda: not list((running.folder / "agent" / "staged").iterdir()))


async def test_the_next_run_restores_it(running: Rig) -> None:
    """The agent brings the files; the run checks them, and reads what was kept with them."""
    first = await running.run_script(STORE)
    checkpoint_id = first.of(CheckpointStored)[0].checkpoint_id
    code = running.code(train=RESTORE)
    ended = await running.end_of(await running.grant(code=code, restore=[checkpoint_id]))
    assert ended.printed() == [
        f"latest {checkpoint_id}",
        "3000000 more",
        "{'steps_completed': 5}",
    ]
    assert len(ended.of(TrialRestored)) == 1


async def test_a_damaged_and_a_missing_one_are_skipped(running: Rig) -> None:
    """As with a folder, each is reported with the reason."""
    first = await running.run_script(STORE)
    checkpoint_id = first.of(CheckpointStored)[0].checkpoint_id
    running.store.put_bytes(f"checkpoints/exp00001/{checkpoint_id}/sub/more", b"less")
    code = running.code(train=RESTORE)
    restore = [checkpoint_id, f"{first.allocation_id}.1"]
    ended = await running.end_of(await running.grant(code=code, restore=restore))
    assert ended.printed()[-1] == "latest None"
    reasons = [damaged.reason for damaged in ended.of(CheckpointDamaged)]
    assert "sub/more has the digest" in reasons[0]
    assert "no object" in reasons[1]


async def test_a_run_has_no_keys(monkeypatch: pytest.MonkeyPatch, running: Rig) -> None:
    """Neither the platform's settings nor its credentials are in the environment of user code."""
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1")
    ended = await running.run_script(
        "import os\nhidden = ('RUNG_S3', 'AWS_WEB', 'AWS_CONTAINER', '_KEY')\n"
        "print([name for name in os.environ if any(part in name for part in hidden)])"
    )
    assert "AWS_ACCESS_KEY_ID" in os.environ
    assert ended.printed() == ["[]"]


async def test_a_run_reads_checkpoints_only(running: Rig) -> None:
    """What else lies in the store is not brought, and ids of others are not uploaded."""
    given = "exp00002.0.1.5"
    foreign = ["code/secret", "checkpoints/exp00002/exp00002.0.1.50/state"]
    own = [f"checkpoints/exp00002/{given}/state", "checkpoints/exp00001/exp00001.9.1.5/state"]
    script = SPEAK + (
        "hello()\n"
        "answers = channel.makefile()\n"
        f"for number, name in enumerate({foreign + own!r}):\n"
        "    say(type='fetch', number=number, name=name)\n"
        "    print(answers.readline(), flush=True)\n"
        "say(type='stored', checkpoint_id='exp00001.77.1.5', steps_completed=5, size_bytes=1,\n"
        "    files=1, digest='x')\n"
    )
    for name in (*foreign, *own):
        running.store.put_bytes(name, b"1")
    ended = await running.run_script(script, restore=[given])
    answers = [json.loads(text) for text in ended.printed() if text]
    assert [bool(answer["path"]) for answer in answers] == [False, False, True, True]
    assert "a run may read checkpoints of its experiment" in answers[0]["problem"]
    assert ended.of(CheckpointStored) == []
    assert any("is not one of this run's" in text for text in ended.printed("platform"))


async def test_areas_of_runs(running: Rig) -> None:
    """Each run's checkpoints go to its own area, and those of others come from theirs."""
    here = {"exp00001": "teams/vision"}
    first = await running.run_script(STORE, areas=here)
    checkpoint_id = first.of(CheckpointStored)[0].checkpoint_id
    prefix = f"checkpoints/exp00001/{checkpoint_id}/"
    area = running.store.area("teams/vision")
    assert len(area.list(prefix)) == 3
    assert running.store.list("checkpoints/") == []
    half = f"checkpoints/exp00001/{first.allocation_id}.3/state"
    area.put_bytes(half, b"half")
    running.store.put_bytes(half, b"of nobody")
    code = running.code(train=RESTORE)
    again = await running.grant(code=code, restore=[checkpoint_id], areas=here)
    assert (await running.end_of(again)).printed()[0] == f"latest {checkpoint_id}"
    await eventually(lambda: not area.list(half))
    assert running.store.read(half) == b"of nobody"
    areas = running.folder / "agent" / "staged-areas"
    await eventually(lambda: not list(areas.glob("exp*")))


async def test_a_run_starts_from_a_checkpoint_in_another_area(running: Rig) -> None:
    """It reads it where that experiment's lie, and stores its own in its own."""
    theirs, own = running.store.area("speech"), running.store.area("vision")
    given = stored_elsewhere(theirs, running.folder / "files")
    areas = {"exp00001": "vision", "exp00002": "speech"}
    code = running.code(train=RESTORE + STORE)
    ended = await running.end_of(await running.grant(code=code, restore=[given], areas=areas))
    assert ended.printed()[:2] == [f"latest {given}", "5 more"]
    (told,) = ended.of(CheckpointStored)
    assert read_manifest(own, "exp00001", told.checkpoint_id).digest == told.digest
    assert {it.name.split("/")[1] for it in theirs.list("checkpoints/")} == {"exp00002"}
    assert {it.name.split("/")[1] for it in own.list("checkpoints/")} == {"exp00001"}
    assert running.store.list("checkpoints/") == []


async def test_what_was_left_half_stored_is_swept(running: Rig) -> None:
    """Files without a manifest of an earlier run of the trial go when the next one starts."""
    first = await running.run_script(STORE)
    checkpoint_id = first.of(CheckpointStored)[0].checkpoint_id
    half = f"checkpoints/exp00001/{first.allocation_id}.3/state"
    running.store.put_bytes(half, b"half")
    code = running.code(train=RESTORE)
    await running.end_of(await running.grant(code=code, restore=[checkpoint_id]))

    def gone() -> bool:
        with contextlib.suppress(ObjectMissing):
            return not running.store.read(half)
        return True

    await eventually(gone)
    assert read_manifest(running.store, "exp00001", checkpoint_id)


async def stage_while_away(rig: Rig, server: Seaweed, area: str = "") -> str:
    """Have a run stage a checkpoint while the store is away; return its allocation."""
    go = rig.folder / "go"
    script = (
        "import os, time\nprint('ready', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    )
    areas = {"exp00001": area} if area else {}
    allocation_id = await rig.grant(code=rig.code(train=script + STORE), areas=areas)
    await rig.until_printed("ready")
    server.kill()
    go.touch()
    await rig.until_printed("staged")
    await rig.until_printed("waits for the object store")
    return allocation_id


async def test_the_end_of_a_run_waits_for_a_store_that_is_away(
    away: tuple[Rig, Seaweed],
) -> None:
    """Training is not disturbed; the run is over once its checkpoint has arrived."""
    rig, server = away
    allocation_id = await stage_while_away(rig, server)
    assert not (await rig.ended_run(allocation_id)).of(TrialExited)
    server.start()
    ended = await rig.end_of(allocation_id)
    assert ended.exit.outcome == "finished"
    assert [told.checkpoint_id for told in ended.of(CheckpointStored)] == [f"{allocation_id}.5"]
    assert read_manifest(rig.store, "exp00001", f"{allocation_id}.5")


async def test_checkpoints_do_not_pile_up_while_the_store_is_away(
    away: tuple[Rig, Seaweed],
) -> None:
    """Two may be on their way; the third waits for room, and all arrive in order."""
    rig, server = away
    more = (
        "with core.init() as ctx:\n"
        "    for step in (6, 7, 8):\n"
        "        with ctx.checkpoint.store_path(steps_completed=step) as (path, _):\n"
        "            (path / 'state').write_text(str(step))\n"
        "            print('writing', step, flush=True)\n"
        "        print('done', step, flush=True)\n"
    )
    go = rig.folder / "go"
    script = (
        "import os, time\nfrom rung import core\nprint('ready', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    )
    allocation_id = await rig.grant(code=rig.code(train=script + more))
    await rig.until_printed("ready")
    server.kill()
    go.touch()
    await rig.until_printed("writing 8")
    await rig.until_printed("waits for the object store")
    assert "done 8" not in (await rig.ended_run(allocation_id)).printed()
    server.start()
    ended = await rig.end_of(allocation_id)
    assert [told.steps_completed for told in ended.of(CheckpointStored)] == [6, 7, 8]
    assert ended.exit.outcome == "finished"


async def test_checkpoints_arrive_in_order_however_long_an_announcement_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is announced while the first still is, and uploaded behind it."""
    outbox = Outbox(tmp_path / "spool.db")
    outbox.open("a1", "host")
    checkpoint_upload = CheckpointUpload(tmp_path, FolderStore(tmp_path / "objects"), outbox)
    spec = RunSpec(
        experiment_id="exp00001",
        trial_id="exp00001.0",
        trial_index=0,
        run=1,
        hparams={},
        seed=1,
        length=1,
        time_metric="batches",
        restore=[],
        code_digest=None,
        config={},
    )
    said = list[Uploaded]()
    run_objects = RunObjects(checkpoint_upload, spec, lambda _: None, said.append, list)
    first, second = "exp00001.0.1.6", "exp00001.0.1.7"
    announced, shipped = asyncio.Event(), list[str]()

    async def announce(_owner: Owner, checkpoint_id: str, _after: int) -> None:
        if checkpoint_id == first:
            await announced.wait()
        else:
            announced.set()

    async def upload(_owner: Owner, checkpoint_id: str, *_: object) -> str:
        shipped.append(checkpoint_id)
        return ""

    monkeypatch.setattr(checkpoint_upload, "announce", announce)
    monkeypatch.setattr(checkpoint_upload, "upload", upload)
    for name in (first, second):
        run_objects.stored(name, checkpoint_upload.save)
    await run_objects.finish(None, broken=False)
    assert shipped == [first, second]
    assert said == [Uploaded(first), Uploaded(second)]
    await checkpoint_upload.close()
    await outbox.close()


async def test_a_message_is_taken_together_with_the_upload_that_it_asks_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that dies at any moment has either both on disk or neither.

    With the upload alone, the next agent would upload again what the process repeats, when the
    files are deleted already. With the number alone, it would never upload the checkpoint.
    """
    written: list[list[Change]] = []
    put = Outbox.put

    def noted(self: Outbox, *payloads: Payload, changes: Sequence[Change] = ()) -> int:
        written.append(list(changes))
        return put(self, *payloads, changes=changes)

    monkeypatch.setattr(Outbox, "put", noted)
    rig.start(unattended_s=60.0)
    ended = await rig.run_script(STORE)
    name = f"{ended.allocation_id}.5"
    assert [told.checkpoint_id for told in ended.of(CheckpointStored)] == [name]

    def uploads(change: Change) -> bool:
        if not isinstance(change, RunSaved):
            return False
        saved = saved_run(change.state)
        assert saved is not None
        return name in saved.under_way

    asked = [any(map(uploads, changes)) for changes in written]
    taken = [any(isinstance(it, MessagesTaken) for it in changes) for changes in written]
    assert asked.index(True) == taken.index(True)


async def test_a_run_that_is_killed_does_not_wait(away: tuple[Rig, Seaweed]) -> None:
    """Its slots are free at once; what it staged is uploaded, and told, afterwards."""
    rig, server = away
    allocation_id = await stage_while_away(rig, server)
    await rig.signal(allocation_id, "kill")
    ended = await rig.end_of(allocation_id)
    assert ended.of(CheckpointStored) == []
    server.start()
    (told,) = await rig.until(CheckpointStored)
    assert ended.exit.under_way == [told.checkpoint_id]
    assert read_manifest(rig.store, "exp00001", told.checkpoint_id).digest == told.digest
    await eventually(lambda: not list((rig.folder / "agent" / "staged").iterdir()))


async def test_an_agent_that_died_carries_on_in_its_next_life(
    away: tuple[Rig, Seaweed],
) -> None:
    """What was staged is told before the agent joins anew, so that it still counts."""
    rig, server = away
    allocation_id = await stage_while_away(rig, server)
    half = rig.folder / "agent" / "staged" / allocation_id / "checkpoints" / "exp00001" / "half"
    half.mkdir()
    kept = rig.folder / "agent" / "staged" / allocation_id / "kept"
    kept.mkdir()
    (kept / "table").write_text("of the checkpoint before")
    await rig.abandon()
    assert len(list(half.parent.iterdir())) == 2
    server.start()
    rig.start()
    await rig.until(AgentJoined, count=2)
    events = [event.data for event in await rig.events()]
    (told,) = [data for data in events if isinstance(data, CheckpointStored)]
    joined = [data for data in events if isinstance(data, AgentJoined)]
    assert events.index(told) < events.index(joined[1])
    assert read_manifest(rig.store, "exp00001", f"{allocation_id}.5").digest == told.digest
    await eventually(lambda: not half.parent.exists())
    assert not kept.exists()


async def test_an_agent_that_died_finds_the_area_again(away: tuple[Rig, Seaweed]) -> None:
    """Beside what was staged, where no run can write; the note goes with the last of it."""
    rig, server = away
    allocation_id = await stage_while_away(rig, server, "teams/vision")
    note = rig.folder / "agent" / "staged-areas" / allocation_id
    assert note.read_text() == "teams/vision"
    await rig.abandon()
    server.start()
    rig.start()
    await rig.until(AgentJoined, count=2)
    area = rig.store.area("teams/vision")
    assert read_manifest(area, "exp00001", f"{allocation_id}.5")
    assert rig.store.list("checkpoints/") == []
    await rig.stop()
    rig.start()
    await rig.until(AgentJoined, count=3)
    assert not note.exists()


async def test_a_checkpoint_does_not_overtake_the_reports_before_it(
    away: tuple[Rig, Seaweed],
) -> None:
    """One that the dead agent had not yet noted as announced is dropped: its steps come again."""
    rig, server = away
    allocation_id = await stage_while_away(rig, server)
    staged = rig.folder / "agent" / "staged" / allocation_id
    await rig.abandon()
    (announced,) = (staged / "announced").iterdir()
    announced.unlink()
    server.start()
    rig.start()
    await rig.until(AgentJoined, count=2)
    assert not staged.exists()
    assert [e for e in await rig.events() if isinstance(e.data, CheckpointStored)] == []


async def test_a_run_that_claims_what_it_did_not_stage_has_failed(running: Rig) -> None:
    """No checkpoint is told that is not there."""
    script = SPEAK + (
        "hello()\n"
        "say(type='stored', checkpoint_id=os.environ['RUNG_ALLOCATION'] + '.5',\n"
        "    steps_completed=5, size_bytes=1, files=1, digest='x')\n"
        "print(channel.makefile().readline(), flush=True)\n"
    )
    ended = await running.run_script(script)
    assert ended.of(CheckpointStored) == []
    assert ended.exit.outcome == "failed"
    assert "could not be stored: no object" in ended.exit.message
    (lost,) = ended.of(CheckpointDamaged)
    assert lost.reason.startswith("it could not be stored: no object")
    assert "could not be stored" in ended.printed()[0]


async def test_why_a_checkpoint_was_not_stored_is_written_down(tmp_path: Path) -> None:
    """For later commands of the run, which never hear of it otherwise."""
    outbox = Outbox(tmp_path / "spool.db")
    outbox.open("a1", "host")
    checkpoint_upload = CheckpointUpload(tmp_path, FolderStore(tmp_path / "objects"), outbox)
    owner = Owner("exp00001", "exp00001.0", 1)
    await checkpoint_upload.announce(owner, "exp00001.0.1.5", checkpoint_upload.last_reported)
    announced = checkpoint_upload.folder_of(owner.allocation_id) / ANNOUNCED / "exp00001.0.1.5"
    assert not announced.read_text()
    problem = await checkpoint_upload.upload(owner, "exp00001.0.1.5", lambda _: None)
    assert "could not be stored: no object" in problem
    assert announced.read_text() == problem
    await checkpoint_upload.close()
    await outbox.close()


async def test_a_notice_leaves_time_for_what_is_on_its_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine is taken away, the agent says goodbye once the checkpoint has arrived."""
    monkeypatch.setattr(agent, "ASKED_BY", 0.001)
    wait = "    while not ctx.preempt.should_preempt(): time.sleep(0.01)\n"
    script = "import time\n" + STORE.replace(" as ctx:\n", f" as ctx:\n    print('here')\n{wait}")
    with metadata_service() as known:
        rig.start(spot="gcp", metadata_url=known.url, spot_every_s=0.05, leave_s=0.0)
        await rig.grant(code=rig.code(train=script))
        await rig.until_printed("here")
        known.take_away(30)
        await rig.until(AgentLeft)
        await rig.stop()
    kinds = [type(event.data) for event in await rig.events()]
    assert kinds.index(CheckpointStored) < kinds.index(AgentLeft)
