"""Sessions and uses of tokens: what a sign-in gives, and when a token was used last."""

import asyncio
from typing import Final, NamedTuple

from rung.events.changes import IssueToken, NoteTokenUse
from rung.gateway.directory.asking import System, now_ms
from rung.gateway.directory.state import User
from rung.gateway.identity import secret

NOTED_MS: Final = 3_600_000
"""A use is noted if the one noted last is this long ago."""
_NOTED_MAX: Final = 100_000


class Session(NamedTuple):
    """A new session, with its secret."""

    token_id: str
    secret: str
    expires_ms: int
    lasts_s: int


async def begin_session(system: System, user: User, *, hours: float, client: str) -> Session:
    """Sign a user in.

    Raises:
        Refused: the user is no longer active.
    """
    lasts_s = round(hours * 3600)
    session = Session(system.draw_id(), secret.draw(), now_ms() + lasts_s * 1000, lasts_s)
    await system.change(
        IssueToken(
            token_id=session.token_id,
            user_id=user.id,
            digest=secret.digest_of(session.secret),
            kind="session",
            name=client,
            expires_ms=session.expires_ms,
        )
    )
    return session


class Uses:
    """Notes uses of tokens behind the requests, each at most once an hour."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._noted: dict[str, int] = {}
        """Token → when this replica noted a use."""
        self._writing: set[asyncio.Task[None]] = set()

    def note(self, token_id: str) -> None:
        """Note that a token is used now, unless that was noted of late."""
        token = self._system.directory.state.tokens.get(token_id)
        now = now_ms()
        last = max(self._noted.get(token_id, 0), (token and token.used_ms) or 0)
        if token is None or now - last < NOTED_MS:
            return
        if len(self._noted) >= _NOTED_MAX:
            self._noted.clear()
        self._noted[token_id] = now
        writing = asyncio.create_task(self._system.note(NoteTokenUse(token_id=token_id)))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        """Wait until what is noted is on record."""
        await asyncio.gather(*self._writing, return_exceptions=True)
