"""The log of acts: who asked for what, and when."""

import asyncio
import json
import sqlite3
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conftest import EXPERIMENT_FILE, World, archive, until
from rung import api
from rung.events import Payload, fact
from rung.events.checkpoint import CheckpointPinned
from rung.events.docs.examples import EXAMPLES
from rung.events.experiment import (
    DescriptionChanged,
    KillRequested,
    PauseRequested,
    SlotTimeCounted,
)
from rung.events.installation import PoolUpgraded
from rung.gateway.projections.acts import (
    Act,
    ActProjection,
    ActSelection,
    Asked,
    act_of,
    read_acts,
    words_of,
)
from rung.runtime.projection.store import prepare
from support.gateway.client import TOKEN, Client
from support.gateway.scenario import EXPERIMENT, submitted

_NO_ACTS = {CheckpointPinned, PoolUpgraded, SlotTimeCounted}
"""Follow from another request by themselves, or from the time."""


def test_all_that_users_ask_for_is_an_act() -> None:
    """A type that the gateway writes is in the log, or named here."""
    asked = {kind for kind in get_args(Payload) if kind.WRITER == "gateway"}

    assert asked == set(get_args(Asked)) | _NO_ACTS


@pytest.mark.parametrize(
    "data", [it for it in EXAMPLES if isinstance(it, Asked)], ids=lambda it: it.TYPE
)
def test_every_act_is_said_in_words(data: Asked) -> None:
    """In one line, with the id of what it is about, and without a final stop."""
    words = words_of(data)

    assert "\n" not in words
    assert not words.endswith(".")
    assert words[0].islower()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"archived": True}, "archived experiment x"),
        ({"archived": False}, "unarchived experiment x"),
        ({"name": "n"}, "renamed experiment x to n"),
        ({"notes": "n"}, "changed notes of experiment x"),
        ({"name": "n", "add_labels": ["l"]}, "changed name and labels of experiment x"),
        (
            {"name": "n", "notes": "n", "labels": [], "archived": True},
            "archived and changed name, labels and notes of experiment x",
        ),
        ({}, "changed nothing of experiment x"),
    ],
)
def test_changes_of_descriptions(change: dict[str, object], words: str) -> None:
    """They are named by what changed."""
    data = msgspec.convert({"experiment_id": "x", **change}, DescriptionChanged)

    assert words_of(data) == words


_acts = st.lists(
    st.tuples(
        st.sampled_from(["u1", "u2", None]),
        st.sampled_from(["u1", "u3", None]),
        st.integers(0, 5),
        st.sampled_from(["a", "b"]),
        st.sampled_from([KillRequested, PauseRequested]),
    ),
    max_size=12,
)


@given(
    _acts,
    st.sampled_from(["u1", "u2", "u3", None]),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.integers(0, 5)),
    st.sampled_from(["a", "b", None]),
    st.sampled_from(["rung.experiment.k", "rung.experiment.pause_requested.v1", "x", None]),
    st.integers(1, 4),
)
def test_pages_have_what_is_selected(  # noqa: PLR0917 - what there is to select by
    asked: list[tuple[str | None, str | None, int, str, type[KillRequested]]],
    who: str | None,
    since: int | None,
    before: int | None,
    experiment: str | None,
    what: str | None,
    limit: int,
) -> None:
    """The pages together have each selected act once, the newest first."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    projection = ActProjection()
    prepare(db, projection, "ledger")
    acts: list[Act] = []
    for number, (actor, whom, second, of, kind) in enumerate(asked):
        event = fact(
            kind(experiment_id=of),
            source="/rung/gateway",
            origin="g",
            sequence=number,
            time=f"2026-01-01T00:00:0{second}.000Z",
            actor=actor,
            onbehalfof=whom,
        )
        projection.evolve(db, of, event)
        act = act_of(event)
        assert act is not None
        acts.append(act)
    selection = ActSelection(
        who=who,
        since=None if since is None else f"2026-01-01T00:00:0{since}.000Z",
        until=None if before is None else f"2026-01-01T00:00:0{before}.000Z",
        experiment_id=experiment,
        what=what,
    )
    expected = sorted(filter(selection.has, acts), key=lambda it: (it.at, it.id), reverse=True)
    found: list[Act] = []
    place = None
    while page := read_acts(db, selection, before=place, limit=limit).acts:
        found += page
        place = page[-1].at, page[-1].id

    assert found == expected


@pytest.mark.parametrize("who", [None, "u1"])
def test_pages_are_read_by_an_index(who: str | None) -> None:
    """Neither all acts nor those of one user are sorted to show a page."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    prepare(db, ActProjection(), "ledger")
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    read_acts(db, ActSelection(who=who, experiment_id=None), limit=10)
    db.set_trace_callback(None)
    plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {asked[0]}"))

    assert "TEMP B-TREE" not in plan, plan


async def _ask(client: Client) -> str:
    made = (await client.submit(EXPERIMENT_FILE, code=archive(**{"train.py": b"\n"}))).json
    experiment_id: str = made["experiment_id"]
    for path in (f"/experiments/{experiment_id}/pause", f"/experiments/{experiment_id}/kill"):
        assert (await client.call("POST", path)).status == 202
    body = {"policy": "priority"}
    assert (await client.call("POST", "/pools/default/configure", json=body)).status == 202
    return experiment_id


async def test_list(world: World, client: Client) -> None:
    """The newest first, a page at a time, by user, experiment, type and time."""
    await world.write(submitted())  # as a release that named nobody
    experiment_id = await _ask(client)
    whole = await client.get("/log")

    said = [(act["actor"], act["did"]) for act in whole["items"]]
    assert said == [
        ("admin", "set the policy of pool default to priority"),
        ("admin", f"killed experiment {experiment_id}"),
        ("admin", f"paused experiment {experiment_id}"),
        ("admin", f"submitted experiment {experiment_id} (digits)"),
        (None, f"submitted experiment {EXPERIMENT} (digits)"),
    ]
    first = await client.get("/log?limit=2")
    second = await client.get(f"/log?limit=3&cursor={first['next_cursor']}")
    assert first["items"] + second["items"] == whole["items"]
    assert second["next_cursor"] is None
    for query, count in (
        ("who=admin", 4),
        ("who=anna", 0),
        (f"experiment={experiment_id[:6]}", 3),
        ("what=experiment.kill", 1),
        ("what=rung.pool", 1),
        ("since=1h", 5),
        ("until=1h", 0),
        ("since=2026-01-01&until=2200-01-01T00:00", 5),
    ):
        assert len((await client.get(f"/log?{query}"))["items"]) == count, query


@pytest.mark.parametrize(
    ("query", "name"),
    [("since=yesterday", "since"), ("until=7y", "until"), ("cursor=x", "cursor"), ("a=1", "a")],
)
async def test_bad_choice(client: Client, query: str, name: str) -> None:
    """A choice that cannot be is refused, named."""
    answer = await client.call("GET", f"/log?{query}")

    assert (answer.status, answer.json["errors"][0]["path"]) == (400, name)


async def test_stream_goes_on_behind_a_list(client: Client) -> None:
    """With the list's `last_event_id` each act comes once, in the list or in the stream."""
    experiment_id = await _ask(client)
    listed = await client.get("/log?what=experiment")
    headers = {"Authorization": f"Bearer {TOKEN}", "Last-Event-ID": listed["last_event_id"]}
    url = f"{client.url}/api/v1/log/stream?what=experiment&who=admin"
    async with client.session.get(url, headers=headers) as response, asyncio.timeout(30):
        assert response.status == 200
        assert (await client.call("POST", f"/experiments/{experiment_id}/kill")).status == 202
        while not (line := await response.content.readline()).startswith(b"data: "):
            pass
    act = api.Act(**json.loads(line.removeprefix(b"data: ")))

    assert (act.actor, act.did) == ("admin", f"killed experiment {experiment_id}")
    assert act.id not in {it["id"] for it in listed["items"]}


async def test_stream_has_all_from_the_start(client: Client) -> None:
    """Of all topics; who is interested in one experiment gets its acts alone."""
    experiment_id = await _ask(client)

    async def read(query: str, count: int) -> list[str]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{client.url}/api/v1/log/stream{query}"
        found: list[str] = []
        async with client.session.get(url, headers=headers) as response, asyncio.timeout(30):
            while len(found) < count:
                line = await response.content.readline()
                if line.startswith(b"data: "):
                    found.append(json.loads(line[6:])["did"].split()[0])
        return sorted(found)

    assert await read("", 4) == ["killed", "paused", "set", "submitted"]
    assert await read(f"?experiment={experiment_id}", 3) == ["killed", "paused", "submitted"]


async def test_a_rebuilt_log_is_the_same(world: World) -> None:
    """Another replica folds the same acts."""
    async with world.gateway() as client:
        await _ask(client)
        first = (await client.get("/log"))["items"]
    async with world.gateway() as client:
        again = await until(lambda: client.get("/log"), lambda it: len(it["items"]) == len(first))
        assert (await client.get("/deadletters"))["items"] == []

    assert again["items"] == first
