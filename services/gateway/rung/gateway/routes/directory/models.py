"""Registered models and their versions: list, show, create, change, archive, move, delete.

The directory decides on changes, and on a registration once checkpoint-gc holds the checkpoint.
What the directory does not know, in which workspace that is, is checked here.
"""

from typing import Annotated, Final, TypeVar

from aiohttp import web
from msgspec import Meta

from rung import api
from rung.api import ProblemItem
from rung.events import changes
from rung.events.directory import DirectoryChanged
from rung.gateway.access.authorization import access_of
from rung.gateway.context import check_caught_up, context_of, find_checkpoint, reply
from rung.gateway.directory.asking import Asking
from rung.gateway.directory.state import Model, ModelVersion, folded, versions_of
from rung.gateway.problem import Problem, not_found
from rung.gateway.projections.experiment import Checkpoint, Experiment, checkpoint_phase
from rung.gateway.requests.query import NoQuery, PageQuery, page, read_query
from rung.gateway.requests.version import version_of
from rung.gateway.route import Route
from rung.gateway.routes.checkpoints import (
    FileQuery,
    reply_checkpoint,
    send_checkpoint,
    send_checkpoint_file,
)
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find_workspace,
    listed,
    may,
    recorded,
    removed_before,
    reply_thing,
    state_of,
    wanted,
)
from rung.gateway.routes.directory.workspaces import PlaceQuery
from rung.gateway.serializers import experiments as serializers

VIEW: Final = "model.view"
EDIT: Final = "model.edit"
DOWNLOAD: Final = "checkpoint.download"
_DIGITS_MAX: Final = 9
_HINT: Final = "`rung model list` and GET /api/v1/models list those that you see"

M = TypeVar("M", Model, ModelVersion)

_Label = Annotated[str | None, Meta(description="only those with this label")]


class ModelQuery(PlaceQuery, forbid_unknown_fields=True):
    """Which models."""

    workspace: Annotated[
        str | None, Meta(description="only those of the workspace of this id or name")
    ] = None
    name: Annotated[
        str | None, Meta(description="only those whose name has this in it, in any case")
    ] = None
    label: _Label = None


class VersionQuery(PageQuery, forbid_unknown_fields=True):
    """Which versions of a model."""

    label: _Label = None


# Models.


async def list_models(request: web.Request) -> web.Response:
    """List the models that one may see, by id."""
    query = read_query(request, ModelQuery)
    only = None if query.workspace is None else find_workspace(request, query.workspace)
    found = [
        it
        for it in state_of(request).models.values()
        if query.archived in {None, it.archived}
        and (only is None or it.workspace_id == only.id)
        and (query.name is None or folded(query.name) in folded(it.name))
        and (query.label is None or query.label in it.labels)
        and may(request, VIEW, it.workspace_id)
    ]
    items, cursor = listed(found, query, lambda it: _shown(request, it))
    return reply(api.ModelList(items=items, next_cursor=cursor))


async def show_model(request: web.Request) -> web.Response:
    """Show a model."""
    read_query(request, NoQuery)
    return _reply(request, _of_path(request, VIEW))


async def create_model(request: web.Request) -> web.Response:
    """Create a model."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.ModelWanted), Asking.of(request)
    workspace = find_workspace(request, body.workspace, "workspace")
    access_of(request).check(EDIT, workspace.id, f"models of workspace {workspace.name}")
    change = changes.CreateModel(
        model_id=asking.new_id(),
        workspace_id=workspace.id,
        name=body.name,
        description=body.description,
        labels=body.labels,
        metadata=body.metadata,
    )
    await asking.make(change)
    return _reply(request, _still(state_of(request).models.get(change.model_id)), status=201)


async def change_model(request: web.Request) -> web.Response:
    """Change a model's name, description, labels or metadata."""
    read_query(request, NoQuery)
    asking, model = Asking.of(request), _of_path(request, EDIT)
    body = await wanted(request, api.ModelChange)
    change = changes.ChangeModel(
        model_id=model.id,
        name=body.name,
        description=body.description,
        labels=body.labels,
        metadata=body.metadata,
    )
    await asking.make(change, expected=version_of(request))
    return _reply(request, _still(state_of(request).models.get(model.id)))


async def move_model(request: web.Request) -> web.Response:
    """Move a model to another workspace, with its versions."""
    read_query(request, NoQuery)
    asking, model = Asking.of(request), _of_path(request, EDIT)
    body = await wanted(request, api.ModelMove)
    workspace = find_workspace(request, body.workspace, "workspace")
    access_of(request).check(EDIT, workspace.id, f"models of workspace {workspace.name}")
    change = changes.MoveModel(model_id=model.id, workspace_id=workspace.id)
    await asking.make(change, expected=version_of(request))
    return _reply(request, _still(state_of(request).models.get(model.id)))


async def archive_model(request: web.Request) -> web.Response:
    """Close a model to changes and new versions."""
    return await _archive(request, archived=True)


async def unarchive_model(request: web.Request) -> web.Response:
    """Open an archived model again."""
    return await _archive(request, archived=False)


async def _archive(request: web.Request, *, archived: bool) -> web.Response:
    read_query(request, NoQuery)
    asking, model = Asking.of(request), _of_path(request, EDIT)
    change = changes.ArchiveModel(model_id=model.id, archived=archived)
    await asking.make(change, expected=version_of(request))
    return _reply(request, _still(state_of(request).models.get(model.id)))


async def delete_model(request: web.Request) -> web.Response:
    """Delete a model and its versions; their checkpoints may be deleted from then on."""
    read_query(request, NoQuery)
    asking = Asking.of(request)
    done = removed_before(await asking.before(), changes.RemoveModel)
    if done is not None:
        return reply(api.Removed(id=done))
    model = _of_path(request, EDIT)
    await asking.make(changes.RemoveModel(model_id=model.id), expected=version_of(request))
    return reply(api.Removed(id=model.id))


# Versions.


async def list_versions(request: web.Request) -> web.Response:
    """List the versions of a model, the newest first."""
    query = read_query(request, VersionQuery)
    model = _of_path(request, VIEW)
    found = [
        it
        for it in reversed(versions_of(state_of(request), model.id))
        if query.label is None or query.label in it.labels
    ]
    shown, cursor = page(found, query, lambda it: -it.number)
    return reply(api.ModelVersionList(items=[_version(it) for it in shown], next_cursor=cursor))


async def show_version(request: web.Request) -> web.Response:
    """Show a version of a model."""
    read_query(request, NoQuery)
    return _reply_version(_version_of_path(request, _of_path(request, VIEW)))


async def register_version(request: web.Request) -> web.Response:
    """Register a stored checkpoint as the next version of a model."""
    read_query(request, NoQuery)
    asking, model = Asking.of(request), _of_path(request, EDIT)
    body = await wanted(request, api.ModelVersionWanted)
    before = await asking.before()
    if isinstance(before, DirectoryChanged) and isinstance(before.change, changes.RegisterVersion):
        registered = before.change
        experiment_id, trial_id = registered.experiment_id, registered.trial_id
        checkpoint_id, area = registered.checkpoint_id, registered.area
        if not checkpoint_id.startswith(body.checkpoint):
            checkpoint_id = body.checkpoint  # the key is reused
    else:
        experiment, found = await _checkpoint(request, body.checkpoint)
        experiment_id, trial_id, checkpoint_id = experiment.id, found.trial_id, found.id
        area = serializers.submission_of(experiment).area
    change = changes.RegisterVersion(
        model_version_id=asking.new_id(),
        model_id=model.id,
        experiment_id=experiment_id,
        trial_id=trial_id,
        checkpoint_id=checkpoint_id,
        area=area,
        name=body.name,
        notes=body.notes,
        labels=body.labels,
    )
    await asking.make(change)
    made = _still(state_of(request).model_versions.get(change.model_version_id))
    return _reply_version(made, status=201)


async def change_version(request: web.Request) -> web.Response:
    """Change a version's name, notes or labels."""
    read_query(request, NoQuery)
    asking = Asking.of(request)
    version = _version_of_path(request, _of_path(request, EDIT))
    body = await wanted(request, api.ModelVersionChange)
    change = changes.ChangeVersion(
        model_version_id=version.id, name=body.name, notes=body.notes, labels=body.labels
    )
    await asking.make(change, expected=version_of(request))
    return _reply_version(_still(state_of(request).model_versions.get(version.id)))


async def delete_version(request: web.Request) -> web.Response:
    """Delete a version of a model; its checkpoint may be deleted from then on."""
    read_query(request, NoQuery)
    asking, model = Asking.of(request), _of_path(request, EDIT)
    done = removed_before(await asking.before(), changes.RemoveVersion)
    if done is not None:
        return reply(api.Removed(id=done))
    version = _version_of_path(request, model)
    change = changes.RemoveVersion(model_version_id=version.id)
    await asking.make(change, expected=version_of(request))
    return reply(api.Removed(id=version.id))


async def show_version_checkpoint(request: web.Request) -> web.Response:
    """Show a version's checkpoint with its files."""
    read_query(request, NoQuery)
    return await reply_checkpoint(request, *await _stored(request))


async def fetch_version(request: web.Request) -> web.StreamResponse:
    """Send the files of a version's checkpoint and its manifest as a tar."""
    read_query(request, NoQuery)
    return await send_checkpoint(request, *await _stored(request))


async def fetch_version_file(request: web.Request) -> web.StreamResponse:
    """Send one file of a version's checkpoint, or redirect to the object store."""
    query = read_query(request, FileQuery)
    return await send_checkpoint_file(request, query, *await _stored(request))


async def _stored(request: web.Request) -> tuple[Experiment, Checkpoint]:
    """Return the checkpoint of the version of the path: who sees the model may see it."""
    model = _of_path(request, VIEW)
    access_of(request).check(DOWNLOAD, model.workspace_id, f"model {model.name}")
    version = _version_of_path(request, model)
    context = context_of(request)
    found = await context.models.checkpoint(version.checkpoint_id)
    if found is None:
        check_caught_up(context.models)
        raise not_found("checkpoint", version.checkpoint_id, _HINT)
    return found


# What is shared.


def _of_path(request: web.Request, permission: str) -> Model:
    """Return the model of the path, by id, name, or WORKSPACE/NAME, for who may do something.

    Raises:
        Problem: there is none that one sees, or several, or one may not.
    """
    reference, state = request.match_info["model"], state_of(request)
    place, slash, name = reference.partition("/")
    seen = [
        it
        for it in state.models.values()
        if may(request, VIEW, it.workspace_id) or may(request, permission, it.workspace_id)
    ]
    found = [it for it in seen if it.id == reference]
    if not found:
        wanted_name = folded(name if slash else reference)
        found = [
            it
            for it in seen
            if folded(it.name) == wanted_name
            and (
                not slash
                or place == it.workspace_id
                or folded(place) == folded(state.workspaces[it.workspace_id].name)
            )
        ]
    if not found:
        raise not_found("model", reference, _HINT)
    if len(found) > 1:
        ids = ", ".join(sorted(it.id for it in found))
        detail = f"several models have this name: {ids}; give the id, or WORKSPACE/NAME"
        raise Problem(409, "ambiguous", detail)
    access_of(request).check(permission, found[0].workspace_id, f"model {found[0].name}")
    return found[0]


def _version_of_path(request: web.Request, model: Model) -> ModelVersion:
    """Return the version of the path, by its number or id, or `newest`.

    Raises:
        Problem: there is none.
    """
    reference = request.match_info["version"]
    found = versions_of(state_of(request), model.id)
    if reference == "newest" and found:
        return found[-1]
    number = reference.removeprefix("v")
    is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX
    for it in found:
        if it.id == reference or (is_number and it.number == int(number)):
            return it
    hint = (
        f"`rung model versions {model.name}` and GET /api/v1/models/{model.id}/versions list what"
        " there is"
    )
    raise not_found(f"version of model {model.name}", reference, hint)


async def _checkpoint(request: web.Request, reference: str) -> tuple[Experiment, Checkpoint]:
    """Return the checkpoint that is to be registered, which who asks may download.

    Raises:
        Problem: there is none, or several, or it is not stored, or one may not.
    """
    check_caught_up(context_of(request).models)
    try:
        experiment, found = await find_checkpoint(request, reference, needs=DOWNLOAD)
    except Problem as problem:
        if problem.status not in {404, 409}:
            raise
        items = [ProblemItem(path="checkpoint", message=problem.detail)]
        detail = f"checkpoint: {problem.detail}"
        raise Problem(422, "invalid", detail, errors=items) from None
    phase = checkpoint_phase(found)
    if phase != "stored":
        items = [ProblemItem(path="checkpoint", message=f"is {phase}")]
        detail = f"checkpoint {found.id} is {phase}; register one that is stored"
        status, kind = (409, "damaged") if phase == "damaged" else (410, "gone")
        raise Problem(status, kind, detail, errors=items)
    return experiment, found


def _still(found: M | None) -> M:
    """Return what a request made, unless it is deleted meanwhile.

    Raises:
        Problem: it is.
    """
    if found is None:
        raise Problem(410, "gone", "what this request made was deleted meanwhile")
    return found


def _shown(request: web.Request, model: Model) -> api.Model:
    state = state_of(request)
    found = versions_of(state, model.id)
    return api.Model(
        **recorded(model),
        workspace_id=model.workspace_id,
        workspace=state.workspaces[model.workspace_id].name,
        description=model.description,
        labels=model.labels,
        metadata=model.metadata,
        archived=model.archived,
        version_count=len(found),
        newest=found[-1].number if found else None,
        by=model.by,
    )


def _version(version: ModelVersion) -> api.ModelVersion:
    return api.ModelVersion(
        **recorded(version),
        model_id=version.model_id,
        number=version.number,
        experiment_id=version.experiment_id,
        trial_id=version.trial_id,
        checkpoint_id=version.checkpoint_id,
        notes=version.notes,
        labels=version.labels,
        by=version.by,
    )


def _reply(request: web.Request, model: Model, *, status: int = 200) -> web.Response:
    return reply_thing(_shown(request, model), model.version, status=status)


def _reply_version(version: ModelVersion, *, status: int = 200) -> web.Response:
    return reply_thing(_version(version), version.version, status=status)


_CREATING: Final = (*CREATING, 410)
_CHANGING: Final = (*CHANGING, 410)
_SHOWING: Final = (*READING, 409)
_ONE: Final = "/models/{model}"
_VERSION: Final = "/models/{model}/versions/{version}"
_ROUTES: Final = (
    Route(
        "GET",
        "/models",
        list_models,
        "The models that one may see, by id",
        api.ModelList,
        query=ModelQuery,
        problems=(404,),
        needs=VIEW,
    ),
    Route(
        "POST",
        "/models",
        create_model,
        "Create a model",
        api.Model,
        status=201,
        body=body_of(api.ModelWanted),
        idempotent=True,
        problems=_CREATING,
        needs=EDIT,
    ),
    Route("GET", _ONE, show_model, "A model", api.Model, problems=_SHOWING, needs=VIEW),
    Route(
        "POST",
        _ONE,
        change_model,
        "Change a model's name, description, labels or metadata",
        api.Model,
        body=body_of(api.ModelChange),
        idempotent=True,
        problems=_CHANGING,
        needs=EDIT,
    ),
    Route(
        "POST",
        f"{_ONE}/move",
        move_model,
        "Move a model to another workspace, with its versions",
        api.Model,
        body=body_of(api.ModelMove),
        idempotent=True,
        problems=_CHANGING,
        needs=EDIT,
    ),
    Route(
        "POST",
        f"{_ONE}/archive",
        archive_model,
        "Close a model to changes and new versions",
        api.Model,
        idempotent=True,
        problems=_CHANGING,
        needs=EDIT,
    ),
    Route(
        "POST",
        f"{_ONE}/unarchive",
        unarchive_model,
        "Open an archived model again",
        api.Model,
        idempotent=True,
        problems=_CHANGING,
        needs=EDIT,
    ),
    Route(
        "POST",
        f"{_ONE}/delete",
        delete_model,
        "Delete a model and its versions",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
        needs=EDIT,
    ),
    Route(
        "GET",
        f"{_ONE}/versions",
        list_versions,
        "The versions of a model, the newest first",
        api.ModelVersionList,
        query=VersionQuery,
        problems=_SHOWING,
        needs=VIEW,
    ),
    Route(
        "POST",
        f"{_ONE}/versions",
        register_version,
        "Register a stored checkpoint as the next version of a model",
        api.ModelVersion,
        status=201,
        body=body_of(api.ModelVersionWanted),
        idempotent=True,
        problems=_CREATING,
        needs=EDIT,
    ),
    Route(
        "GET",
        _VERSION,
        show_version,
        "A version of a model",
        api.ModelVersion,
        problems=_SHOWING,
        needs=VIEW,
    ),
    Route(
        "POST",
        _VERSION,
        change_version,
        "Change a version's name, notes or labels",
        api.ModelVersion,
        body=body_of(api.ModelVersionChange),
        idempotent=True,
        problems=_CHANGING,
        needs=EDIT,
    ),
    Route(
        "POST",
        f"{_VERSION}/delete",
        delete_version,
        "Delete a version of a model",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
        needs=EDIT,
    ),
    Route(
        "GET",
        f"{_VERSION}/checkpoint",
        show_version_checkpoint,
        "A version's checkpoint with its files",
        api.CheckpointDetail,
        problems=_SHOWING,
        needs=DOWNLOAD,
    ),
    Route(
        "GET",
        f"{_VERSION}/archive",
        fetch_version,
        "Fetch the files of a version's checkpoint and its manifest as a tar",
        media_type="application/x-tar",
        problems=(*_SHOWING, 410),
        needs=DOWNLOAD,
    ),
    Route(
        "GET",
        f"{_VERSION}/file",
        fetch_version_file,
        "Fetch one file of a version's checkpoint, or a range of it",
        media_type="application/octet-stream",
        query=FileQuery,
        also={
            206: "The range that was asked for",
            307: "Location has an URL of the object store, for some minutes and without a token",
        },
        problems=(*_SHOWING, 410, 416),
        needs=DOWNLOAD,
    ),
)
ROUTES: Final = tuple(route._replace(about="workspace") for route in _ROUTES)
