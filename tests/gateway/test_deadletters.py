"""Dead letters: what became of them, and what may be asked of their readers."""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from gateway.conftest import World, until
from rung.events import Event, decision, encode, fact, topic
from rung.events.deadletter import (
    FactDropped,
    FactRejected,
    FactRetried,
    KeyResumed,
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.events.experiment import PauseRequested
from rung.events.upcast import UPCASTERS
from rung.gateway.projections.deadletters import (
    DeadLetter,
    DeadLetterProjection,
    count_open,
    read_dead_letters,
)
from rung.ledger import Draft, MemoryLedger
from rung.runtime.projection.store import prepare
from rung.storage import FolderStore
from support.gateway.client import Client
from support.gateway.scenario import EXPERIMENT

_READER = "checkpoint-gc-deleter"
_ID = f"{_READER}/retirements/3/7"
_PATH = f"/deadletters/{_ID}"


def _message(kind: type[Any], reader: str = _READER, position: int = 7, **more: Any) -> Any:
    name = "retirements" if reader == _READER else "experiments"
    place: dict[str, Any] = {"topic": name, "partition": 3, "position": position}
    return kind(**place, key=EXPERIMENT, reader=reader, **more)


def _rejected(reader: str = _READER, position: int = 7, reason: str = "why") -> MessageRejected:
    rejected: MessageRejected = _message(
        MessageRejected, reader, position, reason=reason, value="{"
    )
    return rejected


RETRY = _message(MessageRetryRequested)
DROP = _message(MessageDropped)
TAKEN = _message(MessageTaken)


class _Letters(NamedTuple):
    letters: dict[str, DeadLetter]
    open: int


def _folded(*data: Any, before: tuple[str, str] | None = None) -> _Letters:
    projection = DeadLetterProjection()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        prepare(db, projection, "ledger")
        for each in data:
            event = Event(id="i", source="s", subject="s", time="t", data=each)
            projection.evolve(db, each.topic, each if isinstance(each, Event) else event)
        return _Letters({it.id: it for it in read_dead_letters(db, before=before)}, count_open(db))


@pytest.mark.parametrize(
    ("then", "state", "count"),
    [
        ([], "open", 1),
        ([RETRY], "retrying", 0),
        ([RETRY, _rejected(reason="why now")], "open", 1),
        ([RETRY, TAKEN], "taken", 0),
        ([TAKEN], "taken", 0),
        ([TAKEN, RETRY], "taken", 0),
        ([TAKEN, _rejected()], "open", 1),
        ([DROP], "dropped", 0),
        ([RETRY, DROP, TAKEN], "dropped", 0),
        ([DROP, RETRY, _rejected()], "dropped", 0),
    ],
)
def test_what_becomes_of_a_letter(then: list[Any], state: str, count: int) -> None:
    """It is open, being retried, or settled; only open ones are counted."""
    found = _folded(_rejected(), *then)

    assert (found.letters[_ID].state, found.open) == (state, count)


def test_a_letter_says_why_it_was_rejected_last() -> None:
    """The reason of the newest try is the one that matters."""
    found = _folded(_rejected(), RETRY, _rejected(reason="why now"))

    assert [it.reason for it in found.letters.values()] == ["why now"]


def test_the_newest_come_first() -> None:
    """All are there, however many; a settled one stays where it is."""
    many = [_rejected(position=number) for number in range(5)]
    found = _folded(*many[:3], _message(MessageTaken, position=2), *many[3:])

    assert [it.position for it in found.letters.values()] == [4, 3, 2, 1, 0]
    assert found.open == 4


def test_pages_are_the_same_in_all_replicas() -> None:
    """However they interleaved the topics: the place in the list is made of what is on record."""
    one, other = [_stopped(7, 7), _stopped(8, 8)], [_rejected(position=1), _rejected(position=2)]
    orders = [[*one, *other], [*other, *one], [one[0], *other, one[1]]]
    seen = [_folded(*order).letters for order in orders]

    assert [[*it] for it in seen] == [[*seen[0]]] * 3
    assert [[*it.values()] for it in seen] == [[*seen[0].values()]] * 3
    first, *rest = seen[0].values()
    assert [*_folded(*orders[1], before=(first.at, first.id)).letters.values()] == rest


async def _asked(world: World) -> list[Any]:
    found = await world.all("deadletter")
    return [each for each in found if isinstance(each, MessageRetryRequested | MessageDropped)]


async def _written(world: World, client: Client, *data: Any) -> None:
    before = len((await client.get("/deadletters"))["items"])
    await world.write(*data)
    await until(lambda: client.get("/deadletters"), lambda found: len(found["items"]) > before)


async def test_a_letter_is_shown_retried_and_dropped(world: World, client: Client) -> None:
    """Each request is on record when it is answered, and the letter says so."""
    await _written(world, client, _rejected())
    shown = await client.get(_PATH)
    status = await client.get("/status")
    retried = await client.call("POST", f"{_PATH}/retry")
    open_now = await client.get("/deadletters?state=open")
    retrying = await client.get(_PATH)
    dropped = await client.call("POST", f"{_PATH}/drop")
    listed = await client.get("/deadletters")

    assert (shown["id"], shown["state"], shown["reader_kind"]) == (_ID, "open", "sink")
    assert status["dead_letters"] == 1
    assert (retried.status, retried.json) == (202, {"id": _ID, "requested": "retry"})
    assert (open_now["items"], open_now["count"]) == ([], 0)
    assert retrying["state"] == "retrying"
    assert (dropped.status, dropped.json) == (202, {"id": _ID, "requested": "drop"})
    assert [it["state"] for it in listed["items"]] == ["dropped"]
    assert await _asked(world) == [RETRY, DROP]


@pytest.mark.parametrize("settled", [TAKEN, DROP])
async def test_what_is_settled_is_asked_no_more(
    world: World, client: Client, settled: Any
) -> None:
    """Nothing would come of it."""
    await world.write(_rejected(), settled)
    await until(lambda: client.get("/deadletters?state=open"), lambda it: it["count"] == 0)
    await until(lambda: client.get("/deadletters"), lambda it: len(it["items"]) == 1)
    before = await _asked(world)
    answers = [await client.call("POST", f"{_PATH}/{what}") for what in ("retry", "drop")]

    assert [(it.status, it.kind) for it in answers] == [(409, "settled")] * 2
    assert await _asked(world) == before


async def test_what_is_not_known_is_not_found(client: Client) -> None:
    """Neither shown nor asked for; the place is taken as it is written."""
    for path in (
        _PATH,
        "/deadletters/checkpoint-gc-deleter/retirements/x/-1",
        "/deadletters/a/b/03/7",
    ):
        answers = [
            await client.call("GET", path),
            await client.call("POST", f"{path}/retry"),
            await client.call("POST", f"{path}/drop"),
        ]
        assert {(it.status, it.kind) for it in answers} == {(404, "not-found")}


@pytest.mark.parametrize("reader", ["scheduler", "metrics", "webhooks"])
async def test_readers_that_take_no_requests_are_not_asked(
    world: World, client: Client, reader: str
) -> None:
    """It says which take some; of other topics than its own no reader does."""
    await _written(world, client, _rejected(reader))
    path = f"/deadletters/{reader}/experiments/3/7"
    answers = [await client.call("POST", f"{path}/{what}") for what in ("retry", "drop")]

    assert [(it.status, it.kind) for it in answers] == [(409, "no-requests")] * 2
    for name in ("searcher (of experiments)", "checkpoint-gc-deleter (of retirements)"):
        assert name in answers[0].json["detail"]
    assert (await client.get(path))["reader_kind"] is None
    assert await _asked(world) == []


class _ReadOnly(MemoryLedger):
    """Takes no records about dead letters."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, or never return."""
        if drafts[0].topic == topic.DEADLETTER:
            await asyncio.Event().wait()
        return await super().append(drafts)


async def test_what_the_gateway_cannot_fold_is_listed_until_it_is_dropped(
    tmp_path: Path,
) -> None:
    """One letter, of all projections together, without a word in the ledger."""
    world = World(_ReadOnly(), FolderStore(tmp_path))
    await world.ledger.append([Draft(topic.EXPERIMENTS, EXPERIMENT, b"{")])
    async with world.gateway() as client:
        read = partial(client.get, "/deadletters")
        found = await until(read, lambda found: found["items"])
        (letter,) = found["items"]
        path = f"/deadletters/{letter['id']}"
        place = letter["reader"], letter["topic"], letter["key"], letter["value"]
        assert place == ("gateway", topic.EXPERIMENTS, EXPERIMENT, "{")
        assert (letter["state"], letter["reader_kind"]) == ("open", "projection")
        assert (found["count"], (await client.get("/status"))["dead_letters"]) == (1, 1)
        assert await client.get(path) == letter
        assert await world.all(topic.DEADLETTER) == []

        asked = await client.call("POST", f"{path}/retry")
        assert (asked.status, asked.kind) == (409, "no-requests")
        assert "another release" in asked.json["detail"]


async def test_what_the_gateway_cannot_fold_is_dropped(world: World) -> None:
    """It is listed as open no more, by no gateway."""
    await world.ledger.append([Draft(topic.EXPERIMENTS, EXPERIMENT, b"{")])
    headers = {"Idempotency-Key": "k"}
    for state in ("open", "dropped"):
        async with world.gateway() as client:
            read = partial(client.get, "/deadletters")
            (letter,) = (await until(read, lambda found: found["items"]))["items"]
            assert letter["state"] == state
            path = f"/deadletters/{letter['id']}"
            asked = await client.call("POST", f"{path}/drop", headers=headers)
            assert (asked.status, asked.json["requested"]) == (202, "drop")
            assert (await client.get(path))["state"] == "dropped"
            shown = await client.get("/deadletters?state=open")
            assert (shown["items"], shown["count"]) == ([], 0)
            again = await client.call("POST", f"{path}/drop")
            assert (again.status, again.kind) == (409, "settled")
    (found,) = await world.all(topic.DEADLETTER)
    assert isinstance(found, MessageDropped)


async def test_a_rollback_lists_again_what_is_not_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a gateway lists is what it lacks, whatever another release has folded."""
    value = encode(_AT).replace(PauseRequested.TYPE.encode(), b"rung.experiment.frozen.v1")
    await world.ledger.append([Draft(topic.EXPERIMENTS, EXPERIMENT, value)])
    for release in ("old", "new", "old"):
        with monkeypatch.context() as patch:
            if release == "new":
                upcast = lambda data: (PauseRequested.TYPE, data)  # noqa: E731 - a stub
                patch.setitem(UPCASTERS, "rung.experiment.frozen.v1", upcast)
            async with world.gateway() as client:
                items = (await client.get("/deadletters?state=open"))["items"]
                assert [it["reader"] for it in items] == ["gateway"] * (release == "old"), release


async def test_pages_hold_letters_of_all_kinds(world: World) -> None:
    """Each letter once, the newest first, of processors, relays, sinks and projections."""
    await world.ledger.append([Draft(topic.EXPERIMENTS, EXPERIMENT, b"{")] * 3)
    await world.write(*(_rejected(position=number) for number in range(3)))
    async with world.gateway() as client:
        read = partial(client.get, "/deadletters")
        whole = (await until(read, lambda found: len(found["items"]) == 6))["items"]
        paged, query = [], "limit=2"
        while query:
            page = await client.get(f"/deadletters?{query}")
            paged += page["items"]
            query = f"limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert [it["id"] for it in paged] == [it["id"] for it in whole]
    assert [it["at"] for it in whole] == sorted((it["at"] for it in whole), reverse=True)


async def test_a_gateway_alone_asks_nothing(world: World) -> None:
    """Without the services' tables it cannot tell who would do it."""
    world.readers = None
    await world.write(_rejected())
    async with world.gateway() as client:
        answer = await client.call("POST", f"{_PATH}/retry")

    assert (answer.status, answer.kind) == (503, "unavailable")


async def test_same_key_asks_once(world: World, client: Client) -> None:
    """Also where the letter is settled meanwhile; the key stands for one wish."""
    await _written(world, client, _rejected(), _rejected(position=8))
    headers = {"Idempotency-Key": "k"}
    first = await client.call("POST", f"{_PATH}/drop", headers=headers)
    async with world.gateway() as restarted:
        again = await restarted.call("POST", f"{_PATH}/drop", headers=headers)
        retry = await restarted.call("POST", f"{_PATH}/retry", headers=headers)
        path = _PATH.replace("/7", "/8")
        other = await restarted.call("POST", f"{path}/drop", headers=headers)

    assert [first.status, again.status] == [202, 202]
    assert {(it.status, it.kind) for it in (retry, other)} == {(422, "idempotency-key-reused")}
    assert await _asked(world) == [DROP]


_AT = fact(PauseRequested(experiment_id=EXPERIMENT), source="s", origin="o", sequence=1, time="t")
_PLACE: dict[str, Any] = {"key": EXPERIMENT, "reader": "searcher", "partition": 3}


def _stopped(position: int, cause: int, *, index: int = 0) -> Event:
    """Return the decision that a fact was rejected."""
    data = FactRejected(
        topic=topic.SEARCHES, **_PLACE, position=position, reason=f"why at {cause}", value="{"
    )
    at = structs.replace(_AT, id=f"fact {cause}")
    return decision(data, source="/rung/searcher", cause=at, position=cause, index=index)


def _resumed(cause: int, *, index: int = 0) -> Event:
    data = KeyResumed(topic=topic.SEARCHES, key=EXPERIMENT, reader="searcher")
    at = structs.replace(_AT, id=f"fact {cause}")
    return decision(data, source="/rung/searcher", cause=at, position=cause, index=index)


def _request(kind: type[FactRetried | FactDropped], about: Event) -> Event:
    """Return what an operator asks about a rejection."""
    assert isinstance(about.data, FactRejected)
    data = kind(
        topic=topic.EXPERIMENTS, **_PLACE, position=about.data.position, rejection=about.id
    )
    return fact(data, source="/rung/gateway", origin=f"{kind}{about.id}", sequence=1, time="t")


_FIRST, _AGAIN = _stopped(7, 7), _stopped(7, 9)
_ASKED = [_request(FactRetried, _FIRST), _request(FactDropped, _FIRST)]


@pytest.mark.parametrize(
    ("decisions", "requests", "state", "reason"),
    [
        ([_FIRST], [], "open", "why at 7"),
        ([_FIRST], [_ASKED[0]], "retrying", "why at 7"),
        ([_FIRST], _ASKED, "retrying", "why at 7"),
        ([_FIRST], _ASKED[::-1], "dropped", "why at 7"),
        ([_FIRST, _resumed(9)], [_ASKED[0]], "taken", "why at 7"),
        ([_FIRST, _resumed(9)], _ASKED, "taken", "why at 7"),
        ([_FIRST, _resumed(9)], [_ASKED[1]], "dropped", "why at 7"),
        ([_FIRST, _AGAIN], _ASKED, "open", "why at 9"),
        ([_FIRST, _AGAIN], [_ASKED[0], _request(FactDropped, _AGAIN)], "dropped", "why at 9"),
        ([_FIRST, _stopped(8, 8)], [], "open", "why at 7"),
        ([_FIRST, _stopped(8, 8), _resumed(9)], [_ASKED[0]], "taken", "why at 7"),
        ([_FIRST, _stopped(8, 9, index=3)], [_ASKED[0]], "taken", "why at 7"),
        ([_FIRST, _stopped(8, 9, index=3)], [_ASKED[1]], "dropped", "why at 7"),
    ],
)
def test_what_becomes_of_a_rejected_fact(
    decisions: list[Event], requests: list[Event], state: str, reason: str
) -> None:
    """In whatever order the two topics are folded: the first request about a rejection counts."""
    for places in itertools.combinations(range(len(decisions + requests)), len(decisions)):
        left = [iter(decisions), iter(requests)]
        events = [next(left[at not in places]) for at in range(len(decisions + requests))]
        found = _folded(*events)
        letter = found.letters["searcher/experiments/3/7"]
        assert (letter.state, letter.reason) == (state, reason), places
        assert found.open == sum(it.state == "open" for it in found.letters.values())


def test_a_rejection_of_a_key_that_stands_still_already_is_none() -> None:
    """A replica of another release wrote it that had taken the fact rejected before."""
    assert list(_folded(_FIRST, _stopped(8, 8)).letters) == ["searcher/experiments/3/7"]
    found = _folded(_FIRST, _resumed(9), _stopped(10, 10))
    assert [it.state for it in found.letters.values()].count("open") == 1


async def test_a_rejected_fact_is_shown_and_retried(world: World, client: Client) -> None:
    """By a fact on the topic of its key, which names the rejection, and who asked."""
    path = "/deadletters/searcher/experiments/3/7"
    await world.ledger.append([Draft.of(_FIRST)])
    await until(partial(client.get, "/deadletters"), lambda found: found["items"])
    shown = await client.get(path)
    headers = {"Idempotency-Key": "k"}
    for _ in range(2):
        asked = await client.call("POST", f"{path}/retry", headers=headers)
        assert (asked.status, asked.json["requested"]) == (202, "retry")
    retrying = await client.get(path)
    dropped = await client.call("POST", f"{path}/drop")
    await world.ledger.append([Draft.of(_resumed(9))])
    await until(partial(client.get, path), lambda found: found["state"] == "taken")
    settled = await client.call("POST", f"{path}/drop")

    assert (shown["key"], shown["state"], shown["reader_kind"]) == (
        EXPERIMENT,
        "open",
        "processor",
    )
    assert retrying["state"] == "retrying"
    assert [(it.status, it.kind) for it in (dropped, settled)] == [
        (409, "retrying"),
        (409, "settled"),
    ]
    (found,) = [it for it in await world.all(topic.EXPERIMENTS) if isinstance(it, FactRetried)]
    assert found == _request(FactRetried, _FIRST).data
