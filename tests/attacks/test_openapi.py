"""Calls generated from the OpenAPI document that a real gateway serves, good and bad ones.

Schemathesis makes them and holds the answers to the document. Ids of what exists are put in from
time to time, so that more than 404 is answered.
"""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig

from attacks.conftest import Attack
from gateway.conftest import EXPERIMENT_FILE, World
from rung.events.deadletter import MessageRejected
from rung.ledger import SqliteLedger
from rung.storage import FolderStore
from support.gateway.checkpoint import FILES, TRIAL, store_files
from support.gateway.client import TOKEN
from support.gateway.process import GatewayProcess, gateway_process
from support.gateway.scenario import EXPERIMENT

pytestmark = pytest.mark.attacks

load_all_checks()
_CHECKS: Final[Any] = CHECKS.get_by_names(
    [
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
        "allow_header_conformance",
        "missing_required_header",
    ]
)
_REFUSALS: Final = ["400", "401", "404", "405", "409", "411", "413", "415", "421", "422"]
"""How calls that violate the document may be answered; a body may also be too large to be read,
and a generated header may name another host."""
_EXAMPLES: Final = 5
_KNOWN: Final = {
    "experiment_id": EXPERIMENT,
    "trial_id": TRIAL,
    "checkpoint_id": "c1",
    "pool": "default",
    "reader": "searcher",
    "topic": "experiments",
    "partition": "0",
    "position": "7",
    "project": "default",
    "secret": "one",
    "template": "one",
    "delivery": "one",
    "user": "admin",
    "workspace": "default",
    "model": "one",
    "version": "1",
}
"""A value of each parameter of a path that exists, besides those of `_MADE`."""
_MADE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "account": ("/service-accounts", {"name": "one"}),
    "group": ("/groups", {"name": "one"}),
    "token": ("/tokens", {"name": "one"}),
    "assignment": ("/assignments", {"role": "viewer", "user": "one"}),
    "search": ("/searches", {"name": "one", "query": "state:errored"}),
    "policy": (
        "/policies",
        {"name": "one", "kind": "constraints", "document": "max_restarts: {at_most: 3}"},
    ),
    "webhook": (
        "/webhooks",
        {"name": "one", "url": "https://192.0.2.1/hook", "events": ["rung.experiment.ended.v1"]},
    ),
}
"""By the name of a parameter: the path and body of a request that makes one with an id."""
_MADE_TOO: Final[dict[str, dict[str, Any]]] = {
    "/workspaces/default/secrets": {"name": "one", "value": "a"},
    "/workspaces/default/templates": {"name": "one", "document": "max_restarts: 2"},
    "/models": {"name": "one", "workspace": "default"},
    "/models/one/versions": {"checkpoint": "c1"},
}
"""By path: the body of a request that makes what `_KNOWN` names."""

_REJECTED: Final = MessageRejected(
    topic="experiments",
    partition=0,
    position=7,
    key=EXPERIMENT,
    reader="searcher",
    reason="not an event",
    value="{",
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return a gateway and checkpoint-gc on a ledger with an experiment and a dead letter."""
    folder = tmp_path_factory.mktemp("gateway")
    asyncio.run(_fill(folder))
    command = [sys.executable, "-m", "rung.checkpoint_gc", "--ledger", str(folder / "ledger")]
    command += ["--objects", (folder / "objects").as_uri()]
    options = ("--webhooks-allow-network", "192.0.2.0/24")
    with gateway_process(folder, *options) as found, subprocess.Popen(command) as collector:
        yield found
        collector.terminate()


async def _fill(folder: Path) -> None:
    ledger = await SqliteLedger.open(folder / "ledger")
    try:
        world = World(ledger, FolderStore(folder / "objects"))
        await store_files(world, folder, FILES)
        await world.write(_REJECTED)
    finally:
        await ledger.close()


@pytest.fixture(scope="module")
def known(gateway: GatewayProcess) -> dict[str, str]:
    """Return a value that exists of each parameter of a path."""
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {TOKEN}"

        def make(path: str, body: dict[str, Any]) -> dict[str, Any]:
            url = f"http://127.0.0.1:{gateway.port}/api/v1{path}"
            answer = session.post(url, json=body, timeout=30)
            assert answer.status_code == 201, answer.text
            return dict(answer.json())

        made = {name: make(path, body) for name, (path, body) in _MADE.items()}
        ids = {name: it.get(name, it)["id"] for name, it in made.items()}  # a secret comes beside
        for path, body in _MADE_TOO.items():
            make(path, body)
    return _KNOWN | ids


def test_generated_calls(gateway: GatewayProcess, known: dict[str, str], attack: Attack) -> None:
    """Each answer is one that the document promises, and none is a fault of the server."""
    url = f"http://127.0.0.1:{gateway.port}"
    checks = {"negative_data_rejection": {"expected-statuses": _REFUSALS}}
    config = SchemathesisConfig.from_dict({"checks": checks})
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", config=config)
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    assert {it.name for op in operations for it in op.path_parameters} <= known.keys()
    statuses: set[int] = set()
    with requests.Session() as session:
        caller = _Caller(url, session, known, statuses)
        rounds = 0
        for chance in attack.rounds():
            rounds += 1
            operation = operations[attack.round % len(operations)]
            mode = chance.choice((GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
            _run(operation, mode, chance, caller)
    assert gateway.process.poll() is None
    log = gateway.log.read_text(errors="replace")
    assert TOKEN not in log
    assert "Traceback" not in log, log[-5000:]
    if rounds > len(operations):  # and not one that is repeated alone
        assert {200, 400, 404} <= statuses


class _Caller(NamedTuple):
    """Makes calls to a gateway."""

    url: str
    session: requests.Session
    known: dict[str, str]
    statuses: set[int]


def _run(operation: Any, mode: GenerationMode, chance: random.Random, caller: _Caller) -> None:
    @hypothesis.seed(chance.getrandbits(64))
    @hypothesis.settings(
        max_examples=_EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def call(case: schemathesis.Case[Any]) -> None:
        caller.statuses.add(_call(case, chance, caller))

    with contextlib.suppress(Unsatisfiable):  # where nothing can be wrong
        call()


def _call(case: schemathesis.Case[Any], chance: random.Random, caller: _Caller) -> int:
    """Make one call, hold its answer to the document, and return its status.

    A list without items is not sent, so a call with one may be valid where it was to be invalid.
    """
    hypothesis.assume([] not in (case.query or {}).values())
    for name in case.path_parameters:
        if chance.random() < 0.6:
            case.path_parameters[name] = caller.known[name]
    if isinstance(case.body, dict) and "config" in case.body and chance.random() < 0.3:
        case.body["config"] = EXPERIMENT_FILE
    headers = {"Authorization": f"Bearer {TOKEN}"} if chance.random() < 0.95 else {}
    if case.operation.path.endswith(("/events", "/stream")):
        return _open_stream(case, headers, caller)
    response = case.call(base_url=caller.url, session=caller.session, headers=headers, timeout=30)
    assert response.status_code != 500, (case.as_curl_command(), response.text)
    case.validate_response(response, checks=_CHECKS)
    return response.status_code


def _open_stream(case: schemathesis.Case[Any], headers: dict[str, str], caller: _Caller) -> int:
    """Open a stream, which never ends by itself, and leave it."""
    arguments = case.as_transport_kwargs(base_url=caller.url, headers=headers)
    with caller.session.request(**arguments, stream=True, timeout=30) as response:
        promised = case.operation.definition.raw["responses"]
        assert str(response.status_code) in promised, case.as_curl_command()
        assert response.status_code != 500, case.as_curl_command()
        return response.status_code
