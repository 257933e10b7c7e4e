"""Dead letters: messages that a reader rejected, listed, retried and dropped.

The answer to a request means that it is on record; the reader carries it out and records the
result. A request that its reader would not see is refused.
"""

from typing import Annotated, Any, Final, Literal

from aiohttp import web
from msgspec import Meta

from rung import api
from rung.events import topic
from rung.events.deadletter import FactDropped, FactRetried, MessageDropped, MessageRetryRequested
from rung.gateway.context import Context, Readers, context_of, missing, reply
from rung.gateway.problem import Problem, unavailable
from rung.gateway.projections.deadletters import (
    DeadLetter,
    DeadLetterProjection,
    Request,
    read_dead_letter,
    read_dead_letters,
    request_of,
    request_text,
)
from rung.gateway.requests.query import NoQuery, PageQuery, read_cursor, read_query, write_cursor
from rung.gateway.requests.writes import is_repeated, key_of, once, stamp, write
from rung.gateway.route import Route

_PATH: Final = "/deadletters/{reader}/{topic}/{partition}/{position}"


class DeadLetterQuery(PageQuery, forbid_unknown_fields=True):
    """Which dead letters."""

    state: Annotated[api.DeadLetterState, Meta(description="only those in this state")] | None = (
        None
    )


async def list_dead_letters(request: web.Request) -> web.Response:
    """List messages that a reader could not take in, the newest first."""
    query = read_query(request, DeadLetterQuery)
    context = context_of(request)
    before = read_cursor(query.cursor, (str, str))
    found = await context.models.read(
        DeadLetterProjection, read_dead_letters, query.state, before=before, limit=query.limit + 1
    )
    found += [
        it
        for it in await context.models.not_shown()
        if query.state in {None, it.state} and (before is None or (it.at, it.id) < before)
    ]
    found.sort(key=lambda it: (it.at, it.id), reverse=True)
    shown, more = found[: query.limit], len(found) > query.limit
    cursor = write_cursor((shown[-1].at, shown[-1].id)) if more else None
    items = [_told(context, letter) for letter in shown]
    count = await context.models.count_dead_letters()
    return reply(api.DeadLetterList(items=items, next_cursor=cursor, count=count))


async def show_dead_letter(request: web.Request) -> web.Response:
    """Show a message that a reader could not take in."""
    read_query(request, NoQuery)
    return reply(_told(context_of(request), await _dead_letter_of(request)))


async def retry_dead_letter(request: web.Request) -> web.Response:
    """Request that a reader takes a message again."""
    return await _ask(request, "retry")


async def drop_dead_letter(request: web.Request) -> web.Response:
    """Request that a reader skips a message for ever."""
    return await _ask(request, "drop")


async def _ask(request: web.Request, what: Literal["retry", "drop"]) -> web.Response:
    read_query(request, NoQuery)
    context, key = context_of(request), key_of(request)
    letter = await _dead_letter_of(request)
    fact = _request_about(letter, what)
    async with once(context, key):
        before = await context.models.read(DeadLetterProjection, request_of, key)
        subject, name = _place_of(fact)
        if not await is_repeated(
            context, request_text(fact), before, DeadLetterProjection, subject, name=name
        ):
            _check(context.parts.readers, letter, what)
            await write(context, [stamp(context, key, fact)])
    return reply(api.DeadLetterAsked(id=letter.id, requested=what), status=202)


def _request_about(letter: DeadLetter, what: Literal["retry", "drop"]) -> Request:
    """Return the fact that something is asked about a dead letter."""
    place: dict[str, Any] = {
        "topic": letter.topic,
        "partition": letter.partition,
        "position": letter.position,
        "key": letter.key,
        "reader": letter.reader,
    }
    if letter.rejection is None:
        return MessageDropped(**place) if what == "drop" else MessageRetryRequested(**place)
    kind = FactDropped if what == "drop" else FactRetried
    return kind(**place, rejection=letter.rejection)


def _place_of(fact: Request) -> tuple[str, str]:
    """Return the key and the topic of a request."""
    if isinstance(fact, FactDropped | FactRetried):
        return fact.key, fact.topic
    return fact.topic, topic.DEADLETTER


async def _dead_letter_of(request: web.Request) -> DeadLetter:
    """Return the dead letter that the path names.

    Raises:
        Problem: there is none.
    """
    place = request.match_info
    name = f"{place['reader']}/{place['topic']}/{place['partition']}/{place['position']}"
    models = context_of(request).models
    found = await models.read(DeadLetterProjection, read_dead_letter, name)
    found = found or next((it for it in await models.not_shown() if it.id == name), None)
    if found is None:
        hint = "`rung deadletter list --all` and GET /api/v1/deadletters list the newest"
        raise missing(request, "dead letter", name, hint)
    return found


def _check(readers: Readers | None, letter: DeadLetter, what: Literal["retry", "drop"]) -> None:
    """Refuse what would have no effect.

    Raises:
        Problem: why it would not.
    """
    if readers is None:
        raise unavailable("this server asks nothing of readers; ask `rung service gateway`")
    if (letter.reader, letter.topic) not in readers:
        who = ", ".join(f"{name} (of {source})" for name, source in sorted(readers))
        detail = (
            f"{letter.reader} takes no requests about messages of {letter.topic}; those that take"
            f" some are {who}"
        )
        raise Problem(409, "no-requests", detail)
    if letter.settled:
        how = "dropped" if letter.state == "dropped" else "taken after all, or passed over,"
        raise Problem(409, "settled", f"dead letter {letter.id} was {how} already")
    if what == "retry" and readers[letter.reader, letter.topic] == "projection":
        detail = (
            f"{letter.reader} folds everything again by itself, with {letter.id}, once it is"
            " started in another release; by this one a retry would be in vain"
        )
        raise Problem(409, "no-requests", detail)
    if letter.rejection is not None and letter.state == "retrying":
        detail = f"dead letter {letter.id} is being retried; it is open again if that fails"
        raise Problem(409, "retrying", detail)


def _told(context: Context, letter: DeadLetter) -> api.DeadLetter:
    readers = context.parts.readers or {}
    return api.DeadLetter(
        id=letter.id,
        at=letter.at,
        topic=letter.topic,
        partition=letter.partition,
        position=letter.position,
        key=letter.key,
        reader=letter.reader,
        reason=letter.reason,
        value=letter.value,
        state=letter.state,
        reader_kind=readers.get((letter.reader, letter.topic)),
    )


ROUTES: Final = (
    Route(
        "GET",
        "/deadletters",
        list_dead_letters,
        "List rejected messages, the newest first",
        api.DeadLetterList,
        query=DeadLetterQuery,
        needs="deadletter.view",
        about="cluster",
        complete=True,
    ),
    Route(
        "GET",
        _PATH,
        show_dead_letter,
        "Show a rejected message",
        api.DeadLetter,
        problems=(404,),
        needs="deadletter.view",
        about="cluster",
    ),
    Route(
        "POST",
        f"{_PATH}/retry",
        retry_dead_letter,
        "Have a reader take a message again that it rejected",
        api.DeadLetterAsked,
        status=202,
        idempotent=True,
        problems=(404, 409, 422),
        needs="deadletter.edit",
        about="cluster",
    ),
    Route(
        "POST",
        f"{_PATH}/drop",
        drop_dead_letter,
        "Have a reader pass over a message that it rejected, for ever",
        api.DeadLetterAsked,
        status=202,
        idempotent=True,
        problems=(404, 409, 422),
        needs="deadletter.edit",
        about="cluster",
    ),
)
