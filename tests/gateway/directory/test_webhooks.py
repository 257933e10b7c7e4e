"""Webhooks over HTTP: what is kept of them, who may see and change them, what was delivered."""

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from msgspec import structs

from gateway.conftest import World, until
from gateway.directory.test_routes import deciding, made, post
from rung.events import topic
from rung.events.directory import DirectoryChanged
from rung.events.webhook import DeliveryAttempted, DeliveryRequested, RedeliveryRequested
from rung.secrets.secret_store import SecretStore
from rung.subscription.document import read
from rung.subscription.sealed import Seal
from support.gateway.client import Client

URL: Final = "https://hooks.example.com/T0KEN"
ENDED: Final = "rung.experiment.ended.v1"
HOOK: Final[dict[str, Any]] = {"name": "ops", "url": URL, "events": [ENDED]}


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    """Return a client of a gateway, beside which the processor runs."""
    async with deciding(world), world.gateway() as client:
        yield client


def seal(world: World) -> Seal:
    """Return what opens receivers."""
    assert world.secrets_key is not None
    return Seal(SecretStore(world.store, world.secrets_key))


async def sealed(world: World) -> str:
    """Return what the newest document refers to."""
    found = [it for it in await world.all(topic.DIRECTORY) if isinstance(it, DirectoryChanged)]
    return read(found[-1].change.document).sealed  # type: ignore[union-attr]


async def test_a_webhook_from_its_beginning_to_its_end(world: World, client: Client) -> None:
    """The key is shown where it is drawn; the address never; nothing of them is on record."""
    created = await post(client, "/webhooks", HOOK | {"states": ["errored"]})
    assert created.status == 201, created
    hook = created.json
    assert hook["key"].startswith("whsec_")
    assert (hook["to"], hook["active"], hook["workspace"]) == (
        "hooks.example.com",
        True,
        "default",
    )
    assert seal(world).open(hook["id"], await sealed(world)).url == URL
    shown = await client.call("GET", "/webhooks/OPS")
    assert (shown.json["key"], shown.headers["etag"]) == (None, '"1"')
    assert [it["id"] for it in (await client.get("/webhooks?workspace=default"))["items"]] == [
        hook["id"]
    ]

    first = await sealed(world)
    changed = await made(client, "/webhooks/default%2Fops", {"states": []}, **{"If-Match": '"1"'})
    assert (changed["states"], changed["events"], changed["version"]) == ([], [ENDED], 2)
    assert await sealed(world) == first
    stale = await post(client, "/webhooks/ops", {"states": []}, **{"If-Match": '"1"'})
    assert (stale.status, stale.kind) == (412, "changed")

    moved = await made(client, "/webhooks/ops", {"url": "https://new.example.com/x"})
    assert (moved["to"], moved["key"]) == ("new.example.com", None)
    receiver = seal(world).open(hook["id"], await sealed(world))
    assert (receiver.url, receiver.key) == ("https://new.example.com/x", hook["key"])
    rotated = await made(client, "/webhooks/ops/rotate", None)
    assert rotated["key"].startswith("whsec_")
    assert rotated["key"] != hook["key"]
    slack = await made(client, "/webhooks/ops", {"format": "slack"})
    assert seal(world).open(hook["id"], await sealed(world)).key == ""
    assert (slack["format"], slack["key"]) == ("slack", None)
    assert (await post(client, "/webhooks/ops/rotate")).status == 409
    assert len(list(world.store.list(f"secrets/webhooks/{hook['id']}/"))) == 1

    assert not (await made(client, "/webhooks/ops/deactivate", None))["active"]
    assert (await post(client, "/webhooks/ops/test")).kind == "inactive"
    assert (await made(client, "/webhooks/ops/activate", None))["active"]
    await made(client, "/webhooks/ops/delete", None)
    assert list(world.store.list("secrets/webhooks/")) == []
    assert (await client.call("GET", "/webhooks/ops")).status == 404
    record = json.dumps([str(it) for it in await world.all(topic.DIRECTORY)])
    assert "T0KEN" not in record
    assert "whsec_" not in record


async def test_a_repeated_request_makes_one_webhook(client: Client, world: World) -> None:
    """With the same key in its answer; another address under its Idempotency-Key is refused."""
    headers = {"Idempotency-Key": "k1"}
    first = await post(client, "/webhooks", HOOK, **headers)
    again = await post(client, "/webhooks", HOOK, **headers)
    assert (first.json["id"], first.json["key"]) == (again.json["id"], again.json["key"])
    other = await post(client, "/webhooks", HOOK | {"url": URL + "x"}, **headers)
    assert other.kind == "idempotency-key-reused"
    assert len(list(world.store.list("secrets/webhooks/"))) == 1
    taken = await post(client, "/webhooks", HOOK)
    assert (taken.status, taken.kind) == (409, "taken")
    assert len(list(world.store.list("secrets/webhooks/"))) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": "http://hooks.example.com/"}, "url"),
        ({"url": "https://127.0.0.1/"}, "url"),
        ({"url": "https://[::ffff:10.0.0.1]/"}, "url"),
        ({"url": "https://user:pass@hooks.example.com/"}, "url"),
        ({"events": ["rung.none.v1"]}, "events"),
        ({"events": []}, "events"),
        ({"states": ["lost"]}, "states"),
        ({"logs": ["("]}, "logs"),
        ({"metrics": [{"metric": "loss"}]}, "metrics"),
        ({"format": "email"}, "url"),
        ({"format": "email", "url": "", "mail_to": []}, "mail_to"),
        ({"format": "email", "url": "", "mail_to": ["a@b.c, d@e.f"]}, "mail_to"),
        ({"mail_to": ["a@b.c"]}, "mail_to"),
        ({"experiment": "none"}, "experiment"),
        ({"project": "none"}, "project"),
        ({"workspace": "none"}, "workspace"),
    ],
)
async def test_what_is_wrong_is_named(
    client: Client, world: World, change: dict[str, Any], field: str
) -> None:
    """And nothing is kept of it."""
    answer = await post(client, "/webhooks", HOOK | change)
    assert answer.status == 422, answer
    assert [it["path"] for it in answer.json["errors"]] == [field]
    assert list(world.store.list("secrets/webhooks/")) == []


async def test_without_a_key_there_are_no_webhooks(world: World) -> None:
    """The operator is told what to set."""
    world.secrets_key = None
    async with deciding(world), world.gateway() as client:
        answer = await post(client, "/webhooks", HOOK)
    assert (answer.status, answer.kind) == (422, "no-secrets-key")


async def test_what_was_delivered_is_listed_and_repeated(world: World, client: Client) -> None:
    """Newest first, page by page; a repeated request to deliver again is one."""
    hook = (await made(client, "/webhooks", HOOK))["id"]
    event = {"id": "dlv_0", "type": ENDED, "subject": "e1", "data": {"state": "errored"}}
    asked = DeliveryRequested(
        webhook_id=hook, delivery_id="dlv_0", experiment_id="e1", event=event
    )
    failed = DeliveryAttempted(
        webhook_id=hook,
        delivery_id="dlv_0",
        attempt=1,
        outcome="failed",
        status=500,
        reason="answered 500",
        took_ms=7,
        next_ms=1_700_000_000_000,
    )
    await world.write(asked, failed, structs.replace(asked, delivery_id="dlv_1"))
    found = await until(
        lambda: client.get(f"/webhooks/{hook}/deliveries"), lambda it: len(it["items"]) == 2
    )
    newest, oldest = found["items"]
    assert (newest["id"], newest["state"], newest["attempts"]) == ("dlv_1", "waiting", 0)
    assert (oldest["state"], oldest["status"], oldest["reason"]) == (
        "waiting",
        500,
        "answered 500",
    )
    assert oldest["next_at"] == "2023-11-14T22:13:20.000Z"
    page = await client.get(f"/webhooks/{hook}/deliveries?limit=1")
    rest = await client.get(f"/webhooks/{hook}/deliveries?cursor={page['next_cursor']}")
    assert [it["id"] for it in (*page["items"], *rest["items"])] == ["dlv_1", "dlv_0"]

    headers = {"Idempotency-Key": "k2"}
    for _ in range(2):
        answer = await post(client, f"/webhooks/{hook}/deliveries/dlv_0/redeliver", **headers)
        assert (answer.status, answer.json) == (202, {"id": "dlv_0"})
    again = [it for it in await world.all(topic.DELIVERIES) if isinstance(it, RedeliveryRequested)]
    assert [(it.delivery_id, it.experiment_id, it.event) for it in again] == [
        ("dlv_0", "e1", event)
    ]
    tested = await post(client, "/webhooks/ops/test")
    listed = await client.get(f"/webhooks/{hook}/deliveries")
    assert listed["items"][0]["id"] == tested.json["id"]
    assert listed["items"][0]["type"] == "rung.webhook.test.v1"
    assert (await post(client, f"/webhooks/{hook}/deliveries/none/redeliver")).status == 404
    log = await client.get("/log?what=rung.delivery")
    assert [it["did"] for it in log["items"]] == [
        f"tested webhook {hook}",
        f"had a delivery of webhook {hook} repeated",
    ]


async def test_who_does_not_see_a_workspace_sees_no_webhook_of_it(client: Client) -> None:
    """A viewer sees and may not change; others find nothing."""
    await made(client, "/webhooks", HOOK)
    tokens = {}
    for name in ("viewer", "nobody"):
        await made(client, "/service-accounts", {"name": name})
        wanted = {"name": "t", "user": name}
        kind = {"Content-Type": "application/json"}
        token = await made(client, "/tokens", wanted, **kind)
        tokens[name] = {"Authorization": f"Bearer {token['secret']}"}
    role = {"role": "editor-restricted", "user": "viewer", "workspace": "default"}
    await made(client, "/assignments", role)
    assert (await client.get("/webhooks", headers=tokens["nobody"]))["items"] == []
    for path in ("/webhooks/ops", "/webhooks/ops/deliveries"):
        assert (await client.call("GET", path, headers=dict(tokens["nobody"]))).status == 404
        assert (await client.call("GET", path, headers=dict(tokens["viewer"]))).status == 200
    for path in ("", "/rotate", "/test", "/delete", "/activate"):
        body = {"name": "x"} if not path else None
        assert (await post(client, f"/webhooks/ops{path}", body, **tokens["nobody"])).status == 404
        refused = await post(client, f"/webhooks/ops{path}", body, **tokens["viewer"])
        assert refused.status == 403, path
        assert "webhook.edit" in refused.json["detail"]
    assert (await post(client, "/webhooks", HOOK, **tokens["nobody"])).status == 422
    assert (await post(client, "/webhooks", HOOK, **tokens["viewer"])).status == 403
