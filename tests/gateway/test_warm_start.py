"""Starting from another experiment's checkpoint."""

import asyncio

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, archive, until
from rung.events.checkpoint import CheckpointDeleted, CheckpointPinned, CheckpointRetired
from rung.events.experiment import ExperimentSubmitted
from support.gateway.scenario import EXPERIMENT, History, stored, submitted


async def _warm(world: World) -> None:
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    await world.play(history)
    await world.write(
        stored(f"{EXPERIMENT}.0", 1, 10, 1),
        stored(f"{EXPERIMENT}.0", 1, 20, 2),
        stored(f"{EXPERIMENT}.1", 1, 10, 3),
        CheckpointDeleted(
            experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.1", checkpoint_id="c3"
        ),
    )


@pytest.mark.parametrize(
    "field", ["source_checkpoint_uuid: c2", f"source_trial_id: {EXPERIMENT}.0"]
)
async def test_warm_start_pins_first(world: World, field: str) -> None:
    """The checkpoint that an experiment starts from is pinned before the experiment exists."""
    await _warm(world)
    async with world.gateway() as client:
        text = EXPERIMENT_FILE.replace("metric:", f"{field}\n  metric:")
        answer = await client.submit(text, key="k")
        again = await client.submit(text, key="k")
        shown = await client.get("/checkpoints/c2")
    facts = await world.all("experiments")
    (pinned,) = [fact for fact in facts if isinstance(fact, CheckpointPinned)]
    (mine,) = [
        fact
        for fact in facts
        if isinstance(fact, ExperimentSubmitted) and fact.experiment_id != EXPERIMENT
    ]

    assert answer.body == again.body
    assert pinned == CheckpointPinned(
        experiment_id=EXPERIMENT, checkpoint_id="c2", by=mine.experiment_id
    )
    assert mine.config["searcher"]["source_checkpoint_uuid"] == "c2"
    assert shown["pinned_by"] == [mine.experiment_id]


async def test_what_is_retired_during_the_upload_is_not_chosen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trial that still trains, the newest checkpoint once the code is stored counts."""
    await _warm(world)
    loop = asyncio.get_running_loop()
    async with world.gateway() as client:

        async def retire() -> None:
            about = {"experiment_id": EXPERIMENT, "trial_id": f"{EXPERIMENT}.0"}
            await world.write(CheckpointRetired(**about, checkpoint_id="c2", reason="newer ones"))
            await until(lambda: client.get("/checkpoints/c2"), lambda it: it["state"] == "retired")

        def store(*_: object) -> None:
            asyncio.run_coroutine_threadsafe(retire(), loop).result(30)

        monkeypatch.setattr("rung.gateway.routes.submission._store", store)
        text = EXPERIMENT_FILE.replace("metric:", f"source_trial_id: {EXPERIMENT}.0\n  metric:")
        assert (await client.submit(text, code=archive(a=b""))).status == 201
    facts = await world.all("experiments")
    assert [it.checkpoint_id for it in facts if isinstance(it, CheckpointPinned)] == ["c1"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("source_checkpoint_uuid: c9", "no such checkpoint"),
        ("source_checkpoint_uuid: c3", "deleted"),
        ("source_trial_id: nope", "no such trial"),
        (f"source_trial_id: {EXPERIMENT}.99", "no such trial"),
        (f"source_trial_id: {EXPERIMENT}.1", "no checkpoint left"),
    ],
)
async def test_warm_start_from_nothing(world: World, field: str, words: str) -> None:
    """A source that is not there is refused with the field's path, in a check as well."""
    await _warm(world)
    async with world.gateway() as client:
        text = EXPERIMENT_FILE.replace("metric:", f"{field}\n  metric:")
        answer = await client.submit(text)
        checked = await client.call("POST", "/experiments/validate", data=text.encode())

    assert (answer.status, checked.status) == (422, 422)
    assert answer.json["errors"][0]["path"] == f"searcher.{field.partition(':')[0]}"
    assert words in answer.json["detail"]
