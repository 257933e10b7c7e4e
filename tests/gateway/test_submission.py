"""Submitting an experiment: validated, stored once, on record once."""

import asyncio
import gzip
import hashlib
import json

import aiohttp
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, archive, patient
from rung.config.code_folder import check_archive
from rung.events import LedgerUnavailable, decode
from rung.events.allocation import AgentJoined, Slot
from rung.events.experiment import ExperimentSubmitted
from rung.gateway.routes.submission import LETTERS
from rung.runtime.levels import raise_level
from rung.storage import ObjectUnavailable
from support.gateway.client import TOKEN, Answer, Client


async def test_experiment_is_on_record(world: World, client: Client) -> None:
    """The fact holds the complete configuration, a seed, the source as written, and no code."""
    answer = await client.submit(EXPERIMENT_FILE)
    (fact,) = await world.all("experiments")

    assert answer.status == 201
    assert isinstance(fact, ExperimentSubmitted)
    assert answer.json["experiment_id"] == fact.experiment_id
    assert answer.headers["location"] == answer.json["url"]
    assert len(fact.experiment_id) == 8
    assert set(fact.experiment_id) <= set(LETTERS)
    assert fact.source == EXPERIMENT_FILE
    assert fact.code_digest is None
    assert 0 <= fact.config["reproducibility"]["experiment_seed"] < 2**31
    assert fact.config["max_restarts"] == 5


async def test_experiment_has_the_installation_s_level(world: World, client: Client) -> None:
    """From the moment on at which it is raised, without a restart of the gateway."""
    await client.submit(EXPERIMENT_FILE)
    await raise_level(world.ledger, 2)
    await client.submit(EXPERIMENT_FILE)

    facts = await world.all("experiments")
    assert sorted(it.level for it in facts if isinstance(it, ExperimentSubmitted)) == [1, 2]


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ("{slots_per_trial: 4}", None),
        ("{slots_per_trial: 5}", "resources: pool default cannot give a trial 5 slots"),
        ("{resource_pool: compute-pool}", "resources: pool compute-pool has no agent"),
    ],
)
async def test_what_can_never_be_placed_is_told(
    world: World, resources: str, words: str | None
) -> None:
    """A pool without agents, or a gang that its agents could not hold, is taken in and told."""
    for name in ("a", "b"):
        slots = [Slot(id=number, kind="cuda", name="GPU") for number in range(2)]
        await world.write(
            AgentJoined(pool="default", agent_id=name, incarnation=1, hostname="h", slots=slots)
        )
    text = f"{EXPERIMENT_FILE}resources: {resources}\n"
    async with world.gateway() as client:
        submitted = await client.submit(text)
        checked = await client.call("POST", "/experiments/validate", data=text.encode())

    assert submitted.status == 201
    assert submitted.json["warnings"] == checked.json["warnings"]
    told = submitted.json["warnings"]
    assert [line.startswith(words or "") for line in told] == ([] if words is None else [True])
    assert all("there is default (2 x 2 slots)" in line for line in told)


async def test_own_write_is_read_at_once(client: Client) -> None:
    """What was submitted is there when the answer is."""
    for _ in range(20):
        experiment = (await client.submit(EXPERIMENT_FILE)).json["experiment_id"]
        assert (await client.get(f"/experiments/{experiment}"))["state"] == "active"

    assert len((await client.get("/experiments"))["items"]) == 20


async def test_code_is_stored_once(world: World, client: Client) -> None:
    """Equal code lies in the store once, under the digest that is on record."""
    code = archive(**{"train.py": b"print(1)\n"})
    for packed in (code, gzip.compress(gzip.decompress(code), 1)):
        assert (await client.submit(EXPERIMENT_FILE, code=packed)).status == 201
    digests = {
        fact.code_digest
        for fact in await world.all("experiments")
        if isinstance(fact, ExperimentSubmitted)
    }
    (digest,) = digests
    (info,) = world.store.list("code/")

    assert info.name == f"code/{digest}.tar.gz"
    assert check_archive(world.store.read(info.name)).digest == digest


async def test_the_configuration_of_runs_is_stored(world: World, client: Client) -> None:
    """It lies in the store under the digest on record, which is that of its bytes."""
    await client.submit(EXPERIMENT_FILE)
    [fact] = await world.all("experiments")
    [info] = world.store.list("configs/")

    assert isinstance(fact, ExperimentSubmitted)
    assert fact.config_digest is not None
    data = world.store.read(f"configs/{fact.config_digest}.json")
    assert info.name == f"configs/{hashlib.sha256(data).hexdigest()}.json"
    stored = json.loads(data)
    assert stored == {name: it for name, it in fact.config.items() if name != "hyperparameters"}


async def test_nothing_is_on_record_while_objects_cannot_be_stored(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that could not have its configuration is never asked for."""

    def refuse(name: str, data: bytes) -> None:
        raise ObjectUnavailable("no route to the store")

    monkeypatch.setattr(world.store, "put_bytes", refuse)
    answer = await client.submit(EXPERIMENT_FILE)

    assert answer.status == 503
    assert await world.all("experiments") == []


async def test_invalid_file_is_refused_with_paths(world: World, client: Client) -> None:
    """Every problem is named with its path, and nothing is on record."""
    text = EXPERIMENT_FILE.replace("max_trials: 2", "max_trials: -1") + "max_restart: 1\n"
    answer = await client.submit(text)

    assert (answer.status, answer.kind) == (422, "invalid-experiment")
    assert {it["path"] for it in answer.json["errors"]} == {"searcher.max_trials", "max_restart"}
    assert await world.all("experiments") == []


async def test_validation_writes_nothing(world: World, client: Client) -> None:
    """A file can be checked alone; the answer is the expanded configuration."""
    answer = await client.call("POST", "/experiments/validate", data=EXPERIMENT_FILE.encode())
    refused = await client.call("POST", "/experiments/validate", data=b"name: [")

    assert answer.json["config"]["searcher"]["max_time"] == 4
    assert refused.status == 422
    assert await world.all("experiments") == []


@pytest.mark.parametrize(
    "code",
    [b"", b"no archive", gzip.compress(b"no tar"), archive(**{"../out": b""})],
    ids=["empty", "garbage", "no-tar", "climbs"],
)
async def test_bad_code_is_refused(client: Client, code: bytes) -> None:
    """An archive that cannot be unpacked safely is refused in words."""
    answer = await client.submit(EXPERIMENT_FILE, code=code)

    assert (answer.status, answer.kind) == (422, "invalid-code")
    assert answer.json["errors"][0]["path"] == "code"


async def test_too_much_is_refused(world: World) -> None:
    """Limits hold for the file and for the code, announced by a length or not."""
    world.settings = patient(config_bytes_max=2_000, code_bytes_max=5_000)
    async with world.gateway() as client:
        answers = [
            await client.submit("# " + "x" * 3_000),
            await client.submit(EXPERIMENT_FILE, code=b"x" * 6_000),
            await client.submit(EXPERIMENT_FILE, code=b"x" * 4_000_000),
            await client.call("POST", "/experiments/validate", data=b"x" * 3_000),
        ]

    assert [answer.status for answer in answers] == [413] * 4
    assert world.store.list("") == []


async def _send(client: Client, body: bytes, content_type: str) -> tuple[int, str]:
    answer = await client.call(
        "POST", "/experiments", data=body, headers={"Content-Type": content_type}
    )
    return answer.status, answer.kind


def _part(name: str, text: str = "x") -> str:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"{}", "application/json", (415, "unsupported-media-type")),
        (b"", "multipart/form-data", (400, "malformed")),
        (b"", "multipart/form-data; boundary=b", (400, "malformed")),
        (b"no form", "multipart/form-data; boundary=b", (400, "malformed")),
        (b"--b\r\n", "multipart/form-data; boundary=b", (400, "bad-part")),
        (b"--b\r\nno header\r\n\r\n", "multipart/form-data; boundary=b", (400, "malformed")),
        (_part("config").encode(), "multipart/form-data; boundary=b", (400, "malformed")),
        (f"{_part('cfg')}--b--".encode(), "multipart/form-data; boundary=b", (400, "bad-part")),
        (f"{_part('code')}--b--".encode(), "multipart/form-data; boundary=b", (400, "bad-part")),
        (
            f"{_part('config')}{_part('config')}--b--".encode(),
            "multipart/form-data; boundary=b",
            (400, "bad-part"),
        ),
        (
            b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c--\r\n--b--",
            "multipart/form-data; boundary=b",
            (400, "bad-part"),
        ),
    ],
)
async def test_malformed_body_is_refused(
    client: Client, body: bytes, content_type: str, expected: tuple[int, str]
) -> None:
    """What is no submission is refused, saying what one is."""
    assert await _send(client, body, content_type) == expected


async def test_a_script_that_is_not_there_is_refused(world: World, client: Client) -> None:
    """Who forgets the folder, or names another file, hears of it before any trial fails."""
    text = EXPERIMENT_FILE.replace("python3 -m train", "python3 train.py")
    for code, said in ((None, "no code was submitted"), (archive(main=b""), "not among the code")):
        answer = await client.submit(text, code=code)
        assert (answer.status, answer.json["errors"][0]["path"]) == (422, "entrypoint")
        assert f"runs train.py, but {'it is ' * (code is not None)}{said}" in answer.json["detail"]
    assert await world.all("experiments") == []
    assert (await client.submit(text, code=archive(**{"train.py": b""}))).status == 201


async def test_data_that_are_not_there_are_refused(world: World, client: Client) -> None:
    """So does who names data among the code that are not; what lies elsewhere is the agent's."""
    places = "{a: x/a.csv, b: {location: x}, c: ./y/c.csv, d: /no/where, e: 's3://bucket/e'}"
    text = f"{EXPERIMENT_FILE}data: {{sources: {places}}}\n"
    for code, missing in (
        (None, ["a", "b", "c"]),
        (archive(**{"x/b.csv": b""}), ["a", "c"]),
        (archive(**{"x/a.csv": b"", "y/d.csv": b""}), ["c"]),
    ):
        answer = await client.submit(text, code=code)
        paths = [item["path"] for item in answer.json["errors"]]
        assert (answer.status, paths) == (422, [f"data.sources.{name}" for name in missing])
    said = "is ./y/c.csv, but it is not among the code; did you mean `y/d.csv`?"
    assert said in answer.json["detail"]
    assert await world.all("experiments") == []
    there = archive(**{"x/a.csv": b"", "y/c.csv": b""})
    assert (await client.submit(text, code=there)).status == 201


async def test_same_key_is_answered_again(world: World, client: Client) -> None:
    """The same request under the same key is one experiment, answered the same."""
    code = archive(**{"train.py": b""})
    answers = [await client.submit(EXPERIMENT_FILE, code=code, key="a-key") for _ in range(3)]

    assert [answer.status for answer in answers] == [201] * 3
    assert len({answer.body for answer in answers}) == 1
    assert len(await world.all("experiments")) == 1


async def test_same_key_at_the_same_time(world: World, client: Client) -> None:
    """Requests under one key that arrive together are one experiment."""
    requests = [client.submit(EXPERIMENT_FILE, key="a-key") for _ in range(10)]
    answers = await asyncio.gather(*requests)

    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1
    assert len(await world.all("experiments")) == 1


async def test_key_with_another_body_is_refused(client: Client) -> None:
    """A key stands for one file and one code."""
    assert (await client.submit(EXPERIMENT_FILE, key="k")).status == 201
    other_file = await client.submit(EXPERIMENT_FILE + "# other\n", key="k")
    other_code = await client.submit(EXPERIMENT_FILE, code=archive(a=b""), key="k")

    assert [(it.status, it.kind) for it in (other_file, other_code)] == [
        (422, "idempotency-key-reused")
    ] * 2


async def test_key_survives_a_restart(world: World) -> None:
    """Another gateway on the same ledger knows the key, for it is on record."""
    async with world.gateway() as client:
        first = await client.submit(EXPERIMENT_FILE, key="k")
    async with world.gateway() as client:
        again = await client.submit(EXPERIMENT_FILE, key="k")
        other = await client.submit(EXPERIMENT_FILE + "\n", key="k")

    assert first.body == again.body
    assert other.status == 422
    assert len(await world.all("experiments")) == 1


async def test_two_gateways_with_one_key(world: World) -> None:
    """Two gateways at once: one experiment; the one that lost with another body says so."""
    async with world.gateway() as one, world.gateway() as two:
        first, second = await asyncio.gather(
            one.submit(EXPERIMENT_FILE, key="k"), two.submit(EXPERIMENT_FILE + "\n", key="k")
        )
        async with world.searcher():
            listed = await one.get("/experiments")

    assert sorted([first.status, second.status]) == [201, 422]
    assert len(listed["items"]) == 1


@pytest.mark.parametrize("key", ["", "with space", "ü", "x" * 201])
async def test_odd_key_is_refused(client: Client, key: str) -> None:
    """A key that cannot be kept is refused, naming the header."""
    form = aiohttp.FormData({"config": EXPERIMENT_FILE}, default_to_multipart=True)
    answer = await client.call("POST", "/experiments", data=form, headers={"Idempotency-Key": key})

    assert answer.status == 400
    assert answer.json["errors"][0]["path"] == "Idempotency-Key"


async def _refuse(drafts: object) -> list[int]:
    raise LedgerUnavailable("the disk is full; free some space")


async def test_ledger_that_refuses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that takes nothing is answered with 503 and when to come back."""
    async with world.gateway() as client:
        with monkeypatch.context() as patch:
            patch.setattr(world.ledger, "append", _refuse)
            answer = await client.submit(EXPERIMENT_FILE, key="k")
        again = await client.submit(EXPERIMENT_FILE, key="k")

    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert "disk is full" in answer.json["detail"]
    assert again.status == 201


async def test_actor_and_origin(world: World, client: Client) -> None:
    """The envelope says who asked for it, who wrote it, and under which key."""
    await client.submit(EXPERIMENT_FILE, key="k")
    (record,) = [
        record
        for partition in range(world.ledger.partitions("experiments"))
        for record in await world.ledger.read("experiments", partition, 0, 10)
    ]
    event = decode(record.value)

    assert (event.source, event.origin, event.sequence) == ("/rung/gateway", "client/k", 1)
    assert (event.actor, event.onbehalfof) == ("admin", None)


async def test_unauthorized_upload_is_not_read(client: Client) -> None:
    """Without the token a submission is refused at once."""
    form = aiohttp.FormData({"config": EXPERIMENT_FILE}, default_to_multipart=True)
    answer = await client.call(
        "POST", "/experiments", data=form, headers={"Authorization": f"Basic {TOKEN}"}
    )

    assert answer.status == 401


async def test_code_comes_back_as_it_ran(world: World, client: Client) -> None:
    """In its canonical form, whatever was sent; what is altered or missing is refused."""
    code = archive(**{"b.py": b"2", "a.py": b"1"})
    plain = (await client.submit(EXPERIMENT_FILE)).json["experiment_id"]
    coded = (await client.submit(EXPERIMENT_FILE, code=code)).json["experiment_id"]
    digest = (await client.get(f"/experiments/{coded}"))["code_digest"]
    name = f"code/{digest}.tar.gz"

    fetched = await client.call("GET", f"/experiments/{coded}/code")
    none = await client.call("GET", f"/experiments/{plain}/code")
    world.store.put_bytes(name, fetched.body[:-1])
    altered = await client.call("GET", f"/experiments/{coded}/code")
    world.store.delete(name)
    missing = await client.call("GET", f"/experiments/{coded}/code")

    assert fetched.body == check_archive(code).data
    assert hashlib.sha256(fetched.body).hexdigest() == digest
    assert [(it.status, it.kind) for it in (none, altered, missing)] == [
        (404, "no-code"),
        (409, "damaged"),
        (410, "gone"),
    ]


async def test_the_parent_is_on_record(world: World, client: Client) -> None:
    """By its whole id, also under a repeated key; a parent that is not there is refused."""
    first = (await client.submit(EXPERIMENT_FILE)).json["experiment_id"]

    async def fork(parent: str, key: str) -> Answer:
        form = aiohttp.FormData()
        form.add_field("config", EXPERIMENT_FILE, filename="experiment.yaml")
        headers = {"Idempotency-Key": key}
        path = f"/experiments?parent={parent}"
        return await client.call("POST", path, data=form, headers=headers)

    made = await fork(first[:6], "k1")
    again = await fork(first, "k1")
    unknown = await fork("nope", "k2")
    other = await fork(made.json["experiment_id"], "k1")

    assert (again.json, unknown.status, other.status) == (made.json, 404, 422)
    shown = await client.get(f"/experiments/{made.json['experiment_id']}")
    assert shown["parent"] == first
    facts = [it for it in await world.all("experiments") if isinstance(it, ExperimentSubmitted)]
    assert sorted(it.parent or "" for it in facts) == ["", first]
