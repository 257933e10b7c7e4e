"""What trials printed."""

from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from rung import answer
from rung.gateway.context import context_of, experiment_of, reply, trial_of
from rung.gateway.problem import bad_parameter
from rung.gateway.query import read_query, time_ms_of
from rung.gateway.route import Route

Level = Literal["debug", "info", "warning", "error", "critical"]

Order = Literal["oldest", "newest"]

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
    return await _show(request, query, experiment_of(request).id, None)


async def show_trial_logs(request: web.Request) -> web.Response:
    """Show what a trial printed, by time."""
    query = read_query(request, LogQuery)
    experiment, trial = trial_of(request)
    return await _show(request, query, experiment.id, f"{experiment.id}.{trial.index}")


async def _show(
    request: web.Request, query: LogQuery, experiment_id: str, trial_id: str | None
) -> web.Response:
    series = context_of(request).need_series()
    since_ms, until_ms = time_ms_of("since", query.since), time_ms_of("until", query.until)
    try:
        lines, cursor = await series.logs(
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
    except ValueError as error:
        raise bad_parameter("after", str(error)) from error
    items = msgspec.convert(lines, list[answer.LogLine], from_attributes=True)
    return reply(answer.LogPage(items=items, next_cursor=cursor))


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/logs",
        show_experiment_logs,
        "What an experiment's trials printed",
        answer.LogPage,
        query=LogQuery,
        problems=(404, 409),
    ),
    Route(
        "GET",
        "/trials/{trial_id}/logs",
        show_trial_logs,
        "What a trial printed",
        answer.LogPage,
        query=LogQuery,
        problems=(404, 409),
    ),
)
