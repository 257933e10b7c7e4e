"""What the probes of a real process say when its broker goes, and when it stands still."""

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers import kafka
from servers.kafka import KafkaBroker
from servers.service import Service, run_rung

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not kafka.available(), reason=kafka.missing() or ""),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker of the test's own."""
    made = KafkaBroker(tmp_path / "kafka")
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def searcher(shared_kafka: KafkaBroker, tmp_path: Path) -> Iterator[Service]:
    """A searcher, which is ready."""
    with _searching(f"{shared_kafka.url}/{tmp_path.name}", tmp_path) as service:
        yield service


@contextlib.contextmanager
def _searching(url: str, folder: Path) -> Iterator[Service]:
    """Run a searcher on a new ledger, which is ready."""
    run_rung(["cluster", "init", "--ledger", url, "--partitions", "2"], {}, folder)
    service = Service(
        "searcher",
        [],
        log=folder / "searcher.log",
        environment={
            "RUNG_LEDGER": url,
            "RUNG_OBJECTS": (folder / "objects").as_uri(),
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
    broker: KafkaBroker, tmp_path: Path
) -> None:
    """It says why; and nobody restarts it, for that would help nothing."""
    with _searching(broker.url, tmp_path) as searcher:
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
