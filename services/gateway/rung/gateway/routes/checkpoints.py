"""Checkpoints: listed, shown, and fetched as a tar."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta, Struct, structs

from rung import api
from rung.gateway.context import (
    Context,
    checkpoint_of,
    context_of,
    experiment_of,
    reply,
    show_pins,
    trial_of,
)
from rung.gateway.downloads.object_answer import redirect_to, send
from rung.gateway.downloads.tar_download import found_file, open_archive, send_archive
from rung.gateway.problem import Problem, not_found
from rung.gateway.projections.experiment import Checkpoint, Experiment, checkpoint_phase
from rung.gateway.projections.experiments import ALL
from rung.gateway.requests.query import NoQuery, PageQuery, page, read_query
from rung.gateway.route import Route
from rung.gateway.serializers import experiments as serializers
from rung.storage import (
    ObjectDamaged,
    ObjectMissing,
    StoredCheckpoint,
    locate,
    read_manifest,
)


class FileQuery(Struct, forbid_unknown_fields=True):
    """Which file, and how."""

    name: Annotated[str, Meta(max_length=1024, description="one of the checkpoint's files")]
    redirect: Annotated[
        bool, Meta(description="whether an URL of the object store may be answered instead")
    ] = True


async def list_experiment_checkpoints(request: web.Request) -> web.Response:
    """List an experiment's checkpoints in the order of their arrival."""
    query = read_query(request, PageQuery)
    experiment = await experiment_of(request, validations=ALL)
    return await _list(request, experiment, list(experiment.checkpoints.values()), query)


async def list_trial_checkpoints(request: web.Request) -> web.Response:
    """List a trial's checkpoints in the order of their arrival."""
    query = read_query(request, PageQuery)
    experiment, trial = await trial_of(request)
    found = serializers.checkpoints_of(experiment, f"{experiment.id}.{trial.index}")
    return await _list(request, experiment, found, query)


async def _list(
    request: web.Request, experiment: Experiment, found: list[Checkpoint], query: PageQuery
) -> web.Response:
    places, cursor = page(range(len(found)), query, int)
    items = serializers.checkpoints(experiment, [found[place] for place in places])
    await show_pins(request, *items)
    return reply(api.CheckpointList(items=items, next_cursor=cursor))


async def show_checkpoint(request: web.Request) -> web.Response:
    """Show a checkpoint with its files."""
    read_query(request, NoQuery)
    return await reply_checkpoint(request, *await checkpoint_of(request))


async def reply_checkpoint(
    request: web.Request, experiment: Experiment, checkpoint: Checkpoint
) -> web.Response:
    """Return the answer that shows a checkpoint with its files."""
    stored = None
    if checkpoint_phase(checkpoint) != "deleted":
        try:
            stored = await _manifest(context_of(request), experiment, checkpoint)
        except (ObjectMissing, ObjectDamaged):
            stored = None  # its state says the rest
    shown = serializers.checkpoint(experiment, checkpoint)
    await show_pins(request, shown)
    files = stored.manifest.files if stored else {}
    return reply(
        api.CheckpointDetail(
            **structs.asdict(shown),
            files=[
                api.CheckpointFile(name=name, size_bytes=entry.size_bytes, blake3=entry.blake3)
                for name, entry in files.items()
            ],
            metadata=stored.manifest.metadata if stored else {},
        )
    )


async def fetch_checkpoint(request: web.Request) -> web.StreamResponse:
    """Send a checkpoint's files and its manifest as a tar."""
    read_query(request, NoQuery)
    return await send_checkpoint(request, *await checkpoint_of(request))


async def send_checkpoint(
    request: web.Request, experiment: Experiment, checkpoint: Checkpoint
) -> web.StreamResponse:
    """Send the files of a checkpoint and its manifest as a tar.

    Raises:
        Problem: it is deleted, or found damaged.
    """
    context = context_of(request)
    async with _readable(context, experiment, checkpoint) as (area, stored):
        archive = await asyncio.to_thread(open_archive, context.store, area, stored)
        return await send_archive(request, context.integrity, archive)


async def fetch_checkpoint_file(request: web.Request) -> web.StreamResponse:
    """Send one file of a checkpoint, or redirect to the object store."""
    query = read_query(request, FileQuery)
    return await send_checkpoint_file(request, query, *await checkpoint_of(request))


async def send_checkpoint_file(
    request: web.Request, query: FileQuery, experiment: Experiment, checkpoint: Checkpoint
) -> web.StreamResponse:
    """Send one file of a checkpoint, or redirect to the object store.

    Raises:
        Problem: it has no such file, is deleted, or found damaged.
    """
    context = context_of(request)
    async with _readable(context, experiment, checkpoint) as (area, stored):
        manifest = stored.manifest
        if query.name not in manifest.files:
            what = f"file of checkpoint {manifest.checkpoint_id}"
            raise not_found(what, query.name, "GET /checkpoints/ID lists its files")
        places = await asyncio.to_thread(locate, context.store.area(area), stored)
        found = found_file(manifest, query.name, area, places)
        if query.redirect and (redirection := await redirect_to(context.store, found)):
            return redirection
        return await send(request, context.integrity, found)


@contextlib.asynccontextmanager
async def _readable(
    context: Context, experiment: Experiment, checkpoint: Checkpoint
) -> AsyncIterator[tuple[str, StoredCheckpoint]]:
    """Give a checkpoint as it is stored, after its storage area.

    Raises:
        Problem: it is deleted, or found damaged, also within the context.
    """
    if checkpoint_phase(checkpoint) == "deleted":
        raise _gone(checkpoint)
    try:
        stored = await _manifest(context, experiment, checkpoint)
        yield serializers.submission_of(experiment).area, stored
    except ObjectMissing:
        raise _gone(checkpoint) from None
    except ObjectDamaged as error:
        raise _damaged(checkpoint, error) from None


async def _manifest(
    context: Context, experiment: Experiment, checkpoint: Checkpoint
) -> StoredCheckpoint:
    """Return the manifest that is on record.

    Raises:
        ObjectMissing: there is none.
        ObjectDamaged: it is another one, or none at all.
    """
    store = context.store.area(serializers.submission_of(experiment).area)
    stored = await asyncio.to_thread(read_manifest, store, experiment.id, checkpoint.id)
    if checkpoint.digest and stored.digest != checkpoint.digest:
        raise ObjectDamaged(
            f"checkpoint {checkpoint.id}: manifest.json is not the one on record (its digest is "
            f"{stored.digest[:12]}…, not {checkpoint.digest[:12]}…)"
        )
    return stored


def _damaged(checkpoint: Checkpoint, error: ObjectDamaged) -> Problem:
    detail = f"{error}; choose another checkpoint of trial {checkpoint.trial_id}"
    return Problem(409, "damaged", detail)


def _gone(checkpoint: Checkpoint) -> Problem:
    reason = checkpoint.retired or checkpoint.damaged or "its files are not in the object store"
    return Problem(410, "gone", f"checkpoint {checkpoint.id} is deleted: {reason}")


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/checkpoints",
        list_experiment_checkpoints,
        "List an experiment's checkpoints",
        api.CheckpointList,
        query=PageQuery,
        problems=(404, 409),
        needs="experiment.view",
        complete=True,
    ),
    Route(
        "GET",
        "/trials/{trial_id}/checkpoints",
        list_trial_checkpoints,
        "List a trial's checkpoints",
        api.CheckpointList,
        query=PageQuery,
        problems=(404, 409),
        needs="experiment.view",
        complete=True,
    ),
    Route(
        "GET",
        "/checkpoints/{checkpoint_id}",
        show_checkpoint,
        "Show a checkpoint with its files",
        api.CheckpointDetail,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/checkpoints/{checkpoint_id}/archive",
        fetch_checkpoint,
        "Fetch a checkpoint's files and manifest as a tar",
        media_type="application/x-tar",
        problems=(404, 409),
        needs="checkpoint.download",
    ),
    Route(
        "GET",
        "/checkpoints/{checkpoint_id}/file",
        fetch_checkpoint_file,
        "Fetch one file of a checkpoint, or a range of it",
        media_type="application/octet-stream",
        query=FileQuery,
        also={
            206: "The range that was asked for",
            307: "Location has an URL of the object store, for some minutes and without a token",
        },
        problems=(404, 409, 416),
        needs="checkpoint.download",
    ),
)
