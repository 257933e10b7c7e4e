"""The directory in gateways: folded from the ledger, alike in each replica, after any start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.directory.scenario import DAY_MS, Office
from rung.events import partition_of, topic
from rung.events.changes import (
    AssignRole,
    Change,
    CreateUser,
    CreateWorkspace,
    IssueToken,
    LinkIdentity,
    NoteTokenUse,
    SetPassword,
    SetUserActive,
)
from rung.events.directory import ADMIN, DIRECTORY, ROOT, SYSTEM, ChangeRefused, ChangeRequested
from rung.gateway.directory.directory import ALL, Directory
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.directory.state import Assignment
from rung.gateway.identity.principal import Principal
from rung.ledger import Draft, Ledger, MemoryLedger
from rung.runtime import FactWriter, host

NOW_MS = 1_767_225_600_000
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


@contextlib.asynccontextmanager
async def deciding(ledger: Ledger, snapshot_every: int = 10_000) -> AsyncIterator[None]:
    """Run the processor."""
    task = asyncio.create_task(host(ledger, DirectoryProcessor(), snapshot_every=snapshot_every))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def following(ledger: Ledger) -> AsyncIterator[Directory]:
    """Run a replica's directory."""
    directory = Directory(ledger)
    await directory.start()
    task = asyncio.create_task(directory.run())
    yield directory
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Writer:
    """Writes requests."""

    def __init__(self, ledger: Ledger) -> None:
        self._writer = FactWriter(ledger, source="/rung/gateway", origin="gateway/1")
        self._count = 0

    async def write(self, change: Change, by: str = ADMIN) -> str:
        """Request a change; return the request's id."""
        self._count += 1
        name = f"r{self._count}"
        data = ChangeRequested(request_id=name, by=by, at_ms=NOW_MS, change=change)
        await self._writer.write(data)
        return name


def user(number: int) -> CreateUser:
    """Return a new user."""
    return CreateUser(user_id=f"u{number}", name=f"user-{number}")


async def test_each_replica_sees_what_is_decided() -> None:
    """Also one that starts later, and one that starts from the processor's snapshot."""
    ledger = MemoryLedger()
    writer = Writer(ledger)
    async with asyncio.timeout(60), following(ledger) as first:
        async with deciding(ledger, snapshot_every=5):
            for number in range(12):
                last = await writer.write(user(number))
            await first.until(lambda: first.answer_to(last) is not None)
            partition = partition_of(DIRECTORY, ledger.partitions(topic.DIRECTORY))
            while await ledger.snapshot("state/directory", partition) is None:  # noqa: ASYNC110 - it is saved beside
                await asyncio.sleep(0)
            refused = await writer.write(user(3))
            await first.until(lambda: first.answer_to(refused) is not None)
        async with following(ledger) as second:
            assert second.state == first.state
            assert second.position == first.position
            assert second.answer_to("r1") is None  # it began behind it
        found = first.answer_to(refused)
        assert isinstance(found, ChangeRefused)
        assert (found.code, found.field) == ("taken", "name")


async def test_what_is_no_decision_is_passed_over() -> None:
    """A damaged record, one of a newer release, and a repeated decision change nothing."""
    ledger = MemoryLedger()
    writer = Writer(ledger)
    partition = partition_of(DIRECTORY, ledger.partitions(topic.DIRECTORY))
    async with asyncio.timeout(60), following(ledger) as directory:
        async with deciding(ledger):
            name = await writer.write(user(1))
            await directory.until(lambda: directory.answer_to(name) is not None)
        (record,) = await ledger.read(topic.DIRECTORY, partition, 0, 10)
        for value in (b"{", record.value):
            await ledger.append([Draft(topic.DIRECTORY, DIRECTORY, value)])
        assert await directory.reached(2, wait_s=600.0)
        assert directory.state.version == 1
        assert not await directory.reached(9, wait_s=0.01)


@pytest.fixture
def office() -> Office:
    """Return a directory with Anna, who edits in vision, and has a token."""
    office = Office()
    office.done(CreateUser(user_id="u-anna", name="Anna"))
    office.done(CreateWorkspace(workspace_id="vision", name="vision"))
    office.done(
        AssignRole(assignment_id="a", role="editor", user_id="u-anna", workspace_id="vision")
    )
    office.done(
        IssueToken(
            token_id="t1",  # noqa: S106 - the id of a token
            user_id="u-anna",
            digest=DIGEST,
            scope=["experiment.view", "user.view"],
            workspace_id="vision",
            expires_ms=office.now_ms + DAY_MS,
        ),
        by="u-anna",
    )
    return office


def test_a_token_is_a_principal_until_it_is_not(office: Office) -> None:
    """Unknown, expired, or of a user who is not active: nobody."""
    directory = office.directory
    found = directory.principal_of_token(DIGEST, now_ms=office.now_ms)
    assert found == Principal(
        user_id="u-anna",
        name="Anna",
        via="t1",
        scope=frozenset({"experiment.view", "user.view"}),
        workspace="vision",
    )
    assert directory.is_valid(found, now_ms=office.now_ms)
    assert directory.principal_of_token("0" * 64, now_ms=office.now_ms) is None
    late = office.now_ms + DAY_MS
    assert directory.principal_of_token(DIGEST, now_ms=late) is None
    assert not directory.is_valid(found, now_ms=late)
    office.done(SetUserActive(user_id="u-anna", active=False))
    assert directory.principal_of_token(DIGEST, now_ms=office.now_ms) is None
    assert not directory.is_valid(found, now_ms=office.now_ms)


def test_what_a_principal_may(office: Office) -> None:
    """Roles, less what the token leaves out; for another only what both may."""
    directory = office.directory
    root = Principal(user_id=ADMIN, name=ADMIN, via=ROOT)
    anna = Principal(user_id="u-anna", name="Anna", via=ROOT)
    limited = directory.principal_of_token(DIGEST, now_ms=office.now_ms)
    assert limited is not None
    assert "experiment.edit" in directory.permissions(anna, "vision")
    assert "experiment.edit" not in directory.permissions(anna, "default")
    assert directory.permissions(limited, "vision") == {"experiment.view", "user.view"}
    assert directory.permissions(limited, "default") == directory.permissions(limited)
    assert directory.workspaces_with(anna, "experiment.view") == frozenset({"vision"})
    assert directory.workspaces_with(root, "experiment.view") is ALL
    assert "default" in ALL
    for_anna = Principal(user_id=ADMIN, name=ADMIN, via=ROOT, on_behalf_of="u-anna")
    assert directory.permissions(for_anna, "vision") == directory.permissions(anna, "vision")
    for_root = Principal(user_id="u-anna", name="Anna", via=ROOT, on_behalf_of=ADMIN)
    assert directory.permissions(for_root, "vision") == frozenset()


class Counted(dict[str, Assignment]):
    """Assignments that count how many of them were read."""

    read = 0

    def values(self) -> Any:
        """Return all of them."""
        self.read += len(self)
        return super().values()


def test_the_rights_of_all_users_are_read_at_once(office: Office) -> None:
    """However many workspaces: again after a change of who may what, and after no other."""
    directory = office.directory
    for number in range(20):
        office.done(CreateWorkspace(workspace_id=f"w{number}", name=f"w{number}", owner_id=ADMIN))
        office.done(user(number))
        role = AssignRole(
            assignment_id=f"r{number}",
            role="viewer",
            user_id=f"u{number}",
            workspace_id=f"w{number}",
        )
        office.done(role)
    known = directory.state.assignments = Counted(directory.state.assignments)

    def ask() -> None:
        for number in range(20):
            who = Principal(user_id=f"u{number}", name="", via=ROOT)
            assert directory.workspaces_with(who, "experiment.view") == frozenset({f"w{number}"})

    ask()
    assert known.read == len(known)
    office.done(NoteTokenUse(token_id="t1"), by=SYSTEM)  # noqa: S106 - an id
    ask()
    assert known.read == len(known)
    office.done(CreateUser(user_id="u20", name="user-20"))
    ask()
    assert known.read == 2 * len(known)


def test_who_signs_in_is_found(office: Office) -> None:
    """By name, by an identity, and with the hash of the password."""
    directory = office.directory
    office.done(LinkIdentity(user_id="u-anna", issuer="https://i", subject="77"))
    hashed = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"
    office.done(SetPassword(user_id="u-anna", password_hash=hashed), by="u-anna")
    by_name = directory.user_by_name("ANNA")
    assert by_name is directory.user_by_identity("https://i", "77") is not None
    assert directory.user_by_identity("https://j", "77") is directory.user_by_name("bob") is None
    assert directory.password_hash("u-anna") == hashed
    assert [it.id for it in directory.tokens_of("u-anna")] == ["t1"]
    assert directory.id_of("workspaces", "Vision") == "vision"
