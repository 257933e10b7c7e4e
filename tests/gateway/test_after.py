"""`Rung-After`: a client reads what it wrote, whichever replica it asks."""

import asyncio
import base64
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events import topic
from rung.events.allocation import AgentJoined, Slot
from rung.events.deadletter import MessageRejected
from rung.gateway.requests.after import token_of
from rung.gateway.routes import ROUTES
from rung.gateway.routes import directory as directory_routes
from rung.gateway.settings import Settings
from rung.ledger import Ledger, MemoryLedger, Record
from rung.storage import FolderStore
from support.gateway.scenario import EXPERIMENT, History, stored, submitted

KILL = {"action": "kill", "filter": "state:active"}


class _Late:
    """A ledger as a replica sees it that lags behind."""

    def __init__(self, ledger: Ledger, *topics: str) -> None:
        self._ledger = ledger
        self._topics = topics or tuple(topic.TOPICS)
        self.let = asyncio.Event()
        self.let.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def read(self, *place: Any) -> list[Record]:
        """Read once it is let."""
        if place[0] in self._topics:
            await self.let.wait()
        return await self._ledger.read(*place)


async def test_a_replica_that_is_behind_is_waited_for(world: World) -> None:
    """It answers what the other one wrote, or that it cannot yet."""
    late = _Late(world.ledger)
    other = World(late, world.store)
    other.settings = Settings(seen_timeout=0.2)
    async with world.gateway() as first, other.gateway() as second:
        late.let.clear()
        submitted = await first.submit(EXPERIMENT_FILE)
        path = f"/experiments/{submitted.json['experiment_id']}"
        headers = {"Rung-After": submitted.headers["rung-after"]}
        without = await second.call("GET", path)
        unready = await second.call("GET", path, headers=dict(headers))
        late.let.set()
        shown = await second.call("GET", path, headers=dict(headers))
        paused = await second.call("POST", f"{path}/pause", headers=dict(headers))
        again = await first.call("GET", path, headers={"Rung-After": paused.headers["rung-after"]})

    assert without.status == 404
    assert (unready.status, unready.kind) == (503, "unavailable")
    assert unready.headers["retry-after"] == "2"
    assert [shown.status, paused.status, again.status] == [200, 202, 200]
    assert "rung-after" not in shown.headers


async def test_a_token_stands_for_all_that_a_client_wrote(world: World) -> None:
    """Where it wrote last is not all: what it wrote before lies in another partition."""
    async with world.gateway() as client:
        token: dict[str, str] = {}
        for _ in range(12):
            form = aiohttp.FormData()
            form.add_field("config", EXPERIMENT_FILE, filename="experiment.yaml")
            answer = await client.call("POST", "/experiments", data=form, headers={**token})
            assert answer.status == 201
            token = {"Rung-After": answer.headers["rung-after"]}
    text = token["Rung-After"]
    _, rows = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    assert len(rows) > 1


@pytest.mark.parametrize("token", ["x", "W10", "ü", "e30"])
async def test_what_is_no_token_is_refused(world: World, token: str) -> None:
    """400, naming the header."""
    async with world.gateway() as client:
        answer = await client.call("GET", "/status", headers={"Rung-After": token})

    assert (answer.status, answer.kind) == (400, "bad-parameter")
    assert "Rung-After" in answer.json["detail"]


async def test_another_ledgers_token_is_passed_over(world: World, tmp_path: Any) -> None:
    """A data folder that was rebuilt does not keep its clients waiting."""
    other = World(MemoryLedger(), FolderStore(tmp_path / "other"))
    async with world.gateway() as client, other.gateway() as elsewhere:
        submitted = await client.submit(EXPERIMENT_FILE)
        headers = {"Rung-After": submitted.headers["rung-after"]}
        answer = await elsewhere.call("GET", "/status", headers=headers)

    assert answer.status == 200


async def test_a_server_that_catches_up_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers from what it has, and does not say that what it lacks is not there.

    Nor does a list leave it out, or a filter pass it over.
    """
    world.settings = Settings(start_timeout=0.05)
    async with world.gateway() as client:
        name = (await client.submit(EXPERIMENT_FILE)).json["experiment_id"]
    late = _Late(world.ledger)
    late.let.clear()
    other = World(late, world.store)
    other.settings = world.settings
    async with other.gateway() as client:
        status = await client.get("/status")
        missing = await client.call("GET", f"/experiments/{name}")
        listed = await client.call("GET", "/experiments")
        headers = {"Idempotency-Key": "all"}
        killed = await client.call("POST", "/experiments:batch", json=KILL, headers=headers)
        late.let.set()
        await until(
            lambda: client.call("GET", f"/experiments/{name}"), lambda it: it.status == 200
        )
        again = await client.get("/experiments")

    assert any("catching up: 0 of 1 record" in problem for problem in status["problems"])
    for answer in (missing, listed, killed):
        assert answer.status == 503
        assert "catching up: 0 of 1 record" in answer.json["detail"]
    assert [item["id"] for item in again["items"]] == [name]


def test_what_lists_all_there_is_is_complete() -> None:
    """A list that the projections have is refused while they catch up.

    Others have theirs from the directory, which is folded at the start, and lines of logs from
    the series. Agents and what waits are shown by `rung status`, beside how far the server is.
    """
    directory = {it.path for it in directory_routes.ROUTES} | {"/tokens"}
    logs = {"/experiments/{experiment_id}/logs", "/trials/{trial_id}/logs"}
    reads = [route for route in ROUTES if route.method == "GET" and route.answer is not None]
    lists = {it.path for it in reads if it.answer and "items" in it.answer.__struct_fields__}
    complete = {it.path for it in reads if it.complete}
    assert complete >= lists - directory - logs - {"/agents", "/queue"}


async def test_what_a_restored_ledger_lacks_is_not_waited_for(world: World) -> None:
    """A token of what came after the backup, or of places that never were, holds nobody up."""
    lacking = {("experiments", 0): 1_000_000, ("experiments", 99_999): 0, ("nowhere", 0): 0}
    async with world.gateway() as client:
        name = (await client.submit(EXPERIMENT_FILE)).json["experiment_id"]
        headers = {"Rung-After": token_of(world.ledger.id, lacking)}
        shown = await client.call("GET", f"/experiments/{name}", headers=dict(headers))
        paused = await client.call("POST", f"/experiments/{name}/pause", headers=dict(headers))
    text = paused.headers["rung-after"]
    _, rows = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    assert (shown.status, paused.status) == (200, 202)
    assert [position for _, _, position in rows] == [1]


async def test_a_repeated_request_says_how_far_to_read(world: World) -> None:
    """What wrote it before may have been answered by nobody: the repetition has the token."""
    keyed = {"Idempotency-Key": "k"}
    body = msgspec.json.encode({"policy": "priority", "options": {}})
    async with world.gateway() as client:
        submissions = [await client.submit(EXPERIMENT_FILE, key="s") for _ in range(2)]
        path = f"/experiments/{submissions[0].json['experiment_id']}/pause"
        pauses = [await client.call("POST", path, headers=dict(keyed)) for _ in range(2)]
        chosen = [
            await client.call("POST", "/pools/default/configure", data=body, headers=dict(keyed))
            for _ in range(2)
        ]

    assert {answer.status for answer in (*submissions, *pauses, *chosen)} == {201, 202}
    for first, again in (submissions, pauses, chosen):
        assert again.headers.get("rung-after") == first.headers["rung-after"]


async def test_a_server_that_catches_up_judges_nothing(world: World) -> None:
    """Whether a checkpoint is there still, an agent takes a trial, a letter exists: later."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    await world.play(history)
    slot = Slot(id=0, kind="cpu", name="CPU slot 0")
    joined = AgentJoined(
        pool="default", agent_id="a", incarnation=1, hostname="host", slots=[slot]
    )
    await world.write(stored(f"{EXPERIMENT}.0", 1, 10, 1), joined)
    rejected = MessageRejected(
        topic="experiments",
        partition=3,
        position=7,
        key=EXPERIMENT,
        reader="searcher",
        reason="why",
        value="{",
    )
    await world.write(rejected)
    late = _Late(world.ledger, topic.POOLS, topic.DEADLETTER)
    late.let.clear()
    other = World(late, world.store)
    other.settings = Settings(start_timeout=0.05)
    text = EXPERIMENT_FILE.replace("metric:", "source_checkpoint_uuid: c1\n  metric:")
    move, letter = f"/trials/{EXPERIMENT}.0/move", "/deadletters/searcher/experiments/3/7"
    async with other.gateway() as client:
        await until(
            lambda: client.call("GET", "/checkpoints/c1"), lambda found: found.status == 200
        )
        answers = [
            await client.submit(text),
            await client.call("POST", "/experiments/validate", data=text.encode()),
            await client.call("POST", move, params={"to": "a"}),
            await client.call("POST", f"{letter}/drop"),
        ]
        late.let.set()
        await until(
            lambda: client.call("POST", f"{letter}/drop"), lambda found: found.status == 202
        )
        taken = await client.submit(text)

    assert [answer.status for answer in answers] == [503] * 4
    assert all(answer.headers["retry-after"] for answer in answers)
    assert taken.status == 201
