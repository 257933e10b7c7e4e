"""The log of acts: who asked for what, listed and streamed."""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events import UndecodableEvent
from rung.events.codec import decode_handled
from rung.gateway.access.authorization import AUDIT, access_of, forbidden
from rung.gateway.context import context_of, find_id, reply
from rung.gateway.directory.directory import Directory
from rung.gateway.problem import bad_parameter
from rung.gateway.projections.acts import Act, ActProjection, ActSelection, act_of, read_acts
from rung.gateway.projections.filter import InvalidFilter, time_of
from rung.gateway.requests.query import PageQuery, read_cursor, read_query, write_cursor
from rung.gateway.route import Route
from rung.gateway.streams.feed import Frame, Interest, Source, end_of, id_of
from rung.gateway.streams.sse import stream
from rung.ledger import Ledger, Record
from rung.runtime.processor.processor import types_of

_PREFIX: Final = "rung."
_TYPES: Final = types_of(ActProjection.handles)
_encoder: Final = msgspec.json.Encoder()

_Who = Annotated[
    str, Meta(max_length=200, description="name or id of a user who asked, or for whom one did")
]
_What = Annotated[
    str,
    Meta(
        max_length=100,
        description="beginning of the event's type, with `rung.` or without: `trial.kill`",
    ),
]
_Experiment = Annotated[str, Meta(max_length=200, description="about this experiment alone")]
_When = Annotated[
    str,
    Meta(
        max_length=60,
        description="2026-11-23, 2026-11-23T12:00 (UTC), or how long ago: 30m, 12h, 7d, 2w",
    ),
]


class ActQuery(PageQuery, forbid_unknown_fields=True):
    """Which acts."""

    who: _Who | None = None
    since: _When | None = None
    until: _When | None = None
    experiment: _Experiment | None = None
    what: _What | None = None


class ActStreamQuery(Struct, forbid_unknown_fields=True, rename={"begin": "from"}):
    """Where to begin, and which acts."""

    begin: Annotated[
        Literal["start", "now"],
        Meta(description="send all that there is first, or only what is new"),
    ] = "start"
    who: _Who | None = None
    experiment: _Experiment | None = None
    what: _What | None = None


async def list_acts(request: web.Request) -> web.Response:
    """List acts, the newest first."""
    query = read_query(request, ActQuery)
    before = read_cursor(query.cursor, (str, str))
    selection = await _selection(request, query.who, query.experiment, query.what)
    selection = msgspec.structs.replace(
        selection, since=_time("since", query.since), until=_time("until", query.until)
    )
    context = context_of(request)
    found, positions = await context.models.read(
        ActProjection, read_acts, selection, before=before, limit=query.limit + 1
    )
    shown, more = found[: query.limit], len(found) > query.limit
    return reply(
        api.ActList(
            items=[_told(act, context.directory) for act in shown],
            next_cursor=write_cursor((shown[-1].at, shown[-1].id)) if more else None,
            last_event_id=id_of([positions.get(it, 0) for it in _sources(context.ledger)]),
        )
    )


async def stream_acts(request: web.Request) -> web.StreamResponse:
    """Stream acts under `act`, in the order of each partition; a repeated one has its id."""
    query = read_query(request, ActStreamQuery)
    selection = await _selection(request, query.who, query.experiment, query.what)
    ledger, directory = context_of(request).ledger, context_of(request).directory
    sources = _sources(ledger)
    starts = await end_of(ledger, sources) if query.begin == "now" else [0] * len(sources)

    def render(record: Record) -> Frame | None:
        try:
            event = decode_handled(record.value, _TYPES)
        except UndecodableEvent:
            return None  # it is among the dead letters
        act = None if event is None else act_of(event)
        if act is None or not selection.has(act):
            return None
        return Frame("act", _encoder.encode(_told(act, directory)))

    return await stream(request, sources, starts, Interest(None, ("acts", selection), render))


def _sources(ledger: Ledger) -> list[Source]:
    return [
        Source(name, partition)
        for name in (ActProjection.facts, *ActProjection.streams)
        for partition in range(ledger.partitions(name))
    ]


async def _selection(
    request: web.Request, who: str | None, experiment: str | None, what: str | None
) -> ActSelection:
    """Return what a request asks for, of what it may see.

    That is all of an experiment that it sees, and of the installation with `audit.view`; without
    that, what was done by or for its own principal, unless its token is limited: its user has
    done more than such a token may see.

    Raises:
        Problem: there is no such experiment; or it may not see what others did, or where.
    """
    access = access_of(request)
    principal = access.principal
    own = principal.user_id
    user = access.directory.user_by_name(who or "")
    who = who if user is None else user.id
    if experiment is None and not access.may(AUDIT):
        if who not in {None, own}:
            raise forbidden(AUDIT, "the log of what others did", in_cluster=True)
        if principal.workspace is not None or AUDIT not in (principal.scope or {AUDIT}):
            raise forbidden(AUDIT, "the log, by a token that is limited,", in_cluster=True)
        who = own
    return ActSelection(
        who=who,
        experiment_id=experiment and await find_id(request, experiment, deleted=True),
        what=what and f"{_PREFIX}{what.removeprefix(_PREFIX)}",
    )


def _time(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return time_of(value, datetime.now(UTC))
    except InvalidFilter as error:
        raise bad_parameter(name, str(error)) from None


def _told(act: Act, directory: Directory) -> api.Act:
    told = msgspec.convert(act, api.Act, from_attributes=True)
    told.actor_name = _name(act.actor, directory)
    told.on_behalf_of_name = _name(act.on_behalf_of, directory)
    return told


def _name(user_id: str | None, directory: Directory) -> str | None:
    user = directory.state.users.get(user_id or "")
    return None if user is None else user.name


ROUTES: Final = (
    Route(
        "GET",
        "/log",
        list_acts,
        "Who asked for what, the newest first",
        api.ActList,
        query=ActQuery,
        problems=(404, 409),
        about="signed-in",
        complete=True,
    ),
    Route(
        "GET",
        "/log/stream",
        stream_acts,
        "Who asks for what, live",
        media_type="text/event-stream",
        query=ActStreamQuery,
        problems=(404, 409),
        about="signed-in",
    ),
)
