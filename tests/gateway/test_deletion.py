"""Deleting experiments and checkpoints, and changing what is kept."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, archive, patient, until
from rung.checkpoint_gc.service import components
from rung.events import Payload, topic
from rung.events.allocation import AllocationDropped
from rung.events.checkpoint import (
    CheckpointDeleted,
    CheckpointDeletionRequested,
    CheckpointPinned,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.experiment import (
    DeletionRequested,
    ExperimentDeleted,
    ExperimentRetired,
    RetentionChanged,
)
from rung.events.metric import LogsDeleted, MetricsDeleted
from rung.events.trial import MetricValue, RunRequested, TrialClosed, TrialValidated
from rung.runtime.service import serve
from support.gateway.client import Answer, Client
from support.gateway.scenario import EXPERIMENT, History, play, stored, submitted

TRIAL = f"{EXPERIMENT}.0"


@contextlib.asynccontextmanager
async def collecting(world: World) -> AsyncIterator[None]:
    """Run checkpoint-gc."""
    task = asyncio.create_task(serve(world.ledger, components(world.store)))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _put(world: World, *names: str) -> None:
    for name in names:
        for file in ("manifest.json", "model.pt"):
            world.store.put_bytes(f"checkpoints/{EXPERIMENT}/{name}/{file}", b"x")


def _left(world: World) -> list[str]:
    return sorted({info.name.split("/")[2] for info in world.store.list("checkpoints/")})


async def _ended(world: World, seed: int = 1) -> list[str]:
    """Play a search to its end; return the checkpoints that it stored."""
    await world.play(play(seed))
    names = [it.checkpoint_id for it in await _written(world, CheckpointStored)]
    _put(world, *names)
    return names


async def _live(world: World) -> None:
    """A search with one trial that trains, and three checkpoints of it."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    await world.play(history)
    for number in (1, 2, 3):
        await world.write(
            TrialValidated(
                experiment_id=EXPERIMENT,
                trial_id=TRIAL,
                run=1,
                steps_completed=number * 10,
                metrics={"error": float(number), "epochs": float(number)},
            ),
            stored(TRIAL, 1, number * 10, number),
        )
    _put(world, "c1", "c2", "c3")


async def _delete(client: Client, path: str, **query: str) -> Answer:
    return await client.call("POST", f"{path}/delete", params=query)


async def _written(world: World, kind: type[Payload]) -> Sequence[Any]:
    facts = await world.all(topic.EXPERIMENTS)
    return [it for it in facts if isinstance(it, kind)]


async def test_an_experiment_is_deleted(world: World) -> None:
    """Its objects go, its metrics and lines are marked deleted, and no list shows it."""
    names = await _ended(world)
    assert names
    async with collecting(world), world.gateway() as client:
        before = await client.get(f"/experiments/{EXPERIMENT}")
        dry = await _delete(client, f"/experiments/{EXPERIMENT}", dry_run="true")
        assert await _written(world, DeletionRequested) == []
        answer = await _delete(client, f"/experiments/{EXPERIMENT}")

        async def shown() -> str:
            return (await client.call("GET", f"/experiments/{EXPERIMENT}")).body.decode()

        await until(shown, lambda text: "problem:deleted" in text)
        listed = await client.get("/experiments")
        status = await client.get("/status")
        paths = ("", "/best", "/trials", "/checkpoints", "/logs", "/metrics?kind=a&name=b")
        answers = [await client.call("GET", f"/experiments/{EXPERIMENT}{path}") for path in paths]
        trial = await client.call("GET", f"/trials/{TRIAL}")
        checkpoint = await client.call("GET", f"/checkpoints/{names[0]}")
        again = await _delete(client, f"/experiments/{EXPERIMENT}")
        part = await client.call("GET", f"/experiments/{EXPERIMENT[:4]}")

    assert (dry.status, answer.status) == (202, 202)
    assert dry.json == {**answer.json, "dry_run": True}
    assert answer.json["checkpoint_count"] == before["checkpoint_count"] > 0
    assert answer.json["checkpoint_bytes"] == before["checkpoint_bytes"] > 0
    count = answer.json["trial_count"]
    assert _left(world) == []
    assert await _written(world, DeletionRequested) == [
        DeletionRequested(experiment_id=EXPERIMENT, trials=count)
    ]
    assert await world.all(topic.RETIREMENTS) == [
        *(it for it in await world.all(topic.RETIREMENTS) if isinstance(it, CheckpointRetired)),
        ExperimentRetired(experiment_id=EXPERIMENT, trials=count),
    ]
    assert await _written(world, ExperimentDeleted) == [
        ExperimentDeleted(experiment_id=EXPERIMENT)
    ]
    trials = {f"{EXPERIMENT}.{index}" for index in range(count)}
    for name, kind in ((topic.METRICS, MetricsDeleted), (topic.LOGS, LogsDeleted)):
        assert {it.trial_id for it in await world.all(name) if isinstance(it, kind)} == trials
    assert listed["items"] == []
    assert status["experiments"] == {}
    assert (status["checkpoint_count"], status["checkpoint_bytes"]) == (0, 0)
    assert {(it.status, it.kind) for it in (*answers, trial, again)} == {(410, "deleted")}
    assert (checkpoint.status, part.status) == (404, 404)


async def test_a_rebuilt_gateway_knows_the_same(world: World) -> None:
    """What is deleted follows from the ledger; the same key asks for the same deletion."""
    await _ended(world)
    headers = {"Idempotency-Key": "k"}
    async with collecting(world), world.gateway() as client:
        path = f"/experiments/{EXPERIMENT}/delete"
        first = await client.call("POST", path, headers=dict(headers))
        await until(lambda: _written(world, ExperimentDeleted), bool)
    async with world.gateway() as client:
        again = await client.call("POST", path, headers=dict(headers))
        other = await client.call("POST", path, headers={"Idempotency-Key": "l"})
        listed = await client.get("/experiments")

    assert (first.status, again.status, other.status) == (202, 202, 410)
    assert listed["items"] == []
    assert len(await _written(world, DeletionRequested)) == 1


async def test_what_has_not_ended_is_not_deleted(world: World) -> None:
    """The refusal says what to do first."""
    await _live(world)
    async with world.gateway() as client:
        answer = await _delete(client, f"/experiments/{EXPERIMENT}", dry_run="true")

    assert (answer.status, answer.kind) == (409, "not-ended")
    assert "cancel or kill it first" in answer.json["detail"]


async def test_what_a_trial_may_resume_from_is_refused(world: World) -> None:
    """The newest two of a live trial stay, in the gateway as in checkpoint-gc."""
    await _live(world)
    async with world.gateway() as client:
        answers = {name: await _delete(client, f"/checkpoints/{name}") for name in ("c3", "c2")}
        gone = await _delete(client, "/checkpoints/c1")

    assert {(it.status, it.kind) for it in answers.values()} == {(409, "in-use")}
    assert gone.status == 202
    assert await _written(world, CheckpointDeletionRequested) == [
        CheckpointDeletionRequested(experiment_id=EXPERIMENT, trial_id=TRIAL, checkpoint_id="c1")
    ]


async def test_a_checkpoint_is_deleted(world: World) -> None:
    """Also one of an experiment that has ended: once, and the others stay."""
    names = await _ended(world)
    async with collecting(world), world.gateway() as client:
        await until(
            lambda: client.get(f"/experiments/{EXPERIMENT}/checkpoints"),
            lambda it: all(one["state"] != "retired" for one in it["items"]),
        )
        kept = _left(world)
        headers = {"Idempotency-Key": "k"}
        path = f"/checkpoints/{kept[0]}/delete"
        first = await client.call("POST", path, headers=dict(headers))
        shown = await until(
            lambda: client.get(f"/checkpoints/{kept[0]}"), lambda it: it["state"] == "deleted"
        )
        again = await client.call("POST", path, headers=dict(headers))
        other = await client.call("POST", path)

    assert names
    assert (first.status, again.status, other.status) == (202, 202, 410)
    assert shown["reason"] == "deleted as requested"
    assert _left(world) == kept[1:]
    assert len(await _written(world, CheckpointDeletionRequested)) == 1


async def test_a_deletion_says_what_the_checkpoint_is_to_its_trial(world: World) -> None:
    """The best, none of these, or the only one that is left."""
    await world.play(play(1))
    async with world.gateway() as client:
        best = await client.get(f"/experiments/{EXPERIMENT}/best")
        assert best["checkpoint_note"] is None
        trial = (await client.get(f"/trials/{best['trial']['id']}"))["checkpoints"]
        notes = {}
        for each in [it for it in trial if it["state"] == "stored"]:
            answer = await _delete(client, f"/checkpoints/{each['id']}", dry_run="true")
            notes[each["id"]] = answer.json["note"]
        name = best["checkpoint"]["id"]
        assert notes.pop(name) == "the best one of the best trial"
        assert notes
        assert {*notes.values()} == {None}
        for other in notes:
            deleted = CheckpointDeleted(
                experiment_id=EXPERIMENT, trial_id=best["trial"]["id"], checkpoint_id=other
            )
            await world.write(deleted)
            await until(
                lambda other=other: client.get(f"/checkpoints/{other}"),  # type: ignore[misc]
                lambda it: it["state"] == "deleted",
            )
        alone = await _delete(client, f"/checkpoints/{name}", dry_run="true")
        assert alone.json["note"].startswith("the only one of the best trial: nothing can start")


async def kill(world: World, client: Client, name: str) -> None:
    """End an experiment whose runs wait for slots."""
    await client.call("POST", f"/experiments/{name}/kill")
    for it in await world.all(topic.SEARCHES):
        if isinstance(it, RunRequested) and it.experiment_id == name:
            dropped = AllocationDropped(
                pool=it.pool,
                allocation_id=it.allocation_id,
                experiment_id=name,
                trial_id=it.spec.trial_id,
                run=it.spec.run,
                reason="",
            )
            await world.write(dropped)
    await until(lambda: client.get(f"/experiments/{name}"), lambda it: it["ended_at"])


async def _started_from(world: World, client: Client, checkpoint: str) -> str:
    text = EXPERIMENT_FILE.replace("metric:", f"source_checkpoint_uuid: {checkpoint}\n  metric:")
    return str((await client.submit(text)).json["experiment_id"])


async def test_what_others_start_from(world: World) -> None:
    """While they have not ended it stays; afterwards `force` deletes it."""
    await _live(world)
    await world.write(
        TrialClosed(
            experiment_id=EXPERIMENT, trial_id=TRIAL, state="completed", reason="", restarts=0
        )
    )
    async with world.searcher(), world.gateway() as client:
        child = await _started_from(world, client, "c1")
        busy = await _delete(client, "/checkpoints/c1", force="true")
        dry = await _delete(client, "/checkpoints/c1", dry_run="true")
        await kill(world, client, child)
        refused = await _delete(client, "/checkpoints/c1")
        forced = await _delete(client, "/checkpoints/c1", force="true")

    assert (busy.status, busy.kind) == (409, "in-use")
    assert child in busy.json["detail"]
    assert [(it["experiment_id"], it["state"]) for it in dry.json["dependents"]] == [
        (child, "active")
    ]
    assert (refused.status, refused.kind) == (409, "has-dependents")
    assert forced.status == 202
    (fact,) = await _written(world, CheckpointDeletionRequested)
    assert fact.despite == [child]


async def test_a_submission_that_is_under_way_counts(world: World) -> None:
    """Its pin is on record before it is; if it never comes, `force` helps."""
    await _live(world)
    await world.write(
        CheckpointPinned(experiment_id=EXPERIMENT, checkpoint_id="c1", by="n0tyeth3")
    )
    async with world.gateway() as client:
        refused = await _delete(client, "/checkpoints/c1")
        forced = await _delete(client, "/checkpoints/c1", force="true")

    assert (refused.status, refused.kind, forced.status) == (409, "in-use", 202)
    assert "n0tyeth3" in refused.json["detail"]


async def test_a_retention_is_changed(world: World) -> None:
    """What the answer lists goes; what it does not list stays; the rest of the numbers stays."""
    await _ended(world)

    async def settled(client: Client) -> Any:
        return await until(
            lambda: client.get(f"/experiments/{EXPERIMENT}/checkpoints"),
            lambda it: all(one["state"] != "retired" for one in it["items"]),
        )

    async with collecting(world), world.gateway() as client:
        await settled(client)
        kept = _left(world)
        path = f"/experiments/{EXPERIMENT}/retention"
        body = msgspec.json.encode({"save_trial_best": 0, "save_trial_latest": 0})
        best = msgspec.json.encode(
            {"save_trial_best": 0, "save_trial_latest": 0, "save_experiment_best": 1}
        )
        dry = await client.call("POST", path, params={"dry_run": "true"}, data=body)
        done = await client.call("POST", path, data=best)
        shown = await client.get(f"/experiments/{EXPERIMENT}")
        await until(settled_names(client), lambda it: len(it) == 1)
        left = _left(world)

    assert sorted(it["id"] for it in dry.json["items"]) == kept
    assert dry.json["before"] == {
        "save_experiment_best": 0,
        "save_trial_best": 1,
        "save_trial_latest": 1,
    }
    assert (
        shown["retention"]
        == done.json["after"]
        == {
            "save_experiment_best": 1,
            "save_trial_best": 0,
            "save_trial_latest": 0,
        }
    )
    assert sorted([*left, *(it["id"] for it in done.json["items"])]) == kept
    (fact,) = await _written(world, RetentionChanged)
    assert sorted(fact.superfluous) == sorted(it["id"] for it in done.json["items"])


def settled_names(client: Client) -> Any:
    """Return what reads the checkpoints that are not deleted."""

    async def read() -> list[str]:
        items = (await client.get(f"/experiments/{EXPERIMENT}/checkpoints"))["items"]
        return [it["id"] for it in items if it["state"] != "deleted"]

    return read


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 422),
        (b'{"save_trial_best": -1}', 422),
        (b'{"save_trial_best": "1"}', 422),
        (b'{"save_trial_bets": 1}', 422),
        (b'{"save_trial_best": 1e99}', 422),
    ],
)
async def test_a_retention_that_is_none_is_refused(world: World, body: bytes, status: int) -> None:
    """The field is named; nothing is on record."""
    await _ended(world)
    async with world.gateway() as client:
        answer = await client.call("POST", f"/experiments/{EXPERIMENT}/retention", data=body)

    assert answer.status == status
    assert await _written(world, RetentionChanged) == []


@pytest.mark.parametrize("name", ["..", "%2e%2e%2f", "a%00b", "%27%20OR%201%3D1", "x" * 300])
async def test_a_hostile_id_deletes_nothing(world: World, name: str) -> None:
    """It names nothing, so it is not found."""
    names = await _ended(world)
    async with world.gateway() as client:
        for path in (f"/experiments/{name}", f"/checkpoints/{name}"):
            url = f"{client.url}/api/v1{path}/delete"
            headers = {"Authorization": "Bearer the-token-of-the-tests"}
            async with client.session.post(url, headers=headers) as response:
                assert response.status in {404, 405}

    assert _left(world) == sorted(names)


async def test_code_goes_with_the_last_experiment_that_has_it(world: World) -> None:
    """While another one has the same code, it stays; a submission brings it back until deleted."""
    world.settings = patient(sweep_every=0.05)
    code = archive(**{"train.py": b"x"})

    def there() -> list[str]:
        return [info.name for info in world.store.list("code/")]

    async def submit(client: Client) -> str:
        return str((await client.submit(EXPERIMENT_FILE, code=code)).json["experiment_id"])

    async def remove(client: Client, name: str) -> Answer:
        await kill(world, client, name)
        answer = await _delete(client, f"/experiments/{name}")

        async def shown() -> int:
            return (await client.call("GET", f"/experiments/{name}")).status

        await until(shown, (410).__eq__)
        return answer

    async with world.searcher(), collecting(world), world.gateway() as client:
        first, second = await submit(client), await submit(client)
        shared = await remove(client, first)
        [name] = there()
        alone = await remove(client, second)
        await until(_listing(world), lambda it: it == [])
        third = await submit(client)
        assert there() == [name]
        await remove(client, third)
        await until(_listing(world), lambda it: it == [])

    assert (shared.json["code_shared"], alone.json["code_shared"]) == (True, False)


def _listing(world: World) -> Any:
    async def read() -> list[str]:
        return [info.name for info in world.store.list("code/")]

    return read


async def test_best_says_what_its_checkpoint_has(world: World) -> None:
    """The one of the best value if it is left; else the best that is left, with its own value."""
    await _live(world)
    async with world.gateway() as client:
        path = f"/experiments/{EXPERIMENT}/best"
        first = await client.get(path)
        for name in ("c1", "c2"):
            await world.write(
                CheckpointDeleted(experiment_id=EXPERIMENT, trial_id=TRIAL, checkpoint_id=name)
            )
            wanted = {"c1": "c2", "c2": "c3"}[name]
            second = await until(
                lambda: client.get(path),
                lambda it, wanted=wanted: it["checkpoint"]["id"] == wanted,  # type: ignore[misc]
            )

    assert (first["value"], first["checkpoint"]["id"], first["checkpoint_value"]) == (1, "c1", 1)
    assert (second["value"], second["checkpoint"]["id"], second["checkpoint_value"]) == (
        1,
        "c3",
        3,
    )
    assert first["checkpoint_note"] is None
    assert second["checkpoint_note"] == (
        "the best that is left, of step 30, with error 3; there is none of step 10, which has"
        " the best value"
    )


async def test_a_checkpoint_of_no_validated_step_is_not_the_one_of_the_best(world: World) -> None:
    """The nearest is named, by the experiment and by the trial, and said to be that."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    await world.play(history)
    for number, value in enumerate((0.5, 0.1, 0.3), 1):
        metrics: dict[str, MetricValue] = {"error": value, "epochs": float(number)}
        report = TrialValidated(
            experiment_id=EXPERIMENT,
            trial_id=TRIAL,
            run=1,
            steps_completed=number * 100,
            metrics=metrics,
        )
        await world.write(report, stored(TRIAL, 1, number * 100 + 30, number))
    async with world.gateway() as client:
        best = await client.get(f"/experiments/{EXPERIMENT}/best")
        trial = await client.get(f"/trials/{TRIAL}")

    note = (
        "the nearest, of step 230, where error has no value; there is none of step 200, which has"
        " the best value"
    )
    assert (best["value"], best["checkpoint"]["id"], best["checkpoint_value"]) == (0.1, "c2", None)
    assert best["checkpoint_note"] == trial["best_checkpoint_note"] == note
    assert trial["best_checkpoint_id"] == "c2"
