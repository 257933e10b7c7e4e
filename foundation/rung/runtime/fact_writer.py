"""Appends facts with a time, an origin and its sequence."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from rung.events import Event, Payload, fact
from rung.ledger import Draft, Ledger
from rung.runtime import tracing

CLOCK: Final[ContextVar[Callable[[], float]]] = ContextVar("clock", default=time.time)
"""Returns the time in Unix seconds; a simulation's is its own."""


def now() -> str:
    """Return the time for an envelope: RFC 3339, UTC, milliseconds."""
    moment = datetime.fromtimestamp(CLOCK.get()(), UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


class FactWriter:
    """Appends the facts of one writer.

    The sequence starts from 1, so the origin must be new at each start of the writer; a fact that
    may be written twice needs its own origin and sequence.
    """

    def __init__(self, ledger: Ledger, *, source: str, origin: str) -> None:
        self._ledger = ledger
        self._source = source
        self._origin = origin
        self._sequence = 0

    async def write(
        self,
        data: Payload,
        *,
        origin: str | None = None,
        sequence: int | None = None,
        cause: str | None = None,
    ) -> Event:
        """Append one fact that nobody asked for; durable when it returns.

        Raises:
            LedgerUnavailable: it may not have been written; writing it again under the same
                origin and sequence is safe.
        """
        event = self.stamp(data, origin=origin, sequence=sequence, cause=cause)
        await self._ledger.append([Draft.of(event)])
        return event

    def stamp(  # noqa: PLR0913 - the attributes of the envelope
        self,
        data: Payload,
        *,
        actor: str | None = None,
        onbehalfof: str | None = None,
        origin: str | None = None,
        sequence: int | None = None,
        cause: str | None = None,
    ) -> Event:
        """Return the fact as `write` would append it."""
        assert (origin is None) == (sequence is None), "an origin comes with its own numbers"
        if origin is None or sequence is None:
            self._sequence += 1
            origin, sequence = self._origin, self._sequence
        return fact(
            data,
            source=self._source,
            origin=origin,
            sequence=sequence,
            time=now(),
            actor=actor,
            onbehalfof=onbehalfof,
            cause=cause,
            traceparent=tracing.current(),
        )
