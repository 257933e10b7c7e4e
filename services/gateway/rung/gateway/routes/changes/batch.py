"""One change of many experiments: what each verb does by itself, reported for each.

The experiments are named or selected by a filter, and changed each by itself: one that is refused
keeps no other one from its change. Under the idempotency key of the request each gets a key of its
own, so a request that was cut short and is sent again does what is left.
"""

import asyncio
from functools import partial
from typing import Final, assert_never

from aiohttp import web

from rung import api
from rung.api import ProblemItem
from rung.gateway.access.authorization import access_of
from rung.gateway.context import check_whole, context_of, find_experiment, find_id, reply
from rung.gateway.problem import Problem
from rung.gateway.projections.experiments import ALL, ExperimentProjection, select_ids, within
from rung.gateway.requests.json_body import record_of
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.upload import read_body
from rung.gateway.requests.writes import key_of, once
from rung.gateway.route import Body, Route
from rung.gateway.routes.changes.control import ask
from rung.gateway.routes.changes.deletion import delete, restore, retain
from rung.gateway.routes.changes.description import describe
from rung.gateway.routes.changes.resources import set_resources
from rung.gateway.routes.experiments import filtered
from rung.gateway.serializers.experiments import name_of

_BYTES_MAX: Final = 1_000_000
_AT_ONCE: Final = 16
_NEEDS: Final = {"describe": "description", "set": "resources", "retain": "retention"}
"""Action → the field that says what it does."""
_PERMISSIONS: Final = {
    "pause": "experiment.edit",
    "resume": "experiment.edit",
    "cancel": "experiment.edit",
    "kill": "experiment.edit",
    "describe": "experiment.edit",
    "retain": "experiment.edit",
    "set": "experiment.spend",
    "delete": "experiment.delete",
    "restore": "experiment.delete",
}
"""Action → the permission on each experiment, that of its own operation."""
_OF_DELETED: Final = ("delete", "restore")
"""Actions on experiments that may be deleted."""


async def change_experiments(request: web.Request) -> web.StreamResponse:
    """Change many experiments, each by itself."""
    read_query(request, NoQuery)
    key = key_of(request)
    wanted = _wanted(await read_body(request, _BYTES_MAX))
    references = list(dict.fromkeys(wanted.ids))
    if wanted.filter is not None:
        hidden = wanted.action == "restore"
        references = await _selected(request, wanted.filter, hidden=hidden)
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def change(reference: str) -> api.BatchItem:
        async with at_once:
            return await _change(request, key, reference, wanted)

    found = await asyncio.gather(*map(change, references), return_exceptions=True)
    items: list[api.BatchItem] = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        items.append(each)
    done = sum(item.outcome == "done" for item in items)
    answer = api.BatchAnswer(
        action=wanted.action,
        dry_run=wanted.dry_run,
        done=done,
        refused=len(items) - done,
        items=items,
    )
    return reply(answer)


async def _selected(request: web.Request, text: str, *, hidden: bool) -> list[str]:
    """Return the ids of the experiments that a filter selects of those that are seen.

    Args:
        request: of the principal.
        text: the filter.
        hidden: of those whose deletion can be taken back.

    Raises:
        Problem: it cannot be read, or selects too many.
    """
    check_whole(context_of(request).models)
    access, most = access_of(request), api.BATCH_MAX
    conditions = [
        within(access.seen),
        *filtered(f"archived:any {text}" if hidden else text, access),
    ]
    found = await context_of(request).models.read(
        ExperimentProjection, partial(select_ids, hidden=hidden), conditions, most + 1
    )
    if len(found) > most:
        raise _invalid("filter", f"selects more than {most:,} experiments; narrow it, or name ids")
    return found


async def _change(
    request: web.Request, key: str | None, reference: str, wanted: api.BatchWanted
) -> api.BatchItem:
    """Change one experiment."""
    found = reference
    try:
        needs = _PERMISSIONS[wanted.action]
        found = await find_id(
            request, reference, deleted=wanted.action in _OF_DELETED, needs=needs
        )
        own = None if key is None else f"{key}/{found}"
        async with once(context_of(request), own):
            return await _act(request, own, found, wanted)
    except Problem as problem:
        return api.BatchItem(
            experiment_id=found,
            name=None,
            outcome="refused",
            kind=problem.kind,
            reason=problem.detail,
        )


async def _act(
    request: web.Request, key: str | None, experiment_id: str, wanted: api.BatchWanted
) -> api.BatchItem:
    """Put the change of one experiment on record.

    Raises:
        Problem: it is refused.
    """
    context, action = context_of(request), wanted.action
    experiment = await find_experiment(
        request,
        experiment_id,
        ALL if action == "retain" else None,
        deleted=action in _OF_DELETED,
    )
    item = api.BatchItem(experiment_id=experiment_id, name=name_of(experiment), outcome="done")
    match action:
        case "pause" | "resume" | "cancel" | "kill":
            await ask(context, key, experiment, action)
        case "delete":
            gone = await delete(
                context,
                key,
                experiment,
                access_of(request),
                force=wanted.force,
                dry_run=wanted.dry_run,
                now=wanted.now,
            )
            item.checkpoint_count = gone.checkpoint_count
            item.checkpoint_bytes = gone.checkpoint_bytes
            item.restorable_until = gone.restorable_until
        case "restore":
            await restore(context, key, experiment)
        case "describe":
            assert wanted.description is not None
            await describe(context, key, experiment, wanted.description)
        case "set":
            assert wanted.resources is not None
            await set_resources(context, key, experiment, wanted.resources)
        case "retain":
            assert wanted.retention is not None
            freed = await retain(
                context, key, experiment, wanted.retention, dry_run=wanted.dry_run
            )
            item.checkpoint_count = len(freed.items)
            item.checkpoint_bytes = freed.size_bytes
        case _:
            assert_never(action)
    return item


def _wanted(body: bytes) -> api.BatchWanted:
    wanted = record_of(body, api.BatchWanted, "invalid-batch")
    if bool(wanted.ids) == (wanted.filter is not None):
        raise _invalid("ids", "give either ids or a filter")
    if wanted.now and wanted.action != "delete":
        raise _invalid("now", f"belongs to delete: action is {wanted.action!r}")
    if wanted.dry_run and wanted.action not in {"delete", "retain"}:
        raise _invalid("dry_run", f"belongs to delete and retain: action is {wanted.action!r}")
    needed = _NEEDS.get(wanted.action)
    for field in _NEEDS.values():
        if (getattr(wanted, field) is not None) != (field == needed):
            is_needed = field == needed
            text = "is missing" if is_needed else "belongs to another action"
            raise _invalid(field, f"{text}: action is {wanted.action!r}")
    return wanted


def _invalid(path: str, text: str) -> Problem:
    items = [ProblemItem(path=path, message=text)]
    return Problem(422, "invalid-batch", f"{path}: {text}", errors=items)


ROUTES: Final = (
    Route(
        "POST",
        "/experiments:batch",
        change_experiments,
        "Change many experiments, named or selected by a filter",
        api.BatchAnswer,
        body=Body("application/json", record=api.BatchWanted),
        idempotent=True,
        problems=(413, 422),
        about="signed-in",
    ),
)
