"""What an experiment is called and filed under: changed, seen everywhere, and by one at a time."""

import asyncio

import pytest

from gateway.conftest import EXPERIMENT_FILE, World
from rung.client import AsyncClient, Conflict
from support.gateway.client import TOKEN, Answer, Client
from support.gateway.scenario import EXPERIMENT, submitted

PATH = f"/experiments/{EXPERIMENT}/description"


@pytest.fixture
async def known(world: World, client: Client) -> Client:
    """Return a client of a gateway that has one experiment."""
    await client.submit(EXPERIMENT_FILE)
    return client


async def _id(client: Client) -> str:
    (found,) = (await client.get("/experiments", params={"filter": "archived:any"}))["items"]
    name: str = found["id"]
    return name


async def _change(
    client: Client, experiment: str, headers: dict[str, str] | None = None, /, **wanted: object
) -> Answer:
    path = f"/experiments/{experiment}/description"
    return await client.call("POST", path, json=wanted, headers=dict(headers or {}))


async def test_a_change_is_seen_everywhere(known: Client) -> None:
    """In the description, the list, the experiment, searches and names; the file stays."""
    name = await _id(known)
    answer = await _change(
        known,
        name,
        name="baseline",
        description="what the others are compared with",
        notes="see the wiki",
        add_labels=["keep", "small"],
        remove_labels=["nothing"],
    )
    assert answer.status == 200
    assert answer.headers["etag"] == '"1"'
    shown = await known.get(f"/experiments/{name}/description")
    assert shown == answer.json
    assert (shown["name"], shown["labels"], shown["version"]) == ("baseline", ["small", "keep"], 1)
    (listed,) = (await known.get("/experiments?label=keep&name=baseline"))["items"]
    assert (listed["name"], listed["labels"]) == ("baseline", ["small", "keep"])
    found = await known.get("/experiments/baseline")
    assert found["id"] == name
    assert (found["description"], found["notes"]) == (shown["description"], "see the wiki")
    assert found["config"]["name"] == "digits"
    for words in ("wiki", "compared", "keep", "baseline", "small"):
        assert len((await known.get("/experiments", params={"filter": words}))["items"]) == 1, (
            words
        )
    assert (await known.get("/experiments?filter=digits"))["items"] == []
    assert (await _change(known, name, labels=["only"])).json["labels"] == ["only"]
    assert (await known.get("/experiments?label=keep"))["items"] == []


async def test_archived_ones_are_left_out_of_lists_alone(known: Client) -> None:
    """By name and id they are there as before; and they come back."""
    name = await _id(known)
    assert (await _change(known, name, archived=True)).json["archived"]
    assert (await known.get("/experiments"))["items"] == []
    (listed,) = (await known.get("/experiments?filter=archived:true"))["items"]
    assert listed["archived"]
    assert (await known.get("/experiments/digits"))["id"] == name
    await _change(known, name, archived=False)
    assert len((await known.get("/experiments"))["items"]) == 1


async def test_of_two_changes_of_one_version_one_is_made(known: Client) -> None:
    """At the same time or one after the other; without a version both are."""
    name = await _id(known)
    first = {"If-Match": '"0"'}
    answers = await asyncio.gather(
        *(_change(known, name, first, notes=f"note {number}") for number in range(8))
    )
    assert sorted(it.status for it in answers) == [200] + [412] * 7
    (done,) = (it.json for it in answers if it.status == 200)
    assert (await known.get(f"/experiments/{name}/description")) == done
    late = await _change(known, name, first, notes="late")
    assert (late.status, late.kind) == (412, "changed")
    assert (await _change(known, name, {"If-Match": '"1"'}, notes="next")).json["version"] == 2
    both = await asyncio.gather(
        *(_change(known, name, add_labels=[each]) for each in ("a", "b", "c", "d"))
    )
    assert [it.status for it in both] == [200] * 4
    shown = await known.get(f"/experiments/{name}/description")
    assert {"a", "b", "c", "d"} < set(shown["labels"])


async def test_two_gateways_agree_on_who_was_first(world: World) -> None:
    """The ledger's order decides, on each of them."""
    await world.write(submitted())
    async with world.gateway() as one, world.gateway() as other:
        answers = await asyncio.gather(
            *(
                _change(each, EXPERIMENT, {"If-Match": '"0"'}, notes=f"{number}")
                for number, each in enumerate([one, other] * 4)
            )
        )
        after = {
            "Rung-After": next(it for it in answers if it.status == 200).headers["rung-after"]
        }
        seen = [await each.get(PATH, headers=dict(after)) for each in (one, other)]
    assert seen[0] == seen[1]


async def test_a_repeated_request_counts_once(known: Client) -> None:
    """Under its key; another request under that key is refused."""
    name, key = await _id(known), {"Idempotency-Key": "k"}
    answers = [await _change(known, name, key, notes="once") for _ in range(2)]
    assert [it.json["version"] for it in answers] == [1, 1]
    assert (await _change(known, name, key, notes="twice")).status == 422


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"name": ""}, {}, 422),
        ({"labels": "a"}, {}, 422),
        ({"nam": "a"}, {}, 422),
        ({"archived": 1}, {}, 422),
        ({"notes": "x" * 100_001}, {}, 422),
        ({"notes": "x" * 600_000}, {}, 413),
        ({"name": "a"}, {"If-Match": "x"}, 400),
        ({"name": "a"}, {"If-Match": "*"}, 200),
    ],
)
async def test_what_is_refused(
    known: Client, body: dict[str, object], headers: dict[str, str], status: int
) -> None:
    """A wrong field is named; nothing is changed then."""
    name = await _id(known)
    answer = await _change(known, name, headers, **body)
    assert answer.status == status
    if status == 422:
        assert next(iter(body)) in answer.json["detail"]
    assert (await known.get(f"/experiments/{name}/description"))["version"] == (status == 200)


async def test_the_client(known: Client) -> None:
    """Typed, with the version as it is; a restarted gateway has the same."""
    async with AsyncClient(known.url, TOKEN) as client:
        found = await client.describe(await _id(known), add_labels=["x"], archived=True)
        assert found.labels == ["small", "x"]
        assert await client.description(found.experiment_id) == found
        with pytest.raises(Conflict, match="changed meanwhile"):
            await client.describe(found.experiment_id, version=0, notes="late")
