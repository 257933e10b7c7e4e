"""Asks the directory for changes, and awaits its decisions.

A request is a fact; the processor may run in another replica, and its decision is awaited in the
directory of this one. `System` asks for the gateway itself, which signs people in, and for whom it
is told to; `Asking` is one request of a client, with its Idempotency-Key: its id is made of the
key, and so are the ids of what it creates, so whichever gateway it is sent to again, it is the
same request.
"""

import asyncio
import contextlib
import hashlib
import secrets
from typing import Final, NamedTuple

import structlog
from aiohttp import web

from rung.api import ProblemItem
from rung.events import RungError, topic
from rung.events.changes import Change
from rung.events.directory import (
    DIRECTORY,
    ROOT,
    SYSTEM,
    ChangeRefused,
    ChangeRequested,
    DirectoryChanged,
    Refusal,
)
from rung.gateway.context import Context, context_of
from rung.gateway.directory.directory import Directory
from rung.gateway.identity.principal import ADMIN, PRINCIPAL, Principal
from rung.gateway.problem import Problem
from rung.gateway.projections.answers import DirectoryProjection, answer_of
from rung.gateway.requests import after
from rung.gateway.requests.writes import key_of, once, reused, stamp_by
from rung.ledger import Draft, Ledger
from rung.runtime import FactWriter
from rung.runtime.fact_writer import CLOCK
from rung.runtime.levels import InstallationLevel

PATIENCE_S: Final = 10.0
"""How long a decision is awaited: longer than a processor takes to start elsewhere."""
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH: Final = 10
_STATUSES: Final[dict[Refusal, int]] = {
    "forbidden": 403,
    "beyond": 403,
    "revoked": 401,
    "missing": 404,
    "taken": 409,
    "invalid": 422,
    "changed": 412,
    "archived": 409,
    "built-in": 409,
    "last-administrator": 409,
    "gone": 410,
}

_log = structlog.get_logger()


class Refused(Exception):
    """The directory refuses a change.

    Attributes:
        code: which kind of refusal it is.
        field: of the change that is at fault; empty: none.
    """

    def __init__(self, answer: ChangeRefused) -> None:
        self.code: Final = answer.code
        self.field: Final = answer.field
        super().__init__(answer.reason)

    def problem(self) -> Problem:
        """Return it as what a client is answered, with the field that is at fault."""
        items = [ProblemItem(path=self.field, message=str(self))] if self.field else None
        return Problem(_STATUSES[self.code], self.code, str(self), errors=items)


class Undecided(RungError):
    """A request is on record and not decided so far; it may be, later."""

    def __init__(self) -> None:
        super().__init__(
            "the request is on record, and not decided yet: does a gateway run whose replica has"
            " the directory (`rung cluster status`)?"
        )


class System:
    """Asks the directory for changes, and waits for its decisions.

    Attributes:
        directory: as this replica has folded it.
    """

    def __init__(
        self, ledger: Ledger, directory: Directory, writer: FactWriter, level: InstallationLevel
    ) -> None:
        self.directory: Final = directory
        self._ledger = ledger
        self._writer = writer
        self._level = level

    @classmethod
    def of(cls, context: Context) -> "System":
        """Return what asks with the parts of an application."""
        return cls(context.ledger, context.directory, context.writer, context.level)

    async def ask(
        self,
        change: Change,
        principal: Principal | None = None,
        *,
        expected: int | None = None,
        request_id: str | None = None,
        key: str | None = None,
    ) -> DirectoryChanged | ChangeRefused:
        """Ask for a change, and return the decision once this replica has folded it.

        Args:
            change: what is asked for.
            principal: who asks; None: the gateway itself, which signs people in.
            expected: the version of what it is about that who asks had seen; None: any.
            request_id: of the request; None: one is drawn.
            key: the origin that its Idempotency-Key stands for; None: there is none.

        Raises:
            LedgerUnavailable: the request may not have been written.
            Undecided: it is not decided so far.
        """
        request_id = request_id or secrets.token_hex(16)
        await self._write(change, principal, request_id, expected=expected, key=key)
        answer_to = self.directory.answer_to
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.directory.until(lambda: answer_to(request_id) is not None)
        answer = answer_to(request_id)
        if answer is None:
            raise Undecided
        return answer

    async def note(self, change: Change) -> None:
        """Ask for a change by the gateway itself; return once the request is on record.

        Raises:
            LedgerUnavailable: the request may not have been written.
        """
        await self._write(change, None, secrets.token_hex(16))

    async def _write(
        self,
        change: Change,
        principal: Principal | None,
        request_id: str,
        *,
        expected: int | None = None,
        key: str | None = None,
    ) -> None:
        asker = principal or Principal(user_id=SYSTEM, name=SYSTEM, via=ROOT)
        data = ChangeRequested(
            request_id=request_id,
            by=asker.user_id,
            via=asker.via,
            on_behalf_of=asker.on_behalf_of,
            at_ms=now_ms(),
            change=change,
            expected=expected,
            level=await self._level.read(),
        )
        event = stamp_by(self._writer, principal, key, data)
        await self._ledger.append([Draft.of(event)])
        _log.info("asked", id=event.id, type=event.type, subject=event.subject)

    async def change(
        self, change: Change, principal: Principal | None = None, *, expected: int | None = None
    ) -> DirectoryChanged:
        """Make a change; return the decision once this replica has folded it.

        Args:
            change: what is asked for.
            principal: who asks; None: the gateway itself.
            expected: the version of what it is about that who asks had seen; None: any.

        Raises:
            Refused: the directory does not allow it.
            LedgerUnavailable: the request may not have been written.
            Undecided: it is not decided so far.
        """
        answer = await self.ask(change, principal, expected=expected)
        if isinstance(answer, ChangeRefused):
            raise Refused(answer)
        return answer

    async def attempt(self, change: Change) -> None:
        """Make a change by the gateway itself; a refusal is logged."""
        try:
            await self.change(change)
        except Refused as refused:
            _log.info("change refused", change=type(change).__name__, reason=str(refused))

    def draw_id(self) -> str:
        """Return an id that nothing has."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))


class Asking(NamedTuple):
    """A request of a client for a change of the directory."""

    context: Context
    principal: Principal
    key: str | None
    """The origin that its Idempotency-Key stands for, None without one."""
    id: str
    """Of the request."""

    @classmethod
    def of(cls, request: web.Request) -> "Asking":
        """Return what a client asks.

        Raises:
            Problem: its Idempotency-Key cannot be used.
        """
        key, principal = key_of(request), principal_of(request)
        name = secrets.token_hex(16) if key is None else _digest(f"{principal.user_id} {key}")
        return cls(context_of(request), principal, key, name)

    def new_id(self) -> str:
        """Return the id of what is created: always the same one under a key."""
        digest = hashlib.blake2b(self.id.encode(), digest_size=_ID_LENGTH).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)

    async def make(self, change: Change, *, expected: int | None = None) -> DirectoryChanged:
        """Ask for a change; return the decision once this replica shows it.

        Args:
            change: what is asked for.
            expected: the version of what it is about that the client had seen; None: any.

        Raises:
            Problem: it is refused.
            Undecided: it is not decided so far.
        """
        async with once(self.context, self.key):
            answer = await self.before()
            if answer is None:
                answer = await self._ask(change, expected)
            elif isinstance(answer, DirectoryChanged) and answer.change != change:
                raise reused("was used for another change; draw a new key for another request")
        note(self.context)
        if isinstance(answer, ChangeRefused):
            raise Refused(answer).problem()
        return answer

    async def before(self) -> DirectoryChanged | ChangeRefused | None:
        """Return what was decided on this request when it was sent before, None if it was not."""
        if self.key is None:
            return None
        found = self.context.directory.answer_to(self.id)
        if found is None:
            found = await self.context.models.read(DirectoryProjection, answer_of, self.id)
        return found

    async def _ask(self, change: Change, expected: int | None) -> DirectoryChanged | ChangeRefused:
        return await System.of(self.context).ask(
            change, self.principal, expected=expected, request_id=self.id, key=self.key
        )


def note(context: Context) -> None:
    """Note for the client how far another replica must have folded to show its change."""
    directory = context.directory
    after.note({(topic.DIRECTORY, directory.partition): directory.position - 1})


def principal_of(request: web.Request) -> Principal:
    """Return who asks; behind authentication there is always one."""
    found: Principal = request.get(PRINCIPAL, ADMIN)
    return found


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return int(CLOCK.get()() * 1000)


def _digest(text: str) -> str:
    return hashlib.blake2b(f"{DIRECTORY} {text}".encode(), digest_size=16).hexdigest()
