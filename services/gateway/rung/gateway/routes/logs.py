"""Logs of trials: shown and deleted."""

import time
from typing import Annotated, Final, Literal

from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events.metric import LogsDeleted
from rung.gateway.access.authorization import access_of
from rung.gateway.context import (
    context_of,
    experiment_id_of,
    find_id,
    reply,
    trial_of,
)
from rung.gateway.problem import bad_parameter
from rung.gateway.requests.query import read_query, time_ms_of
from rung.gateway.requests.writes import key_of, once, stamp
from rung.gateway.route import Route
from rung.ledger import Draft

Level = Literal["debug", "info", "warning", "error", "critical"]

Order = Literal["oldest", "newest"]

_DELETE: Final = "experiment.delete"
LIMIT_MAX: Final = 20_000

_When = Annotated[str, Meta(max_length=60)]


class LogQuery(Struct, forbid_unknown_fields=True):
    """Which lines."""

    rank: Annotated[int, Meta(ge=0, le=1_000_000, description="of this process alone")] | None = (
        None
    )
    level: Annotated[Level, Meta(description="this severe or more")] | None = None
    text: Annotated[str, Meta(max_length=1_000, description="containing this")] | None = None
    since: Annotated[_When, Meta(description="RFC 3339, or Unix time in ms")] | None = None
    until: Annotated[_When, Meta(description="RFC 3339, or Unix time in ms")] | None = None
    after: Annotated[str, Meta(max_length=2_000, description="`next_cursor`")] | None = None
    order: Annotated[
        Order, Meta(description="from the beginning on, or from the end back; `after` too")
    ] = "oldest"
    limit: Annotated[
        int,
        Meta(ge=1, le=LIMIT_MAX, description="lines at most; a page of long ones has fewer"),
    ] = 200


async def show_experiment_logs(request: web.Request) -> web.Response:
    """Show what an experiment's trials printed, by time."""
    query = read_query(request, LogQuery)
    return await _show(request, query, await experiment_id_of(request), None)


async def show_trial_logs(request: web.Request) -> web.Response:
    """Show what a trial printed, by time."""
    query = read_query(request, LogQuery)
    experiment, trial = await trial_of(request)
    return await _show(request, query, experiment.id, f"{experiment.id}.{trial.index}")


async def _show(
    request: web.Request, query: LogQuery, experiment_id: str, trial_id: str | None
) -> web.Response:
    since_ms, until_ms = time_ms_of("since", query.since), time_ms_of("until", query.until)
    series = context_of(request).need_series()
    try:
        lines, cursor = await series.logs(
            api.LogSelection(
                experiment_id=experiment_id,
                trial_id=trial_id,
                rank=query.rank,
                level=query.level,
                text=query.text,
                since_ms=since_ms,
                until_ms=until_ms,
                after=query.after,
                limit=query.limit,
                order=query.order,
            )
        )
    except ValueError as error:
        raise bad_parameter("after", str(error)) from error
    return reply(api.LogPage(items=lines, next_cursor=cursor))


class CollectQuery(Struct, forbid_unknown_fields=True):
    """Which lines to delete."""

    experiment: (
        Annotated[str, Meta(max_length=200, description="of this experiment alone")] | None
    ) = None
    before: (
        Annotated[_When, Meta(description="printed before: RFC 3339, or Unix time in ms")] | None
    ) = None
    dry_run: Annotated[bool, Meta(description="only say what would be deleted")] = False


async def collect_logs(request: web.Request) -> web.Response:
    """Delete printed lines of an experiment, or all before a time; what was said is on record."""
    query = read_query(request, CollectQuery)
    context, key = context_of(request), key_of(request)
    if query.experiment is None and query.before is None:
        raise bad_parameter("before", "give a time, or an experiment: not all lines of all")
    found = None
    if query.experiment is not None:
        found = await find_id(request, query.experiment, needs=_DELETE)
    given = time_ms_of("before", query.before)
    before_ms = int(time.time() * 1000) if given is None else given
    async with once(context, key):
        sizes = await context.need_series().log_sizes(found, before_ms)
        able = access_of(request).projects_with(_DELETE)
        if able is not None:
            projects = await context.models.projects_of(each.experiment_id for each in sizes)
            sizes = [each for each in sizes if projects.get(each.experiment_id) in able]
        if sizes and not query.dry_run:
            await context.ledger.append(
                [
                    Draft.of(fact)
                    for number, each in enumerate(sizes, 1)
                    for fact in [
                        stamp(
                            context,
                            key,
                            LogsDeleted(
                                experiment_id=each.experiment_id,
                                trial_id=each.trial_id,
                                before_ms=before_ms,
                                lines=each.lines,
                                size_bytes=each.size_bytes,
                            ),
                            number=number,
                        )
                    ]
                ]
            )
    items: dict[str, api.LogsOf] = {}
    for each in sizes:
        item = items.setdefault(
            each.experiment_id,
            api.LogsOf(experiment_id=each.experiment_id, trials=0, lines=0, size_bytes=0),
        )
        item.trials += 1
        item.lines += each.lines
        item.size_bytes += each.size_bytes
    return reply(
        api.LogsCollected(
            before_ms=before_ms,
            dry_run=query.dry_run,
            items=list(items.values()),
            lines=sum(each.lines for each in sizes),
            size_bytes=sum(each.size_bytes for each in sizes),
        )
    )


ROUTES: Final = (
    Route(
        "POST",
        "/logs/collect",
        collect_logs,
        "Delete printed lines",
        api.LogsCollected,
        query=CollectQuery,
        idempotent=True,
        problems=(404, 409, 410),
        needs="experiment.delete",
        about="workspace",
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/logs",
        show_experiment_logs,
        "What an experiment's trials printed",
        api.LogPage,
        query=LogQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/trials/{trial_id}/logs",
        show_trial_logs,
        "What a trial printed",
        api.LogPage,
        query=LogQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
)
