"""Idempotency keys: a request that is sent again is done once.

A key becomes the origin of the fact that the request writes (`client/<key>`, sequence 1), so it is
in the ledger that a key was used and for what; nothing else remembers it. Two requests with one
key wait for each other here; two gateways at once are told apart by the ledger.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from rung.gateway.context import Context, Turn
from rung.gateway.problem import bad_parameter

HEADER: Final = "Idempotency-Key"
LENGTH_MAX: Final = 200
REUSED: Final = "idempotency-key-reused"


def key_of(request: web.Request) -> str | None:
    """Return the origin that the request's key stands for, None without a key.

    Raises:
        Problem: the header cannot be used.
    """
    values = request.headers.getall(HEADER, [])
    if not values:
        return None
    key = values[0]
    if len(values) > 1:
        raise bad_parameter(HEADER, "is given twice; give it once")
    if not 0 < len(key) <= LENGTH_MAX or not all("!" <= letter <= "~" for letter in key):
        raise bad_parameter(
            HEADER, f"must be 1 to {LENGTH_MAX} visible ASCII characters, such as a UUID"
        )
    return f"client/{key}"


@contextlib.asynccontextmanager
async def once(context: Context, key: str | None) -> AsyncIterator[None]:
    """Let one request at a time go on with a key."""
    if key is None:
        yield
        return
    turn = context.turns.setdefault(key, Turn())
    turn.users += 1
    try:
        async with turn.lock:
            yield
    finally:
        turn.users -= 1
        if not turn.users:
            del context.turns[key]
