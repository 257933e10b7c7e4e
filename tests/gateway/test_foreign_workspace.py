"""What belongs to another workspace is to its members as if it did not exist.

Each request names something of the workspace `vault`, by id or name, in its path, its query or its
body. Ben, who administers another workspace, must be answered as for a name that nothing has:
the same status, headers of the answer and words. An administrator's answer shows that the request
itself is right.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest
from msgspec import structs

from gateway.conftest import EXPERIMENT_FILE, World
from rung.events.experiment import ExperimentSubmitted
from rung.gateway.directory.processor import DirectoryProcessor
from rung.runtime import host
from rung.runtime.relay import relay
from support.gateway.checkpoint import FILES, store_files
from support.gateway.client import Answer, Client
from support.gateway.holds import HOLDS
from support.gateway.people import bearer
from support.gateway.scenario import submitted

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

THEIRS: Final = "vvvv7777"
"""An experiment of the other workspace."""
FILE: Final = EXPERIMENT_FILE + "workspace: speech\nproject: words\n"


class Vault(NamedTuple):
    """An installation with something of each kind in a workspace that Ben does not see."""

    client: Client
    ben: dict[str, str]
    names: dict[str, str]
    """What is there, by placeholder."""

    async def make(self, path: str, **body: Any) -> Any:
        """Have the administrator create something."""
        answer = await self.client.call("POST", path, json=body)
        assert answer.status == 201, (path, answer.body)
        return answer.json


@pytest.fixture
async def vault(world: World, tmp_path: Path) -> AsyncIterator[Vault]:
    """Return an installation of two workspaces, and a member of one of them."""
    tasks = [
        asyncio.create_task(host(world.ledger, DirectoryProcessor())),
        asyncio.create_task(relay(world.ledger, HOLDS)),
    ]
    await store_files(world, tmp_path, FILES)
    async with world.gateway() as client:
        found = Vault(client, {}, {})
        names = {}
        for workspace, project in (("vault", "gold"), ("speech", "words")):
            place = await found.make("/workspaces", name=workspace)
            made = await found.make("/projects", workspace=workspace, name=project)
            names[workspace], names[project] = place["id"], made["id"]
        await found.make("/users", name="ben")
        await found.make("/assignments", role="workspace-admin", user="ben", workspace="speech")
        ben = await found.make("/service-accounts", name="ben-s", workspace="speech")
        await found.make(
            "/assignments", role="workspace-admin", user=ben["id"], workspace="speech"
        )
        token = await found.make("/tokens", name="t", user=ben["id"])
        names |= await _furnish(found)
        await world.write(_theirs(names["vault"], names["gold"]))
        yield found._replace(ben=bearer(token["secret"]), names=names)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _theirs(workspace_id: str, project_id: str) -> ExperimentSubmitted:
    return structs.replace(
        submitted(max_trials=1),
        experiment_id=THEIRS,
        workspace_id=workspace_id,
        project_id=project_id,
    )


async def _furnish(vault: Vault) -> dict[str, str]:
    """Put something of each kind into the vault, and return the ids."""
    account = await vault.make("/service-accounts", name="guard", workspace="vault")
    given = await vault.make("/assignments", role="editor", user=account["id"], workspace="vault")
    token = await vault.make("/tokens", name="patrol", user=account["id"])
    limits = {"kind": "constraints", "document": "max_restarts: {at_most: 3}\n"}
    policy = await vault.make("/policies", name="strict", workspace="vault", **limits)
    inner = await vault.make("/policies", name="inner", project="vault/gold", **limits)
    path = "/workspaces/vault"
    model = await vault.make("/models", name="digits", workspace="vault")
    await vault.make(f"/models/{model['id']}/versions", checkpoint="c1")
    await vault.make("/models", name="own", workspace="speech")
    template = await vault.make(f"{path}/templates", name="shape", document="max_restarts: 1\n")
    await vault.make(f"{path}/secrets", name="combination", value="11-22-33-44")
    return {
        "guard": account["id"],
        "given": given["id"],
        "patrol": token["token"]["id"],
        "strict": policy["id"],
        "inner": inner["id"],
        "shape": template["id"],
        "digits": model["id"],
        "stored": "c1",
    }


POST: Final = "POST"
GET: Final = "GET"
REQUESTS: Final[list[tuple[str, str, Any]]] = [
    (GET, "/workspaces/{vault}", None),
    (GET, "/projects/{gold}", None),
    (GET, "/projects?workspace={vault}", None),
    (GET, "/service-accounts/{guard}", None),
    (GET, "/users/{guard}", None),
    (GET, "/tokens?user={guard}", None),
    (GET, "/assignments?workspace={vault}", None),
    (GET, "/assignments?user={guard}", None),
    (GET, "/assignments/{given}", None),
    (GET, "/workspaces/{vault}/templates", None),
    (GET, "/workspaces/{vault}/secrets", None),
    (GET, "/experiments/{experiment}", None),
    (GET, "/experiments/{beginning}", None),
    (GET, "/find?name={beginning}", None),
    (GET, "/trials/{experiment}.0", None),
    (GET, "/experiments?workspace={vault}", None),
    (GET, "/experiments?filter=workspace:{vault}", None),
    (GET, "/experiments?filter=project:{gold}", None),
    (GET, "/experiments?filter=id:{experiment}", None),
    (GET, "/experiments?project={gold}", None),
    (POST, "/workspaces/{vault}", {"description": "x"}),
    (POST, "/workspaces/{vault}/archive", {}),
    (POST, "/workspaces/{vault}/unarchive", {}),
    (POST, "/projects", {"workspace": "{vault}", "name": "mine"}),
    (POST, "/projects/{gold}", {"description": "x"}),
    (POST, "/service-accounts", {"name": "spy", "workspace": "{vault}"}),
    (POST, "/service-accounts/{guard}", {"display_name": "x"}),
    (POST, "/users/{guard}/password", {"password": "a password of the tests"}),
    (POST, "/tokens", {"name": "x", "user": "{guard}"}),
    (POST, "/tokens", {"name": "y", "workspace": "{vault}"}),
    (POST, "/tokens/{patrol}/rotate", {}),
    (POST, "/assignments", {"role": "viewer", "user": "ben", "workspace": "{vault}"}),
    (POST, "/assignments", {"role": "viewer", "user": "{guard}", "workspace": "speech"}),
    (POST, "/workspaces/{vault}/templates", {"name": "n", "document": "max_restarts: 1\n"}),
    (POST, "/workspaces/{vault}/secrets", {"name": "n", "value": "abcdefgh"}),
    (POST, "/workspaces/{vault}/secrets/combination/delete", {}),
    (
        POST,
        "/policies",
        {
            "name": "n",
            "kind": "defaults",
            "document": "max_restarts: 1\n",
            "workspace": "{vault}",
        },
    ),
    (
        POST,
        "/policies",
        {
            "name": "n",
            "kind": "defaults",
            "document": "max_restarts: 1\n",
            "project": "{vault}/gold",
        },
    ),
    (
        POST,
        "/policies",
        {"name": "m", "kind": "defaults", "document": "max_restarts: 1\n", "project": "{gold}"},
    ),
    (POST, "/config/resolve", {"source": EXPERIMENT_FILE, "workspace": "{vault}"}),
    (
        POST,
        "/config/resolve",
        {"source": EXPERIMENT_FILE, "workspace": "speech", "project": "{gold}"},
    ),
    (
        POST,
        "/config/resolve",
        {
            "source": EXPERIMENT_FILE,
            "workspace": "speech",
            "project": "words",
            "template": "{shape}",
        },
    ),
    (POST, "/experiments/{experiment}/pause", None),
    (POST, "/experiments:batch", {"action": "resume", "ids": ["{experiment}"]}),
    (POST, "/experiments:batch", {"action": "kill", "filter": "workspace:{vault}"}),
    (POST, "/experiments/{experiment}/move?workspace=speech&project=words", None),
    (POST, "/projects/{gold}/move", {"workspace": "speech"}),
    (POST, "/workspaces/{vault}/templates/shape/delete", {}),
    (POST, "/policies/{strict}/delete", {}),
    (POST, "/policies/inner/delete", {}),
    (POST, "/assignments/{given}/delete", {}),
    (POST, "/tokens/{patrol}/revoke", {}),
    (GET, "/models/{digits}", None),
    (GET, "/models?workspace={vault}", None),
    (GET, "/models/{digits}/versions", None),
    (GET, "/models/{digits}/versions/1", None),
    (GET, "/models/{digits}/versions/1/checkpoint", None),
    (GET, "/models/{digits}/versions/1/archive", None),
    (GET, f"/models/{{digits}}/versions/1/file?name={next(iter(FILES))}", None),
    (POST, "/models/{digits}/versions", {"checkpoint": "{stored}"}),
    (POST, "/models/own/versions", {"checkpoint": "{stored}"}),
    (POST, "/models/{digits}/versions/1", {"notes": "x"}),
    (POST, "/models/{digits}/versions/1/delete", None),
    (POST, "/models", {"name": "n", "workspace": "{vault}"}),
    (POST, "/models/{digits}", {"description": "x"}),
    (POST, "/models/{digits}/archive", None),
    (POST, "/models/{digits}/unarchive", None),
    (POST, "/models/{digits}/move", {"workspace": "speech"}),
    (POST, "/models/{digits}/delete", None),
    (POST, "/service-accounts/{guard}/deactivate", {}),
    (POST, "/projects/{words}/move", {"workspace": "{vault}"}),
]
WRONG_FOR_ALL: Final = {
    "/users/{guard}",
    "/users/{guard}/password",
    "/projects/{words}/move",
    "/config/resolve",
    "/tokens",
    "/trials/{experiment}.0",
}
"""Paths at which an administrator is refused as well: for what the thing is, and not for where."""


def _filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, dict):
        return {key: _filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    return value


def _blank(answer: Answer, names: list[str]) -> tuple[int, dict[str, str], str]:
    """Return an answer without the names that its request had."""
    text = answer.body.decode()
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "…")
    kept = {"etag", "location", "retry-after", "content-type", "cache-control"}
    return answer.status, {key: it for key, it in answer.headers.items() if key in kept}, text


async def test_by_id_and_name(vault: Vault) -> None:
    """In each request that may name something of a workspace; with a version, too."""
    real = {**vault.names, "experiment": THEIRS, "beginning": THEIRS[:4]}
    by_name = real | {name: name for name in ("vault", "guard", "shape", "strict", "digits")}
    missing = {name: f"q{text[1:]}" for name, text in real.items()} | {
        name: real[name] for name in ("words", "speech")
    }
    wrong = []
    for number, (method, path, body) in enumerate(REQUESTS):
        for names in (real, by_name):
            for headers in ({}, {"If-Match": '"99"'}, {"Idempotency-Key": f"k{number}"}):
                answers = []
                for each in (names, missing):
                    options = {} if body is None else {"json": _filled(body, each)}
                    answer = await vault.client.call(
                        method, _filled(path, each), headers=vault.ben | headers, **options
                    )
                    answers.append(_blank(answer, [*each.values(), *by_name.values()]))
                if "Idempotency-Key" in headers and answers[1][0] == 422 != answers[0][0]:
                    continue  # the second request under the key is another one
                if answers[0] != answers[1]:
                    wrong.append((method, path, body, headers, answers))
    assert not wrong, "\n".join(map(str, wrong))
    for method, path, body in REQUESTS:
        options = {} if body is None else {"json": _filled(body, real)}
        answer = await vault.client.call(method, _filled(path, real), **options)
        assert answer.status < 400 or path in WRONG_FOR_ALL, (path, body, answer.body)


async def test_lists_have_nothing_of_it(vault: Vault) -> None:
    """No list, count or message has a name or an id of what is there."""
    hidden = {*vault.names.values(), THEIRS, "vault", "gold", "guard", "patrol", "strict"}
    hidden |= {"inner", "shape", "combination", "digits"}
    hidden -= {vault.names["speech"], vault.names["words"]}
    paths = [
        *("/workspaces", "/projects", "/service-accounts", "/users", "/groups", "/tokens"),
        *(
            "/assignments",
            "/policies",
            "/models",
            "/experiments",
            "/queue",
            "/experiments?q=vault",
        ),
        *(
            "/experiments?filter=-workspace:speech",
            "/experiments?sort=-trials",
            "/experiments?q=*",
        ),
        *("/workspaces/speech/templates", "/workspaces/speech/secrets", "/find?name=v"),
        *("/find?name=mnist", "/workspaces?archived=false", "/users?group=vault"),
    ]
    for path in paths:
        answer = await vault.client.call("GET", path, headers=dict(vault.ben))
        text = answer.body.decode()
        assert answer.status < 500, answer
        text = text.replace(path, "")
        # Whole words: an id of something else may have a short one's letters.
        found = [name for name in hidden if re.search(rf"\b{re.escape(name)}\b", text)]
        assert not found, (path, text)


async def test_what_starts_from_it(vault: Vault) -> None:
    """For a file, templates, secrets, parents and trials of the vault are not there."""
    pairs = [
        ("?template=shape", "?template=shapf", FILE, FILE),
        (f"?template={vault.names['shape']}", "?template=none", FILE, FILE),
        (f"?parent={THEIRS}", "?parent=mmmm7777", FILE, FILE),
        ("?workspace=vault", "?workspace=wault", FILE, FILE),
        (
            "",
            "",
            FILE + "secrets: {environment: {A: combination}}\n",
            FILE + "secrets: {environment: {A: combinatiom}}\n",
        ),
        (
            "",
            "",
            FILE.replace("name: random", f"name: random\n  source_trial_id: {THEIRS}.0"),
            FILE.replace("name: random", "name: random\n  source_trial_id: mmmm7777.0"),
        ),
    ]
    words = ["shapf", "shape", vault.names["shape"], "none", THEIRS, "mmmm7777", "wault", "vault"]
    for real_query, missing_query, real_file, missing_file in pairs:
        found = []
        for query, text in ((real_query, real_file), (missing_query, missing_file)):
            answer = await _submit(vault, text, query)
            assert answer.status in {404, 422}, answer
            shown = answer.body.decode().replace("combinatiom", "combination")
            for word in words:
                shown = shown.replace(word, "…")
            found.append((answer.status, shown))
        assert found[0] == found[1]


async def _submit(vault: Vault, text: str, query: str = "") -> Answer:
    form = aiohttp.FormData()
    form.add_field("config", text, filename="experiment.yaml")
    return await vault.client.call(
        "POST", f"/experiments{query}", data=form, headers=dict(vault.ben)
    )


async def test_a_key_of_somebody_else(vault: Vault) -> None:
    """An Idempotency-Key that another user has used is one that nobody has."""
    key = {"Idempotency-Key": "theirs"}
    body = {"workspace": "vault", "name": "silver"}
    first = await vault.client.call("POST", "/projects", json=body, headers=dict(key))
    assert first.status == 201
    again = await vault.client.call("POST", "/projects", json=body, headers=vault.ben | key)
    assert (again.status, "silver" in json.dumps(again.json)) == (422, False)
    mine = {"workspace": "speech", "name": "silver"}
    made = await vault.client.call("POST", "/projects", json=mine, headers=vault.ben | key)
    assert (made.status, made.json["workspace"]) == (201, "speech")
