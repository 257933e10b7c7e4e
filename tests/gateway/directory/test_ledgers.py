"""The directory in a ledger: one of a release before, exports, imports, audits."""

import asyncio
import io
import sqlite3
from pathlib import Path

from gateway.conftest import World
from gateway.directory.test_directory import Writer, deciding, following, user
from rung.events import TOPICS, topic
from rung.events.experiment import ADMIN, DEFAULT
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.directory.state import new_directory
from rung.ledger import Draft, MemoryLedger, SqliteLedger
from rung.ledger.export.export import export, import_
from rung.runtime import audit
from rung.searcher.processor import Searcher
from rung.storage import FolderStore
from searcher.recording import path_of
from support.gateway.client import Client
from support.gateway.people import bearer
from support.searcher.scenario import EXPERIMENT


async def test_a_ledger_of_the_release_before_opens(tmp_path: Path) -> None:
    """It gets the topics; what is there from the beginning is not on record, and audits agree."""
    identity = await _write_before(tmp_path, [])
    ledger = await SqliteLedger.open(tmp_path)
    assert ledger.id == identity
    assert {ledger.partitions(name) for name in TOPICS} == {2}
    async with asyncio.timeout(60), following(ledger) as directory:
        assert directory.state == new_directory()
        assert (await audit(ledger, DirectoryProcessor())).same
        async with deciding(ledger):
            name = await Writer(ledger).write(user(1))
            await directory.until(lambda: directory.answer_to(name) is not None)
        assert directory.state.version == 1
        verdict = await audit(ledger, DirectoryProcessor())
        assert (verdict.same, verdict.decisions) == (True, 1)
    await ledger.close()


async def test_experiments_of_the_release_before(tmp_path: Path) -> None:
    """They are the administrator's, in the default workspace, and of nobody without a role there.

    Acts of that release are shown without an actor, and what it decided is decided again.
    """
    lines = path_of(1, "single").read_bytes().splitlines()
    assert not any(name in line for line in lines for name in (b"workspace", b"owner", b"actor"))
    await _write_before(tmp_path, lines)
    ledger = await SqliteLedger.open(tmp_path)
    world = World(ledger, FolderStore(tmp_path / "objects"))
    async with asyncio.timeout(60), deciding(ledger), world.gateway() as client:
        member = await _member(client)
        shown = await client.get(f"/experiments/{EXPERIMENT}")
        listed = await client.get("/experiments")
        acts = await client.get(f"/log?experiment={EXPERIMENT}")
        hidden = await client.call("GET", f"/experiments/{EXPERIMENT}", headers=member)
        others = await client.get("/experiments", headers=member)

    for found in (shown, *listed["items"]):
        assert (found["id"], found["state"]) == (EXPERIMENT, "canceled")
        assert (found["workspace_id"], found["project_id"], found["owner_id"]) == (
            DEFAULT,
            DEFAULT,
            ADMIN,
        )
        assert (found["workspace"], found["project"], found["owner"]) == (DEFAULT, DEFAULT, ADMIN)
    assert len(listed["items"]) == 1
    assert [(it["type"], it["actor"]) for it in acts["items"]] == [
        ("rung.trial.kill_requested.v1", None),
        ("rung.experiment.submitted.v1", None),
    ]
    assert hidden.status == 404
    assert others["items"] == []
    searches, directory = (
        await audit(ledger, Searcher()),
        await audit(ledger, DirectoryProcessor()),
    )
    decisions = len([line for line in lines if b'"causeposition"' in line])
    assert (searches.same, searches.decisions) == (True, decisions)
    assert directory.same
    await ledger.close()


async def _write_before(folder: Path, lines: list[bytes]) -> str:
    """Write a ledger as the release before did, without topics of a directory; return its id.

    Args:
        folder: of the ledger.
        lines: a recorded search, facts and decisions.
    """
    ledger = await SqliteLedger.open(folder, partitions=2)
    for line in lines:
        name = topic.SEARCHES if b'"causeposition"' in line else topic.EXPERIMENTS
        await ledger.append([Draft(name, EXPERIMENT, line)])
    await ledger.close()
    with sqlite3.connect(folder / "ledger.db") as database:
        database.execute(
            "DELETE FROM topics WHERE name IN (?, ?)", (topic.REQUESTS, topic.DIRECTORY)
        )
    database.close()
    return ledger.id


async def _member(client: Client) -> dict[str, str]:
    """Create a service account with a role in another workspace; return how it signs in."""
    for path, body in (
        ("/workspaces", {"name": "vision"}),
        ("/service-accounts", {"name": "robot", "workspace": "vision"}),
        ("/assignments", {"role": "workspace-admin", "user": "robot", "workspace": "vision"}),
        ("/tokens", {"name": "t", "user": "robot"}),
    ):
        answer = await client.call("POST", path, json=body)
        assert answer.status == 201, answer
    return bearer(answer.json["secret"])


async def test_an_export_carries_the_directory(tmp_path: Path) -> None:
    """An import into an empty ledger has the same directory, and goes on from there."""
    ledger, out = MemoryLedger(), io.BytesIO()
    async with asyncio.timeout(60), following(ledger) as directory:
        async with deciding(ledger):
            writer = Writer(ledger)
            for number in range(4):
                last = await writer.write(user(number % 3))  # the last one is refused
            await directory.until(lambda: directory.answer_to(last) is not None)
        await export(ledger, out)
        out.seek(0)
        other = await SqliteLedger.open(tmp_path, partitions=4)
        await import_(other, out)
        async with following(other) as copied:
            assert copied.state == directory.state
            assert (await audit(other, DirectoryProcessor())).same
        await other.close()
