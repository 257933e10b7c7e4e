"""Workspaces and projects of experiments: named at submission, changed by a move, and enforced."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from gateway.conftest import EXPERIMENT_FILE, World, until
from gateway.test_authorization import asked
from gateway.test_streams import Seen, opened
from rung.events import changes
from rung.events.allocation import AgentJoined, Slot
from rung.events.checkpoint import CheckpointPinned
from rung.events.experiment import DeletionRequested, ExperimentMoved, ExperimentSubmitted
from rung.gateway import context
from rung.gateway.directory.directory import Directory
from support.gateway.checkpoint import FILES, TRIAL, store_files
from support.gateway.client import Answer, Client
from support.gateway.directory import fold_change
from support.gateway.scenario import EXPERIMENT, submitted
from support.gateway.teams import ELSEWHERE, HOME, Member, enter

ANNA = Member("anna", "editor", "inside")
"""Of the default workspace."""
BEN = Member("ben", "editor", "outside")
"""Of the workspace speech."""
VERA = Member("vera", "viewer", "inside")


@pytest.fixture
def directory(world: World, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """Return the directory of the gateways that a test starts."""
    found = Directory(world.ledger)
    enter(found, [ANNA, BEN, VERA])
    monkeypatch.setattr(context, "Directory", lambda _ledger: found)
    return found


async def _submit(client: Client, who: Member, more: str = "", query: str = "") -> Answer:
    form = aiohttp.FormData()
    form.add_field("config", EXPERIMENT_FILE + more, filename="experiment.yaml")
    return await client.call("POST", f"/experiments{query}", data=form, headers=dict(who.headers))


async def _status(client: Client, experiment_id: str, who: Member) -> int:
    path = f"/experiments/{experiment_id}"
    return (await client.call("GET", path, headers=dict(who.headers))).status


async def _shown(client: Client, experiment_id: str) -> dict[str, Any]:
    found: dict[str, Any] = await client.get(f"/experiments/{experiment_id}")
    return found


async def test_a_submission_goes_where_its_file_says(
    world: World, directory: Directory, client: Client
) -> None:
    """By name, whatever its case; without one to the default workspace; its owner is on record."""
    assert directory.state.workspaces
    for who, more, place in (
        (ANNA, "", (HOME, HOME)),
        (BEN, "workspace: Speech\nproject: speech\n", (ELSEWHERE, ELSEWHERE)),
    ):
        answer = await _submit(client, who, more)
        shown = await _shown(client, answer.json["id"])
        assert (shown["workspace_id"], shown["project_id"]) == place
        assert (shown["owner"], shown["owner_id"]) == (who.name, who.name)
    facts = [it for it in await world.all("experiments") if isinstance(it, ExperimentSubmitted)]
    assert {(it.workspace_id, it.owner) for it in facts} == {(HOME, "anna"), (ELSEWHERE, "ben")}


async def test_places_that_are_unknown_or_closed_are_refused(
    directory: Directory, client: Client
) -> None:
    """With what is spelt nearly so among what one sees, and nothing of the rest."""
    speech = "workspace: {}\nproject: {}\n"
    near = await _submit(client, BEN, speech.format("speach", "speech"))
    unseen = await _submit(client, ANNA, speech.format("speech", "speech"))
    missing = await _submit(client, ANNA, speech.format("speecx", "speech"))
    project = await _submit(client, BEN, speech.format("speech", "speach"))
    nowhere = await _submit(client, BEN)
    viewer = await _submit(client, VERA)

    assert near.status == unseen.status == missing.status == project.status == 422
    assert near.json["errors"][0]["path"] == "workspace"
    assert near.json["errors"][0]["message"].endswith("did you mean speech?")
    assert unseen.json["detail"] == missing.json["detail"].replace("speecx", "speech")
    assert project.json["errors"][0]["message"].endswith("did you mean speech?")
    assert nowhere.json["errors"][0]["message"].endswith("there is speech")
    assert (viewer.status, viewer.kind) == (403, "forbidden")
    assert "experiment.create" in viewer.json["detail"]
    assert "editor-restricted" in viewer.json["detail"]

    fold_change(directory, changes.ArchiveWorkspace(workspace_id=ELSEWHERE, archived=True))
    closed = await _submit(client, BEN, speech.format("speech", "speech"))
    assert closed.json["errors"][0]["message"] == "workspace speech is archived"


async def test_a_move_changes_who_sees_it(
    world: World, directory: Directory, client: Client
) -> None:
    """At once, in lists and by id; who may not, or names what is not there, is refused."""
    made = (await _submit(client, ANNA)).json["id"]
    path = f"/experiments/{made}/move?workspace=speech"
    unseen = await client.call("POST", path, headers=dict(BEN.headers))
    viewer = await client.call("POST", path, headers=dict(VERA.headers))
    hidden = await client.call("POST", path, headers=dict(ANNA.headers))
    wrong = await client.call("POST", f"/experiments/{made}/move?project=x")
    empty = await client.call("POST", f"/experiments/{made}/move")

    assert (unseen.status, viewer.status) == (404, 403)
    assert "experiment.move" in viewer.json["detail"]
    assert (hidden.status, hidden.json["errors"][0]["path"]) == (400, "workspace")
    assert (wrong.status, empty.status) == (400, 400)

    again = {"Idempotency-Key": "k1"}
    for _ in range(2):
        moved = await client.call("POST", path, headers=dict(again))
        assert (moved.status, moved.json["workspace"]) == (202, "speech")
    other = await client.call("POST", f"/experiments/{made}/move?project=default", headers=again)
    assert other.status == 400
    assert await _status(client, made, ANNA) == 404
    found = await client.get("/experiments?filter=workspace:sp*", headers=dict(BEN.headers))
    assert [it["id"] for it in found["items"]] == [made]
    assert (await client.get("/experiments", headers=dict(ANNA.headers)))["items"] == []
    moves = [it for it in await world.all("experiments") if isinstance(it, ExperimentMoved)]
    assert moves == [
        ExperimentMoved(experiment_id=made, workspace_id=ELSEWHERE, project_id=ELSEWHERE)
    ]
    assert directory.state.version > 0


async def test_a_project_takes_its_experiments_along(directory: Directory, client: Client) -> None:
    """Where the directory moves a project, the rights of its new workspace hold."""
    fold_change(
        directory, changes.CreateProject(project_id="pets", workspace_id=HOME, name="pets")
    )
    made = (await _submit(client, ANNA, "workspace: default\nproject: pets\n")).json["id"]
    assert await _status(client, made, BEN) == 404
    fold_change(directory, changes.MoveProject(project_id="pets", workspace_id=ELSEWHERE))

    shown = await client.get(f"/experiments/{made}", headers=dict(BEN.headers))
    assert (shown["workspace"], shown["project"]) == ("speech", "pets")
    assert await _status(client, made, ANNA) == 404
    killed = await client.call("POST", f"/experiments/{made}/kill", headers=dict(BEN.headers))
    assert killed.status == 202


async def test_a_fork_stays_unless_it_says_where(directory: Directory, client: Client) -> None:
    """It goes where its parent is now; a changed file, or the request, chooses another place."""
    made = (await _submit(client, ANNA)).json["id"]
    await client.call("POST", f"/experiments/{made}/move?workspace=speech")
    stays = await _submit(client, BEN, query=f"?parent={made}")
    elsewhere = await _submit(client, Member("admin", None, "cluster"), query=f"?parent={made}")
    assert elsewhere.status == 401
    chosen = await client.call(
        "POST", f"/experiments?parent={made}&workspace=default", data=_form()
    )
    filed = await client.call(
        "POST", f"/experiments?parent={made}", data=_form("workspace: default\nproject: default\n")
    )

    for answer, place in ((stays, ELSEWHERE), (chosen, HOME), (filed, HOME)):
        assert (await _shown(client, answer.json["id"]))["workspace_id"] == place, answer
    hidden = await _submit(client, ANNA, query=f"?parent={made}")
    missing = await _submit(client, ANNA, query="?parent=mmmm7777")
    assert hidden.status == missing.status == 404
    shown = await client.get(f"/experiments/{chosen.json['id']}", headers=dict(ANNA.headers))
    assert shown["parent"] is None
    assert directory.state.version > 0


def _form(more: str = "") -> aiohttp.FormData:
    form = aiohttp.FormData()
    form.add_field("config", EXPERIMENT_FILE + more, filename="experiment.yaml")
    return form


async def test_an_idempotency_key_is_its_user_s(directory: Directory, client: Client) -> None:
    """The same key of two users stands for two requests, and tells nobody of the other's."""
    made = []
    for who, more in ((ANNA, ""), (BEN, "workspace: speech\nproject: speech\n")):
        for _ in range(2):
            headers = who.headers | {"Idempotency-Key": "same"}
            answer = await client.call("POST", "/experiments", data=_form(more), headers=headers)
            assert answer.status == 201, answer
            made.append(answer.json["id"])
    assert made[0] == made[1] != made[2] == made[3]
    assert directory.state.version > 0


async def test_what_starts_from_another_s_checkpoint_tells_nothing(
    world: World, directory: Directory, tmp_path: Path
) -> None:
    """A checkpoint or trial that one does not see is as unknown as one that is not there."""
    await store_files(world, tmp_path, FILES)
    assert directory.state.version > 0
    async with world.gateway() as client:
        for field, theirs, nobody_s in (
            ("source_checkpoint_uuid", "c1", "c2"),
            ("source_trial_id", TRIAL, "mmmm7777.0"),
        ):
            answers = []
            for value in (theirs, nobody_s):
                start = EXPERIMENT_FILE.replace(
                    "name: random", f"name: random\n  {field}: {value}"
                )
                text = start + "workspace: speech\nproject: speech\n"
                form = aiohttp.FormData()
                form.add_field("config", text, filename="experiment.yaml")
                answer = await client.call(
                    "POST", "/experiments", data=form, headers=dict(BEN.headers)
                )
                assert answer.status == 422, answer
                answers.append(answer.body.decode().replace(value, "…"))
            assert answers[0] == answers[1]


async def test_who_uses_a_checkpoint_is_told_to_those_who_see_it(
    world: World, directory: Directory, tmp_path: Path
) -> None:
    """Pins, dependents and events have no experiment of a workspace that one does not see."""
    await store_files(world, tmp_path, FILES)
    theirs = structs.replace(
        submitted(max_trials=1),
        experiment_id="zzzz9999",
        workspace_id=ELSEWHERE,
        project_id=ELSEWHERE,
    )
    await world.write(
        CheckpointPinned(experiment_id=EXPERIMENT, checkpoint_id="c1", by="zzzz9999"),
        theirs,
        DeletionRequested(experiment_id=EXPERIMENT, trials=1, despite=["zzzz9999"]),
    )
    assert directory.state.version > 0
    async with world.gateway() as client:
        full = await client.get("/checkpoints/c1")
        mine = await client.get("/checkpoints/c1", headers=dict(ANNA.headers))
        assert (full["pinned_by"], mine["pinned_by"]) == (["zzzz9999"], [])
        asked = await client.call("POST", "/checkpoints/c1/delete", headers=dict(ANNA.headers))
        assert asked.status == 409
        assert "zzzz9999" not in asked.body.decode()
        seen = await _events(client, ANNA.headers, until="rung.experiment.deletion_requested.v1")
        everything = await _events(client, None, until="rung.experiment.deletion_requested.v1")
    assert "zzzz9999" not in str(seen)
    assert "rung.checkpoint.pinned.v1" not in {it.name for it in seen}
    assert "zzzz9999" in str(everything)


async def _events(client: Client, headers: dict[str, str] | None, until: str) -> list[Seen]:
    found: list[Seen] = []
    async with opened(client, f"/experiments/{EXPERIMENT}/events", headers=headers) as events:
        async for each in events:
            if each is not None:
                found.append(each)
                if each.name == until:
                    break
    return found


async def test_a_stream_ends_where_its_experiment_goes_out_of_sight(
    directory: Directory, client: Client
) -> None:
    """By a move of the experiment or its project, or where a role is taken; others go on."""
    fold_change(
        directory, changes.CreateProject(project_id="pets", workspace_id=HOME, name="pets")
    )
    moved, along = [
        (await _submit(client, ANNA, f"workspace: default\nproject: {project}\n")).json["id"]
        for project in ("default", "pets")
    ]

    async def follow(experiment_id: str) -> None:
        path = f"/experiments/{experiment_id}/metrics/stream"
        async with opened(client, path, headers=ANNA.headers) as events:
            if experiment_id == moved:
                await client.call("POST", f"/experiments/{moved}/move?workspace=speech")
            else:
                change = changes.MoveProject(project_id="pets", workspace_id=ELSEWHERE)
                fold_change(directory, change)
            async for _ in events:
                pass

    for experiment_id in (moved, along):
        with pytest.raises(aiohttp.ClientError):
            await follow(experiment_id)


async def test_slots_of_others_are_busy(world: World, directory: Directory) -> None:
    """Whose allocation holds a slot is shown to those who see its experiment."""
    await world.write(
        submitted(max_trials=1),
        AgentJoined(
            pool="default",
            agent_id="n1",
            incarnation=1,
            hostname="host",
            slots=[Slot(id=0, kind="cpu", name="CPU"), Slot(id=1, kind="cpu", name="CPU")],
        ),
        asked(EXPERIMENT),
    )
    assert directory.state.version > 0
    async with world.scheduler(), world.gateway() as client:

        async def slots(who: Member) -> Any:
            found = await client.get("/agents", headers=dict(who.headers))
            return [
                (slot["allocation_id"], slot["busy"])
                for agent in found["items"]
                for slot in agent["slots"]
            ]

        found = await until(lambda: slots(ANNA), lambda it: (f"{TRIAL}.1", True) in it)
        assert (None, False) in found
        assert sorted(await slots(BEN), key=str) == [(None, False), (None, True)]
