"""Starting from another experiment's checkpoint."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, archive, patient, until
from rung.checkpoint_gc.processor import CheckpointGC
from rung.events import Event
from rung.events.checkpoint import (
    CheckpointDeleted,
    CheckpointDeletionRequested,
    CheckpointPinned,
    CheckpointRetired,
)
from rung.events.experiment import ExperimentSubmitted
from rung.gateway.context import Context
from rung.gateway.requests import pins, writes
from rung.runtime import host
from support.gateway.scenario import EXPERIMENT, History, config, stored, submitted


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


async def _store_three(world: World) -> None:
    """Have three checkpoints of a trial, and no answers to pins but those of checkpoint-gc."""
    kept = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 9}
    first = ExperimentSubmitted(
        experiment_id=EXPERIMENT,
        config={**config(), "checkpoint_storage": kept},
        source="",
        code_digest=None,
    )
    history = History()
    history.write(first, origin="client/x")
    history.decide()
    await world.play(history)
    await world.write(*(stored(f"{EXPERIMENT}.0", 1, number, number) for number in (1, 2, 3)))
    world.answers_pins = False


@contextlib.asynccontextmanager
async def _collecting(world: World) -> AsyncIterator[None]:
    """Run checkpoint-gc."""
    task = asyncio.create_task(host(world.ledger, CheckpointGC()))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


_DELETION = CheckpointDeletionRequested(
    experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.0", checkpoint_id="c1"
)
_FROM = EXPERIMENT_FILE.replace("metric:", "source_checkpoint_uuid: {}\n  metric:")


async def _started(world: World) -> list[str]:
    """Return the checkpoints that experiments on record start from."""
    return [
        it.config["searcher"]["source_checkpoint_uuid"]
        for it in await world.all("experiments")
        if isinstance(it, ExperimentSubmitted) and it.experiment_id != EXPERIMENT
    ]


@pytest.mark.parametrize("deleted_first", [True, False])
async def test_a_pin_races_a_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch, *, deleted_first: bool
) -> None:
    """The first on record counts: the submission is refused, or the checkpoint stays."""

    async def write(context: Context, facts: Sequence[Event]) -> None:
        if deleted_first:
            await world.write(_DELETION)
        await writes.write(context, facts)
        await world.write(_DELETION)

    await _store_three(world)
    async with _collecting(world), world.gateway() as client:
        with monkeypatch.context() as patch:
            patch.setattr(pins.__name__ + ".write", write)
            answer = await client.submit(_FROM.replace("{}", "c1"))
        # Its pin is answered behind the deletion.
        assert (await client.submit(_FROM.replace("{}", "c3"))).status == 201
    decided = await world.all("retirements")
    retired = [it.checkpoint_id for it in decided if isinstance(it, CheckpointRetired)]

    if deleted_first:
        assert answer.status == 422
        (problem,) = answer.json["errors"]
        assert (problem["path"], problem["value"]) == ("searcher.source_checkpoint_uuid", "c1")
        assert "retired" in problem["message"]
        assert (retired, await _started(world)) == (["c1"], ["c3"])
    else:
        assert answer.status == 201
        assert retired == []
        assert sorted(await _started(world)) == ["c1", "c3"]


async def test_without_an_answer_nothing_is_accepted(world: World) -> None:
    """Without checkpoint-gc a submission gets 503; sent again once it runs, it is accepted."""
    await _store_three(world)
    world.settings = patient(seen_timeout=0.5)
    async with world.gateway() as client:
        answer = await client.submit(_FROM.replace("{}", "c1"), key="k")
        assert (answer.status, await _started(world)) == (503, [])
        assert "checkpoint c1" in answer.json["detail"]
        assert "checkpoint-gc" in answer.json["detail"]
        async with _collecting(world):
            again = await client.submit(_FROM.replace("{}", "c1"), key="k")
    assert (again.status, await _started(world)) == (201, ["c1"])
