"""`Rung-After`: clients read what they wrote, whichever replica answers.

Each answer to a write has a header with an opaque token: how far the ledger reached with what was
written, and with what the client had written before. A request that carries it waits until this
replica has folded that far; where that takes too long it is answered 503, to be sent again.
A stream of events has such a token, too, with the places that its ids are about.
"""

import base64
import binascii
from contextvars import ContextVar
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from rung.events import topic
from rung.events.topic import TOPICS
from rung.gateway.context import Context, context_of
from rung.gateway.problem import bad_parameter, unavailable
from rung.ledger import Ledger
from rung.runtime.projection.runner import Place

HEADER: Final = "Rung-After"

Positions = dict[Place, int]
"""Topic and partition → the position of the last record."""

_written: ContextVar[Positions | None] = ContextVar("written", default=None)
"""The positions of facts that this request wrote."""

_decoder: Final = msgspec.json.Decoder(tuple[str, list[tuple[str, int, int]]])


def note(positions: Positions) -> None:
    """Note the positions of facts that the present request wrote, in whichever order."""
    noted = _written.get()
    if noted is not None:
        for place, position in positions.items():
            noted[place] = max(position, noted.get(place, position))


@web.middleware
async def read_writes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Wait for the client's earlier writes; add the token of this request's to the answer.

    Raises:
        Problem: the header is no such token, or what it names is not folded yet.
    """
    context = context_of(request)
    known = _read(request, context.ledger.id)
    if known and not await _is_shown(context, known, wait_s=0.0):
        known = await _existing(known, context.ledger)
        wait_s = context.settings.seen_timeout
        if not await _is_shown(context, known, wait_s=wait_s):
            behind = context.models.behind() or "it is behind"
            raise unavailable(f"this server does not show yet what you wrote before: {behind}")
    noted: Positions = {}
    token = _written.set(noted)
    try:
        response = await handler(request)
    finally:
        _written.reset(token)
    if noted:
        response.headers[HEADER] = token_of(context.ledger.id, {**known, **noted})
    return response


def _read(request: web.Request, ledger_id: str) -> Positions:
    text = request.headers.get(HEADER)
    if not text:
        return {}
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        of, rows = _decoder.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, msgspec.DecodeError):
        detail = "give the header of the same name of an answer to a write, unchanged"
        raise bad_parameter(HEADER, detail) from None
    if of != ledger_id:
        return {}  # it was drawn from another ledger: what it named is not to be waited for
    return {(name, partition): position for name, partition, position in rows}


async def _is_shown(context: Context, positions: Positions, *, wait_s: float) -> bool:
    """Wait until the read models and the directory show records; return whether they do."""
    decided = positions.get((topic.DIRECTORY, context.directory.partition), -1)
    return await context.models.reached(positions, wait_s=wait_s) and (
        await context.directory.reached(decided, wait_s=wait_s)
    )


async def _existing(positions: Positions, ledger: Ledger) -> Positions:
    """Return the positions that the ledger has: one restored from a backup may lack some."""
    return {
        (name, partition): position
        for (name, partition), position in positions.items()
        if name in TOPICS
        and 0 <= partition < ledger.partitions(name)
        and position < await ledger.end(name, partition)
    }


def token_of(ledger_id: str, positions: Positions) -> str:
    """Return the token that stands for positions in a ledger."""
    rows = [(*place, position) for place, position in positions.items()]
    return base64.urlsafe_b64encode(msgspec.json.encode((ledger_id, rows))).decode().rstrip("=")
