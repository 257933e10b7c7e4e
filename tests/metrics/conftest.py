"""Real stores for each test: in a chDB folder of its own, and in a database of its own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from rung.metrics import SeriesStore
from rung.metrics.clickhouse.address import PASSWORD
from servers.clickhouse import ClickHouse, installed

_databases = count()


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    """A running ClickHouse server; tests leave it as it is."""
    if not installed():
        pytest.skip("no ClickHouse server: on Debian, apt-get install clickhouse-server")
    server = ClickHouse(tmp_path_factory.mktemp("clickhouse"))
    server.start()
    yield server
    server.stop()


@contextmanager
def database(server: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make an empty database and yield its address; the password is in the environment."""
    name = f"series_{next(_databases)}"
    server.create(name)
    monkeypatch.setenv(PASSWORD, server.password)
    yield server.database_url(name)
    server.drop(name)


@pytest.fixture(params=["chdb", "clickhouse"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An empty place for series, in a folder and on a server."""
    if request.param == "chdb":
        yield str(tmp_path / "series")
        return
    with database(request.getfixturevalue("clickhouse"), monkeypatch) as address:
        yield address


@pytest.fixture
def server_place(clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty place for series on a server."""
    with database(clickhouse, monkeypatch) as address:
        yield address


@pytest.fixture
def lone(
    tmp_path: Path, clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClickHouse]:
    """A server of the test's own, to be paused and killed."""
    server = ClickHouse(tmp_path / "clickhouse")
    server.start()
    monkeypatch.setenv(PASSWORD, server.password)
    yield server
    server.resume()
    server.kill()


@pytest.fixture
async def store(place: str) -> AsyncIterator[SeriesStore]:
    """An empty store of the ledger `ledger-1`."""
    opened = SeriesStore(place, ledger_id="ledger-1")
    yield opened
    await opened.close()
