"""Rights: each operation, as each role, in and outside a workspace; and what lists have.

The operations are those of the served OpenAPI document; what this table does not name fails.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest
from msgspec import structs

from gateway.conftest import EXPERIMENT_FILE, World
from rung.events import changes
from rung.events.allocation import AgentJoined, Slot
from rung.events.directory import ChangeRequested
from rung.events.experiment import ExperimentSubmitted
from rung.events.trial import RunRequested, RunSpec
from rung.gateway import context
from rung.gateway.directory import asking
from rung.gateway.directory.directory import Directory
from rung.gateway.routes import API, ROUTES
from rung.rights import EVERYBODY, PERMISSIONS, ROLES, permissions_of, roles_with
from rung.subscription.document import Subscription, written
from support.gateway.checkpoint import FILES, store_files
from support.gateway.client import Answer, Client, document
from support.gateway.directory import fold_change
from support.gateway.scenario import EXPERIMENT, submitted
from support.gateway.teams import ELSEWHERE, HOME, NOBODY, Member, enter, members

THEIRS: Final = "zzzz9999"
"""An experiment of the other workspace."""
WEBHOOK: Final = "wwww5555"
"""A webhook of the workspace of what is asked about."""
MODEL: Final = "dddd3333"
"""A model of that workspace, with a version."""
MISSING: Final = "mmmm7777"
"""An experiment that is nowhere."""


class Case(NamedTuple):
    """How an operation is called about something, and what it is about."""

    about: str = "object"
    """An `object` in the path or query; a `place` for something new; a `list`; the `cluster`;
    `anybody`; what is `signed-in` or decided by the `directory`, which other tests are about."""
    query: str = ""
    body: Callable[[], dict[str, Any]] = dict


def _form() -> dict[str, Any]:
    form = aiohttp.FormData()
    form.add_field("config", EXPERIMENT_FILE, filename="experiment.yaml")
    return {"data": form}


_SIGNING_IN: Final = (
    "show_sign_in_methods",
    "sign_in_with_password",
    "start_sign_in",
    "finish_sign_in",
    "show_sign_in_address",
    "sign_in_with_code",
    "begin_device_sign_in",
    "sign_in_with_device_code",
)
_DIRECTORY: Final = (
    *("list_tokens", "create_token", "rotate_token", "revoke_token", "set_password"),
    *("list_users", "create_user", "show_user", "change_user", "deactivate_user"),
    *("activate_user", "list_accounts", "create_account", "show_account", "change_account"),
    *("deactivate_account", "activate_account", "list_groups", "create_group", "show_group"),
    *("change_group", "change_members", "delete_group", "list_workspaces", "create_workspace"),
    *("show_workspace", "change_workspace", "archive_workspace", "unarchive_workspace"),
    *("list_projects", "create_project", "show_project", "change_project", "move_project"),
    *("archive_project", "unarchive_project", "list_roles", "list_assignments", "assign_role"),
    *("show_assignment", "delete_assignment", "set_policy", "delete_policy"),
    *("list_searches", "save_search", "delete_search"),
    *("create_webhook", "change_webhook", "rotate_webhook_key", "activate_webhook"),
    *("deactivate_webhook", "delete_webhook"),
)
CASES: Final[dict[str, Case]] = {
    "submit_experiment": Case("place", body=_form),
    "validate_experiment": Case("place", body=lambda: {"data": EXPERIMENT_FILE.encode()}),
    "fetch_code": Case(),
    "list_experiments": Case("list"),
    "find_reference": Case(query="name={experiment_id}"),
    "show_experiment": Case(),
    "show_best": Case(),
    "list_trials": Case(),
    "show_trial": Case(),
    "audit_experiment": Case(),
    "pause_experiment": Case(),
    "resume_experiment": Case(),
    "cancel_experiment": Case(),
    "kill_experiment": Case(),
    "kill_trial": Case(),
    "extend_experiment": Case(query="trials=9"),
    "move_trial": Case(),
    "move_experiment": Case(query=f"project={HOME}"),
    "list_experiment_checkpoints": Case(),
    "list_trial_checkpoints": Case(),
    "show_checkpoint": Case(),
    "fetch_checkpoint": Case(),
    "fetch_checkpoint_file": Case(query="name=empty"),
    "delete_experiment": Case(query="dry_run=true"),
    "restore_experiment": Case(),
    "delete_checkpoint": Case(query="dry_run=true"),
    "change_retention": Case(query="dry_run=true", body=lambda: {"data": b"{}"}),
    "show_description": Case(),
    "change_description": Case(body=lambda: {"data": b'{"notes": "x"}'}),
    "show_experiment_curves": Case(),
    "show_trial_curve": Case(),
    "show_experiment_logs": Case(),
    "show_trial_logs": Case(),
    "collect_logs": Case(query="experiment={experiment_id}"),
    "stream_events": Case(),
    "stream_metrics": Case(),
    "stream_experiment_logs": Case(),
    "stream_trial_logs": Case(),
    "list_agents": Case("cluster"),
    "list_queue": Case("list"),
    "show_status": Case("cluster"),
    "show_openapi": Case("anybody"),
    "show_experiment_schema": Case("anybody"),
    "list_dead_letters": Case("cluster"),
    "show_dead_letter": Case("cluster"),
    "retry_dead_letter": Case("cluster"),
    "drop_dead_letter": Case("cluster"),
    "configure_pool": Case("cluster", body=lambda: {"json": {"policy": "priority"}}),
    "show_workspace_usage": Case(),
    "show_usage": Case("list"),
    "list_secrets": Case(),
    "set_secret": Case(body=lambda: {"data": b"{}"}),
    "delete_secret": Case(),
    "list_templates": Case(),
    "set_template": Case(body=lambda: {"data": b"{}"}),
    "delete_template": Case(),
    "list_policies": Case("list"),
    "list_webhooks": Case("list"),
    "show_webhook": Case(),
    "test_webhook": Case(),
    "list_deliveries": Case(),
    "redeliver": Case(),
    "list_models": Case("list"),
    "show_model": Case(),
    "create_model": Case("place", body=lambda: {"json": {"name": "m", "workspace": HOME}}),
    "change_model": Case(body=lambda: {"json": {"description": "d"}}),
    "move_model": Case(body=lambda: {"json": {"workspace": HOME}}),
    "archive_model": Case(),
    "unarchive_model": Case(),
    "delete_model": Case(),
    "list_versions": Case(),
    "show_version": Case(),
    "register_version": Case(body=lambda: {"json": {"checkpoint": "c1"}}),
    "change_version": Case(body=lambda: {"json": {"notes": "n"}}),
    "delete_version": Case(),
    "show_version_checkpoint": Case(),
    "fetch_version": Case(),
    "fetch_version_file": Case(query="name=empty"),
    "resolve_config": Case("place", body=lambda: {"json": {"source": EXPERIMENT_FILE}}),
    "show_resources": Case(),
    "change_resources": Case(body=lambda: {"json": {"priority": 7}}),
    "change_experiments": Case("signed-in"),
    "list_acts": Case("signed-in"),
    "stream_acts": Case("signed-in"),
    "sign_out": Case("signed-in"),
    **dict.fromkeys(_SIGNING_IN, Case("anybody")),
    **dict.fromkeys(_DIRECTORY, Case("directory")),
    "show_health": Case("anybody"),
    "show_readiness": Case("anybody"),
}
_OF_NOTHING: Final = (
    *("show_dead_letter", "retry_dead_letter", "drop_dead_letter"),
    *("delete_secret", "delete_template", "redeliver"),
)
"""Operations on what the world below lacks."""
_PLACES: Final = {
    "object": {"experiment", "workspace"},
    "place": {"workspace"},
    "list": {"workspace"},
    "cluster": {"cluster"},
}


class Operation(NamedTuple):
    """One of the document."""

    id: str
    method: str
    path: str
    needs: str
    about: str

    def url(self, experiment: str, case: Case) -> str:
        """Return where it is called about an experiment, its first trial or a checkpoint of it."""
        names = {
            "experiment_id": experiment,
            "trial_id": f"{experiment}.0",
            "checkpoint_id": "c1" if experiment == EXPERIMENT else f"c-{experiment}",
            "workspace": HOME if experiment == EXPERIMENT else MISSING,
            "secret": "none",
            "template": "none",
            "webhook": WEBHOOK if experiment == EXPERIMENT else MISSING,
            "delivery": "none",
            "model": MODEL if experiment == EXPERIMENT else MISSING,
            "version": "1",
            "pool": "default",
            "reader": "searcher",
            "topic": "experiments",
            "partition": "0",
            "position": "0",
        }
        query = f"?{case.query}" if case.query else ""
        return (self.path + query).format(**names)


def operations() -> list[Operation]:
    """Return the operations of the document that the gateway serves."""
    return [
        Operation(
            found["operationId"],
            method.upper(),
            path,
            found.get("x-rung-permission", ""),
            found.get("x-rung-about", "anybody"),
        )
        for path, item in document()["paths"].items()
        for method, found in item.items()
    ]


def _rights(who: Member) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a member may in the workspace that is asked about, and in the cluster."""
    if who.role is None:
        return EVERYBODY, EVERYBODY
    held = permissions_of(who.role, in_cluster=who.side == "cluster") | EVERYBODY
    return (
        EVERYBODY if who.side == "outside" else held,
        held if who.side == "cluster" else EVERYBODY,
    )


def _expected(operation: Operation, case: Case, who: Member) -> int | None:
    """Return the status of a refusal, None where it is permitted."""
    here, cluster = _rights(who)
    if case.about in {"anybody", "list"}:
        return None
    if case.about == "cluster":
        return None if operation.needs in cluster else 403
    if operation.needs in here:
        return None
    if case.about == "object":
        placed = "/workspaces/" in operation.path or "/webhooks/" in operation.path
        seen = "workspace.view" if placed else "experiment.view"
        if "/models/" in operation.path:
            seen = "model.view"
        return 403 if seen in here else 404
    return 403 if {"workspace.view", "experiment.view"} & here else 422


@pytest.fixture
async def teams(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world of two workspaces with an experiment each, and a user of each role."""
    directory = Directory(world.ledger)
    enter(directory, members())
    hook = Subscription(events=["rung.experiment.ended.v1"], to="hooks.example.com")
    fold_change(
        directory,
        changes.SetWebhook(
            webhook_id=WEBHOOK, workspace_id=HOME, name="hook", document=written(hook)
        ),
    )
    fold_change(directory, changes.CreateModel(model_id=MODEL, workspace_id=HOME, name="digits"))
    fold_change(
        directory,
        changes.RegisterVersion(
            model_version_id="v1",
            model_id=MODEL,
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.0",
            checkpoint_id="c1",
        ),
    )
    monkeypatch.setattr(context, "Directory", lambda _ledger: directory)
    monkeypatch.setattr(asking, "PATIENCE_S", 0.01)  # no service decides these requests
    await store_files(world, tmp_path, FILES)
    await world.write(_theirs())
    return world


def _theirs() -> ExperimentSubmitted:
    return structs.replace(
        submitted(max_trials=1),
        experiment_id=THEIRS,
        workspace_id=ELSEWHERE,
        project_id=ELSEWHERE,
        owner="anna",
    )


def test_every_operation_has_a_permission_and_is_in_the_table() -> None:
    """What is served and not named here, or needs nothing, is a mistake."""
    found = {each.id: each for each in operations()}

    assert set(found) == set(CASES)
    for each in found.values():
        if each.about in {"anybody", "signed-in", "directory"}:
            assert (CASES[each.id].about, each.needs) == (each.about, ""), each
        else:
            assert each.needs in PERMISSIONS, each
            assert each.about in _PLACES[CASES[each.id].about], each
            assert PERMISSIONS[each.needs].place in {"workspace", each.about}, each
    assert {route.name for route in ROUTES} <= set(found)


async def _status(client: Client, operation: Operation, url: str, who: Member) -> Answer:
    """Return what comes back; of a stream its head alone."""
    case = CASES[operation.id]
    if operation.path.endswith(("/events", "/stream")):
        async with client.session.get(client.url + url, headers=who.headers) as response:
            body = b"" if response.status == 200 else await response.read()
            return Answer(response.status, {}, body)
    path = url.removeprefix(API)
    return await client.call(operation.method, path, headers=dict(who.headers), **case.body())


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("role", [*ROLES, NOBODY])
async def test_each_operation_as_each_role(teams: World, role: str) -> None:
    """It is permitted, refused with the permission's name, or about nothing that there is."""
    chosen = [each for each in members() if role in {each.role, each.name}]
    async with teams.gateway() as client:
        for operation in operations():
            case = CASES[operation.id]
            if operation.id in _SIGNING_IN or case.about in {"signed-in", "directory"}:
                continue
            for who in chosen:
                answer = await _status(client, operation, operation.url(EXPERIMENT, case), who)
                wanted = _expected(operation, case, who)
                what = operation.id, who.name, answer.status, answer.body[:300]
                if wanted is None:
                    refused = {401, 403} if operation.id in _OF_NOTHING else {401, 403, 404}
                    # An experiment without code, of which there is none to fetch.
                    assert answer.status not in refused or answer.kind == "no-code", what
                    continue
                assert answer.status == wanted, what
                if wanted == 403:
                    assert operation.needs in answer.json["detail"], what
                    for name in roles_with(operation.needs):
                        assert name in answer.json["detail"], what
                if wanted == 404:
                    other = await _status(client, operation, operation.url(MISSING, case), who)
                    assert _blank(answer, EXPERIMENT, "c1", HOME, WEBHOOK, MODEL) == _blank(
                        other, f"c-{MISSING}", MISSING, HOME
                    )


def _blank(answer: Answer, *names: str) -> tuple[int, str]:
    """Return an answer without the names that its request had."""
    text = answer.body.decode()
    for name in names:
        text = text.replace(name, "…")
    return answer.status, text


def _outsider() -> dict[str, str]:
    return Member("workspace-admin-outside", "workspace-admin", "outside").headers


async def test_lists_counts_and_hints_have_what_one_sees(teams: World) -> None:
    """Of another workspace there is nothing: in lists, counts, search, hints and ambiguities."""
    await teams.write(
        structs.replace(_theirs(), experiment_id="zzzz8888"),
        structs.replace(submitted(max_trials=1), experiment_id="zzzz7777"),
    )
    async with teams.gateway() as client:
        for query in ("", "?q=mnist*", "?filter=state:active", f"?workspace={HOME}", "?owner=*"):
            found = await client.get(f"/experiments{query}", headers=_outsider())
            seen = {each["id"] for each in found["items"]}
            assert seen <= {THEIRS, "zzzz8888"}, query
        listed = await client.get("/experiments", headers=_outsider())
        assert {each["id"] for each in listed["items"]} == {THEIRS, "zzzz8888"}
        assert {each["workspace"] for each in listed["items"]} == {ELSEWHERE}
        status = await client.get("/status", headers=_outsider())
        assert status["experiments"] == {"active": 2}
        assert (status["checkpoint_count"], status["checkpoint_bytes"]) == (0, 0)
        assert (status["problems"], status["dead_letters"]) == ([], 0)
        ambiguous = await client.call("GET", "/experiments/zzzz", headers=_outsider())
        assert ambiguous.status == 409
        assert "zzzz7777" not in ambiguous.json["detail"]
        only = await client.get("/experiments/zzzz7", headers={})
        assert only["id"] == "zzzz7777"
        near = await client.call("GET", "/experiments/k3f9x2mb", headers=_outsider())
        assert EXPERIMENT not in near.json["detail"]
        assert (
            (await client.call("GET", "/experiments/k3f9x2mb"))
            .json["detail"]
            .endswith(f"did you mean {EXPERIMENT}?")
        )
        pinned = await client.call("GET", "/checkpoints/c", headers=_outsider())
        assert (pinned.status, pinned.kind) == (404, "not-found")


async def test_a_batch_does_to_each_what_one_may(teams: World) -> None:
    """What one does not see is not there, what one may not change is refused by permission."""
    body = {"action": "describe", "description": {"notes": "x"}}
    viewer = Member("viewer-inside", "viewer", "inside").headers
    async with teams.gateway() as client:
        for headers, ids, kinds in (
            (viewer, [EXPERIMENT, THEIRS], ["forbidden", "not-found"]),
            (_outsider(), [EXPERIMENT, THEIRS], ["not-found", None]),
        ):
            answer = await client.call(
                "POST", "/experiments:batch", json=body | {"ids": ids}, headers=headers
            )
            assert [item["kind"] for item in answer.json["items"]] == kinds, answer
        found = await client.call(
            "POST", "/experiments:batch", json=body | {"filter": "state:active"}, headers=viewer
        )
        assert [item["experiment_id"] for item in found.json["items"]] == [EXPERIMENT]


async def test_the_log_has_what_one_sees(teams: World) -> None:
    """Of others only with `audit.view`, or of an experiment that one sees."""
    auditor = Member("auditor-cluster", "auditor", "cluster").headers
    viewer = Member("viewer-inside", "viewer", "inside").headers
    async with teams.gateway() as client:
        notes = {"json": {"notes": "x"}, "headers": _outsider()}
        assert (
            await client.call("POST", f"/experiments/{THEIRS}/description", **notes)
        ).status == 200
        everything = await client.get("/log", headers=auditor)
        assert THEIRS in {item["experiment_id"] for item in everything["items"]}
        (said,) = (await client.get("/log?who=Workspace-Admin-Outside", headers=auditor))["items"]
        assert said["actor_name"] == "workspace-admin-outside"
        mine = await client.get("/log", headers=_outsider())
        assert {item["actor"] for item in mine["items"]} == {"workspace-admin-outside"}
        assert (await client.get("/log", headers=viewer))["items"] == []
        assert (await client.call("GET", "/log?who=admin", headers=viewer)).status == 403
        theirs = await client.call("GET", f"/log?experiment={THEIRS}", headers=viewer)
        assert theirs.status == 404


async def test_queue_and_slots_have_the_allocations_that_one_sees(teams: World) -> None:
    """A slot that another's trial holds is busy; whose it is is not said."""
    await teams.write(
        AgentJoined(
            pool="default",
            agent_id="n1",
            incarnation=1,
            hostname="host",
            slots=[Slot(id=0, kind="cpu", name="CPU"), Slot(id=1, kind="cpu", name="CPU")],
        ),
        *(asked(name) for name in (EXPERIMENT, THEIRS)),
    )
    async with teams.gateway() as client:
        mine = await client.get("/queue", headers=_outsider())
        assert [each["experiment_id"] for each in mine["items"]] == [THEIRS]
        everybody = await client.get("/queue")
        assert len(everybody["items"]) == 2
        (pool,) = (await client.get("/status", headers=_outsider()))["pools"]
        assert (pool["waiting"], pool["slots"], pool["slots_used"]) == (1, 2, 0)


def asked(experiment_id: str) -> RunRequested:
    """Return the request of an experiment's first run."""
    trial_id = f"{experiment_id}.0"
    return RunRequested(
        pool="default",
        reason="",
        experiment_id=experiment_id,
        slots=1,
        priority=42,
        max_slots=None,
        spec=RunSpec(
            experiment_id=experiment_id,
            trial_id=trial_id,
            trial_index=0,
            run=1,
            hparams={},
            seed=1,
            length=9,
            time_metric="epochs",
            restore=[],
            code_digest=None,
        ),
    )


async def test_a_gateway_ends_while_nobody_decides(
    teams: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a token was used is on record by then; the decision on it is not waited for."""
    monkeypatch.setattr("rung.gateway.directory.asking.PATIENCE_S", 600.0)
    member = Member("editor-inside", "editor", "inside")
    async with asyncio.timeout(60), teams.gateway() as client:
        await client.get("/experiments", headers=dict(member.headers))

    (asked_for,) = [it for it in await teams.all("requests") if isinstance(it, ChangeRequested)]
    assert asked_for.change == changes.NoteTokenUse(token_id="t-editor-inside")  # noqa: S106 - an id
