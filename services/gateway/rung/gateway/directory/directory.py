"""The directory in the memory of a gateway: who has a token, and what they may.

It is the state of the processor, folded from the decisions alone. Each replica of the gateway has
all of it, so a request is checked without asking anybody. It begins at the newest snapshot of the
processor, so a start does not take longer with the years.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import Struct

from rung.events import UndecodableEvent, changes, partition_of, topic
from rung.events.changes import IssueToken, NoteTokenUse, RevokeToken, RevokeTokens, RotateToken
from rung.events.codec import decode_handled
from rung.events.directory import DIRECTORY, ChangeRefused, DirectoryChanged
from rung.gateway.directory import state as states
from rung.gateway.directory.processor import DirectoryProcessor, evolve_decision
from rung.gateway.directory.state import Assignment, State, Token, User
from rung.gateway.identity.principal import ROOT, Principal
from rung.ledger import Ledger, Record
from rung.ledger.effective import NO_CAUSE, cause_of, is_new_decision
from rung.runtime.processor.snapshot import Snapshots
from rung.runtime.retry import supervise

_READ_MAX: Final = 2_000
_TYPES: Final = frozenset({DirectoryChanged.TYPE, ChangeRefused.TYPE})
_NO_RIGHTS: Final = (
    IssueToken
    | RotateToken
    | RevokeToken
    | RevokeTokens
    | NoteTokenUse
    | changes.OfResources
    | changes.OfModels
)
"""Changes after which everybody has the roles of before: what a token may besides is not kept."""
_ANSWERS_MAX: Final = 10_000
"""Answers that are kept in memory; older ones are in the tables of `DirectoryProjection`."""


_log = structlog.get_logger()


class All(Struct, frozen=True):
    """Every workspace, also those to come."""

    def __contains__(self, workspace_id: object) -> bool:
        return True


ALL: Final = All()


class Directory:
    """The directory as this process has folded it.

    Attributes:
        state: all that there is; only to be read.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        """Begin with the directory as each installation has it at first.

        Args:
            ledger: that `run` follows.
        """
        self.state: State = states.new_directory()
        self.position = 0
        """Behind the last decision folded, on the directory's partition of the decisions."""
        self._ledger = ledger
        self._causes = {DIRECTORY: NO_CAUSE}
        self._answers: dict[str, DirectoryChanged | ChangeRefused] = {}
        self._rights: dict[tuple[str, str | None], frozenset[str]] = {}
        self._held: dict[str, list[Assignment]] | None = None
        """As `states.held` returns it; None where it is to be read again."""
        self._changed = asyncio.Event()

    # What may be asked.

    def principal_of_token(self, digest: str, *, now_ms: int) -> Principal | None:
        """Return who has a token or a session, None where it is not valid (any more).

        Args:
            digest: SHA-256 of its secret, in hexadecimal digits.
            now_ms: since 1970, for its expiry.
        """
        token = self.state.tokens.get(self.state.digests.get(digest, ""))
        return None if token is None else self.principal_of(token, now_ms=now_ms)

    def principal_of(self, token: Token, *, now_ms: int) -> Principal | None:
        """Return whom a token stands for, None where it is not valid any more."""
        user = self.state.users.get(token.user_id)
        if user is None or not user.active:
            return None
        if token.expires_ms is not None and token.expires_ms <= now_ms:
            return None
        return Principal(
            user_id=user.id,
            name=user.name,
            via=token.id,
            scope=None if token.scope is None else frozenset(token.scope),
            workspace=token.workspace_id,
        )

    def is_valid(self, principal: Principal, *, now_ms: int) -> bool:
        """Return whether what a principal was made of is still valid: token, user, the other."""
        if principal.via != ROOT:
            token = self.state.tokens.get(principal.via)
            if token is None or self.principal_of(token, now_ms=now_ms) is None:
                return False
        other = self.state.users.get(principal.on_behalf_of or principal.user_id)
        return other is not None and other.active

    def permissions(self, principal: Principal, workspace_id: str | None = None) -> frozenset[str]:
        """Return what a principal may in a workspace; in the cluster if none is given.

        What somebody does for another is what both may; and a token has its limits.
        """
        found = self.rights_of(principal.user_id, workspace_id)
        if principal.on_behalf_of is not None:
            own = self.rights_of(principal.user_id)
            own = states.limited(own, principal.scope, principal.workspace, None)
            if "user.impersonate" not in own:
                return frozenset()
            found &= self.rights_of(principal.on_behalf_of, workspace_id)
        return states.limited(found, principal.scope, principal.workspace, workspace_id)

    def rights_of(self, user_id: str, workspace_id: str | None = None) -> frozenset[str]:
        """Return what a user may in a workspace, or in the cluster, whatever the token."""
        place = user_id, workspace_id
        found = self._rights.get(place)
        if found is None:
            if self._held is None:
                self._held = states.held(self.state)
            its = self._held.get(user_id, ())
            found = states.rights_of(self.state, user_id, workspace_id, its)
            self._rights[place] = found
        return found

    def workspaces_with(self, principal: Principal, permission: str) -> frozenset[str] | All:
        """Return the ids of the workspaces in which a principal has a permission."""
        if permission in self.permissions(principal):
            return ALL
        return frozenset(
            workspace_id
            for workspace_id in self.state.workspaces
            if permission in self.permissions(principal, workspace_id)
        )

    def user_by_name(self, name: str) -> User | None:
        """Return a user by name, whatever the case of its letters."""
        return self.state.users.get(self.id_of(User.TABLE, name) or "")

    def user_by_identity(self, issuer: str, subject: str) -> User | None:
        """Return the user of an account at an identity provider."""
        key = states.identity_key(issuer, subject)
        return self.state.users.get(self.state.identities.get(key, ""))

    def password_hash(self, user_id: str) -> str | None:
        """Return the hash of an active user's password, None where there is none."""
        user = self.state.users.get(user_id)
        return user.password_hash if user is not None and user.active else None

    def tokens_of(self, user_id: str) -> list[Token]:
        """Return the tokens and sessions of a user, expired ones too for a while."""
        return states.tokens_of(self.state, user_id)

    def id_of(self, space: str, name: str) -> str | None:
        """Return the id of what has a name in a space of `state.names`, such as `workspaces`."""
        return self.state.names.get(space, {}).get(states.folded(name))

    def answer_to(self, request_id: str) -> DirectoryChanged | ChangeRefused | None:
        """Return the decision on a request, None if there is none so far, or it is long ago."""
        return self._answers.get(request_id)

    async def changed(self) -> None:
        """Return at the next record of the decisions, whatever it is."""
        await self._changed.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once a condition holds; it is looked at after each record."""
        while not condition():
            await self.changed()

    # What happens.

    @property
    def partition(self) -> int:
        """The partition of the topic `directory` on which the decisions are."""
        assert self._ledger is not None
        return partition_of(DIRECTORY, self._ledger.partitions(topic.DIRECTORY))

    async def start(self) -> None:
        """Fold what the ledger holds now.

        Raises:
            LedgerError: it does not answer.
        """
        assert self._ledger is not None
        await self._load(self._ledger)
        end = await self._ledger.end(topic.DIRECTORY, self.partition)
        while self.position < end:
            records = await self._ledger.read(
                topic.DIRECTORY, self.partition, self.position, _READ_MAX
            )
            for record in records:
                self._take(record)
        _log.info("directory folded", version=self.state.version, users=len(self.state.users))

    async def run(self) -> None:
        """Fold decisions as they are made, until cancelled; `start` comes first.

        Raises:
            LedgerError: one that does not pass by itself.
        """

        async def follow() -> None:
            assert self._ledger is not None
            place = topic.DIRECTORY, self.partition
            async for records in self._ledger.follow(*place, self.position):
                for record in records:
                    self._take(record)

        await supervise(follow, name="gateway/directory", follows=False)

    async def reached(self, position: int, *, wait_s: float) -> bool:
        """Wait until a decision at a position is folded; return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.until(lambda: self.position > position)
        return self.position > position

    async def _load(self, ledger: Ledger) -> None:
        """Begin at the processor's newest snapshot, if there is one."""
        image = await Snapshots(ledger, DirectoryProcessor(), self.partition).load()
        known = image.keys.get(DIRECTORY)
        self.position = await ledger.start(topic.DIRECTORY, self.partition)
        if known is not None and known.state is not None and image.decisions >= self.position:
            self.state, self.position = known.state, image.decisions
            self._causes[DIRECTORY] = known.cause

    def _take(self, record: Record) -> None:
        """Fold a record, unless it is no decision or repeats one."""
        self.position = record.position + 1
        decision = self._new_decision(record)
        if decision is None:
            self._wake()
        else:
            self.fold(decision)

    def _new_decision(self, record: Record) -> DirectoryChanged | ChangeRefused | None:
        """Return the decision that a record holds, None if it is none, or one of before."""
        try:
            event = decode_handled(record.value, _TYPES) if record.key == DIRECTORY else None
        except UndecodableEvent as error:
            _log.error("decision passed over", position=record.position, reason=str(error))
            return None
        if event is None or event.causeposition is None:
            return None
        if not is_new_decision(cause_of(event), self._causes, record.key):
            return None
        assert isinstance(event.data, DirectoryChanged | ChangeRefused)
        return event.data

    def fold(self, decision: DirectoryChanged | ChangeRefused) -> None:
        """Fold a decision, and wake all that wait for one."""
        before = len(self._answers)
        evolve_decision(self.state, decision)
        self._answers[decision.request_id] = decision
        if before >= _ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        if isinstance(decision, DirectoryChanged) and not isinstance(decision.change, _NO_RIGHTS):
            self._rights.clear()
            self._held = None
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
