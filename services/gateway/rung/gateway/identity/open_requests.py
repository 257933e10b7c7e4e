"""Open requests: streams and downloads end when who asked may no longer have them.

Each request is checked once, at its beginning; a stream may last for days. So all that are open
are looked through twice a second: where a token is revoked or has expired, its user is not active
any more, or a role, a group or an assignment is gone that gave something, the connection is cut. A
client that still may comes back by itself and goes on where it was.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

import structlog
from aiohttp import web

from rung.gateway.directory.directory import Directory
from rung.gateway.directory.state import places_of
from rung.gateway.identity.principal import Principal

SWEEP_S: Final = 0.5
_AT_ONCE: Final = 20
"""Principals that are looked at between two turns of the event loop."""

_Rights = dict[str | None, frozenset[str]]
_log = structlog.get_logger()


class OpenRequests:
    """The requests that are being answered, by who asked."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._open: dict[Principal, dict[int, web.Request]] = {}
        self._rights: dict[Principal, _Rights] = {}
        """What each had when the first of the open requests began, or came to have since."""

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    @contextlib.contextmanager
    def including(self, request: web.Request, principal: Principal) -> Iterator[None]:
        """Count a request among the open ones while the context lasts."""
        requests = self._open.get(principal)
        if requests is None:
            requests = self._open[principal] = {}
            self._rights[principal] = self._rights_of(principal)
        requests[id(request)] = request
        try:
            yield
        finally:
            requests.pop(id(request), None)
            if not requests and self._open.get(principal) is requests:
                del self._open[principal], self._rights[principal]

    async def watch(self) -> None:
        """Cut the connections of requests whose principals lost something, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for number, principal in enumerate(list(self._open)):
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
                if principal in self._open:
                    self._check(principal)

    def _check(self, principal: Principal) -> None:
        before = self._rights[principal]
        now = self._rights_of(principal)
        valid = self._directory.is_valid(principal, now_ms=time.time_ns() // 1_000_000)
        kept = all(
            held <= self._directory.permissions(principal, place) for place, held in before.items()
        )
        if valid and kept:
            self._rights[principal] = now
            return
        requests = self._open.pop(principal)
        del self._rights[principal]
        _log.info("connections cut", user=principal.user_id, token=principal.via, valid=valid)
        for request in requests.values():
            if request.transport is not None:
                request.transport.abort()

    def _rights_of(self, principal: Principal) -> _Rights:
        directory = self._directory
        places = places_of(directory.state, principal.on_behalf_of or principal.user_id)
        return {place: directory.permissions(principal, place) for place in places}
