"""Calls generated from the OpenAPI document that a real gateway serves, good and bad ones.

Schemathesis makes them and holds the answers to the document. Ids of what exists are put in from
time to time, so that more than 404 is answered.
"""

import asyncio
import contextlib
import random
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

from attacks.conftest import Attack
from gateway.checkpoint import FILES, TRIAL, store_files
from gateway.client import TOKEN
from gateway.conftest import EXPERIMENT_FILE, World
from gateway.process import GatewayProcess, gateway_process
from gateway.scenario import EXPERIMENT
from rung.events.deadletter import MessageRejected
from rung.ledger import SqliteLedger
from rung.storage import FolderStore

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
}

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
    """Return a gateway on a ledger with an experiment, a checkpoint and a dead letter."""
    folder = tmp_path_factory.mktemp("gateway")
    asyncio.run(_fill(folder))
    with gateway_process(folder) as found:
        yield found


async def _fill(folder: Path) -> None:
    ledger = await SqliteLedger.open(folder / "ledger")
    try:
        world = World(ledger, FolderStore(folder / "objects"))
        await store_files(world, folder, FILES)
        await world.write(_REJECTED)
    finally:
        await ledger.close()


def test_generated_calls(gateway: GatewayProcess, attack: Attack) -> None:
    """Each answer is one that the document promises, and none is a fault of the server."""
    url = f"http://127.0.0.1:{gateway.port}"
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    statuses: set[int] = set()
    with requests.Session() as session:
        caller = _Caller(url, session, statuses)
        for chance in attack.rounds():
            operation = operations[attack.round % len(operations)]
            mode = chance.choice((GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
            _run(operation, mode, chance, caller)
    assert gateway.process.poll() is None
    log = gateway.log.read_text(errors="replace")
    assert TOKEN not in log
    assert "Traceback" not in log, log[-5000:]
    if attack.round > len(operations):
        assert {200, 400, 404} <= statuses


class _Caller(NamedTuple):
    """Makes calls to a gateway."""

    url: str
    session: requests.Session
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
    """Make one call, hold its answer to the document, and return its status."""
    for name in case.path_parameters:
        if chance.random() < 0.6:
            case.path_parameters[name] = _KNOWN[name]
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
