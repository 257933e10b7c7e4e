"""Checkpoints through the Core API: stored whole, restored verified, damaged ones skipped."""

from pathlib import Path

import pytest

from core.conftest import Managed
from rung import core
from rung.core.ipc.protocol import Damaged, Restored, Stored
from rung.storage import ObjectDamaged, ObjectMissing, ObjectStore, open_store, read_manifest
from support.agent_end import AgentEnd


def store_at(ctx: core.Context, steps: int) -> str:
    """Store a checkpoint of one file that names its step."""
    with ctx.checkpoint.store_path(steps_completed=steps) as (path, checkpoint_id):
        (path / "state").write_text(str(steps))
    return checkpoint_id


def objects(agent: AgentEnd) -> ObjectStore:
    """Return the store that the agent told the run to use."""
    return open_store(agent.objects_url)


def damage(agent: AgentEnd, checkpoint_id: str) -> None:
    """Flip a bit of a checkpoint's file."""
    name = f"checkpoints/exp00000/{checkpoint_id}/state"
    data = objects(agent).read(name)
    objects(agent).put_bytes(name, bytes([data[0] ^ 1]) + data[1:])


def three_runs(managed: Managed) -> tuple[AgentEnd, list[str]]:
    """Store three checkpoints in a first run; return their ids, newest first."""
    agent, ctx = managed()
    found = [store_at(ctx, steps) for steps in (30, 20, 10)]
    ctx.close()
    agent.wait_for_end()
    return agent, found


def go_on(agent: AgentEnd, monkeypatch: pytest.MonkeyPatch, restore: list[str]) -> core.Context:
    """Begin the trial's second run with an agent that was there before."""
    agent.messages.clear()
    agent.spec = type(agent.spec)(
        **{name: getattr(agent.spec, name) for name in agent.spec.__struct_fields__}
        | {"run": 2, "restore": restore}
    )
    for name, value in agent.environment.items():
        monkeypatch.setenv(name, value)
    return core.init()


def test_a_checkpoint_is_stored_and_told(managed: Managed) -> None:
    """The agent hears of it once it is whole, with the digest that its manifest has."""
    agent, ctx = managed(config={"data": {"url": "x"}})
    with ctx.checkpoint.store_path({"note": 1}, steps_completed=7) as (path, checkpoint_id):
        (path / "state").write_text("seven")
        (path / "sub").mkdir()
        (path / "sub" / "more").write_text("more")
    ctx.close()
    agent.wait_for_end()
    stored = read_manifest(objects(agent), "exp00000", checkpoint_id)
    assert agent.messages == [Stored(checkpoint_id, 7, 9, 2, stored.digest)]
    manifest = stored.manifest
    assert checkpoint_id == "exp00000.3.1.7"
    assert manifest.metadata == {"note": 1, "steps_completed": 7}
    assert manifest.provenance.trial_id == "exp00000.3"
    assert manifest.provenance.data is not None
    assert manifest.provenance.environment["packages"]["torch"]


def test_two_checkpoints_of_one_step_have_two_names(managed: Managed) -> None:
    """Neither overwrites the other."""
    _, ctx = managed()
    assert store_at(ctx, 1) != store_at(ctx, 1)


def test_metadata_may_hold_the_step(managed: Managed) -> None:
    """As in Determined, `steps_completed` may come among the metadata."""
    _agent, ctx = managed()
    with ctx.checkpoint.store_path({"steps_completed": 5}) as (_, checkpoint_id):
        pass
    assert ctx.checkpoint.get_metadata(checkpoint_id) == {"steps_completed": 5}


def test_a_block_that_raises_stores_nothing(managed: Managed) -> None:
    """Half-written files never become a checkpoint."""
    agent, ctx = managed()

    def fail() -> None:
        with ctx.checkpoint.store_path(steps_completed=1) as (path, _):
            (path / "state").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    ctx.close()
    agent.wait_for_end()
    assert agent.messages == []
    assert objects(agent).list("") == []


def test_a_first_run_starts_from_scratch(managed: Managed) -> None:
    """Without candidates there is nothing to restore, and nothing is reported."""
    agent, ctx = managed()
    assert ctx.checkpoint.download_latest() is None
    ctx.close()
    agent.wait_for_end()
    assert agent.messages == []


def test_the_newest_checkpoint_is_restored_and_told(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on from the first candidate, and says so when it has loaded it, once."""
    agent, stored = three_runs(managed)
    with go_on(agent, monkeypatch, stored) as ctx:
        latest = ctx.checkpoint.download_latest()
        assert latest == stored[0]
        assert agent.of(Restored) == []
        for _ in range(2):
            with ctx.checkpoint.restore_path(latest) as path:
                assert (path / "state").read_text() == "30"
    agent.wait_for_end(2)
    assert agent.messages == [Restored(stored[0], 30)]


def test_a_downloaded_checkpoint_is_on_the_disk_until_it_is_restored(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run holds one copy until it has restored it, and none while it trains."""
    agent, stored = three_runs(managed)
    agent.staged = True
    with go_on(agent, monkeypatch, stored) as ctx:

        def copies() -> int:
            return len(list(ctx.checkpoint._reader._scratch.rglob("state")))

        latest = ctx.checkpoint.download_latest()
        assert latest is not None
        assert copies() == 1
        with ctx.checkpoint.restore_path(latest) as path:
            assert (path / "state").read_text() == "30"
            assert copies() == 1
        assert copies() == 0
        for _ in range(2):
            with ctx.checkpoint.restore_files(latest) as files:
                assert files["state"].read_text() == "30"
            assert copies() == 0
        assert ctx.checkpoint.download_latest() == latest
    agent.wait_for_end(2)
    assert agent.messages == [Restored(stored[0], 30)]


def test_damaged_and_missing_checkpoints_are_told_and_skipped(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate that is not whole is reported with the reason; the next one is taken."""
    agent, stored = three_runs(managed)
    damage(agent, stored[0])
    objects(agent).delete(f"checkpoints/exp00000/{stored[1]}/manifest.json")
    with go_on(agent, monkeypatch, stored) as ctx:
        latest = ctx.checkpoint.download_latest()
        assert latest == stored[2]
        with ctx.checkpoint.restore_path(latest) as path:
            assert (path / "state").read_text() == "10"
    agent.wait_for_end(2)
    first, second, third = agent.messages
    assert isinstance(first, Damaged)
    assert isinstance(second, Damaged)
    assert (first.checkpoint_id, second.checkpoint_id) == (stored[0], stored[1])
    assert "state has the digest" in first.reason
    assert third == Restored(stored[2], 10)


def test_no_whole_checkpoint_means_from_scratch(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When every candidate is damaged, training starts anew."""
    agent, stored = three_runs(managed)
    for checkpoint_id in stored:
        damage(agent, checkpoint_id)
    with go_on(agent, monkeypatch, stored) as ctx:
        assert ctx.checkpoint.download_latest() is None
    agent.wait_for_end(2)
    assert len(agent.of(Damaged)) == 3


def test_a_start_from_another_experiment_is_never_from_scratch(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning without the weights that it is about is refused, with what to change."""
    agent, stored = three_runs(managed)
    damage(agent, stored[0])
    ctx = go_on(agent, monkeypatch, [stored[0], "other000.0.1.5"])
    with ctx, pytest.raises(ObjectDamaged, match=r"other000\.0\.1\.5.*source_checkpoint_uuid"):
        _ = ctx.checkpoint.download_latest()
    agent.wait_for_end(2)
    assert [item.checkpoint_id for item in agent.of(Damaged)] == [stored[0], "other000.0.1.5"]


def test_any_checkpoint_can_be_read_but_is_not_gone_on_from(managed: Managed) -> None:
    """Reading another checkpoint verifies it too, and reports nothing."""
    agent, ctx = managed()
    checkpoint_id = store_at(ctx, 4)
    with ctx.checkpoint.restore_path(checkpoint_id) as path:
        assert (path / "state").read_text() == "4"
    damage(agent, checkpoint_id)
    with pytest.raises(ObjectDamaged), ctx.checkpoint.restore_path(checkpoint_id):
        pass
    with pytest.raises(ObjectMissing), ctx.checkpoint.restore_path("exp00000.3.1.99"):
        pass
    ctx.close()
    agent.wait_for_end()
    assert agent.of(Restored) == []


def test_what_a_killed_run_left_half_stored_is_swept(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run of the trial deletes files without a manifest, its neighbours' not."""
    agent, stored = three_runs(managed)
    store = objects(agent)
    for name in ("exp00000.3.1.40/half", "exp00000.33.1.40/half"):
        store.put_bytes(f"checkpoints/exp00000/{name}", b"half")
    with go_on(agent, monkeypatch, stored) as ctx:
        assert ctx.checkpoint.download_latest() == stored[0]
    names = {info.name.split("/")[2] for info in store.list("checkpoints/")}
    assert names == {*stored, "exp00000.33.1.40"}


def test_nothing_is_left_in_the_working_folder(managed: Managed) -> None:
    """Scratch folders go with the context."""
    _, ctx = managed()
    store_at(ctx, 1)
    ctx.close()
    assert list(Path.cwd().glob(".rung-*")) == []


def test_the_old_property_says_what_to_write(managed: Managed) -> None:
    """`checkpoint.latest` gives what `download_latest` does, and warns."""
    _, ctx = managed()
    with pytest.warns(DeprecationWarning, match=r"write checkpoint\.download_latest\(\)"):
        assert ctx.checkpoint.latest is None
