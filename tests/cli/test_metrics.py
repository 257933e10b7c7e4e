"""`rung metrics migrate` shows what is done to the tables, and does it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Rung
from rung.metrics.clickhouse.address import PASSWORD
from rung.metrics.clickhouse.schema import migrations
from servers.clickhouse import ClickHouse, installed


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    """A running ClickHouse server."""
    if not installed():
        pytest.skip("no ClickHouse server: on Debian, apt-get install clickhouse-server")
    server = ClickHouse(tmp_path_factory.mktemp("clickhouse"))
    server.start()
    yield server
    server.stop()


def _states(rung: Rung, place: str, *options: str) -> list[str]:
    result = rung("metrics", "migrate", "--series", place, "--json", *options)
    assert (result.code, result.err) == (0, "")
    assert [row["number"] for row in result.json["migrations"]] == [
        item.number for item in migrations()
    ]
    return [row["state"] for row in result.json["migrations"]]


def test_a_folder_is_shown_then_migrated_then_done(rung: Rung, tmp_path: Path) -> None:
    """A dry run changes nothing; a second run finds nothing to do."""
    folder = tmp_path / "series"
    folder.mkdir()
    for options, state in ((("--dry-run",), "pending"), ((), "applied"), ((), "done")):
        assert set(_states(rung, str(folder), *options)) == {state}


def test_a_server_is_migrated_as_far_as_its_release_goes(
    rung: Rung, clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an old one cannot do is left out and said; for a person as a table."""
    monkeypatch.setenv(PASSWORD, clickhouse.password)
    assert _states(rung, clickhouse.url, "--dry-run")[0] == "pending"
    assert clickhouse.query("SHOW TABLES FROM rung") == ""
    assert _states(rung, clickhouse.url, "--metrics-days", "30")[0] == "applied"
    assert "metrics" in clickhouse.query("SHOW TABLES FROM rung").split()
    shown = rung("metrics", "migrate", "--series", clickhouse.url, "--logs-days", "30")
    assert shown.code == 0
    assert "series" in shown.out
    release = clickhouse.query("SELECT version()").split(".")
    if (int(release[0]), int(release[1])) < (20, 10):
        assert f"needs ClickHouse 20.10, this is {release[0]}.{release[1]}" in shown.out
        assert "give the metrics service the same days" in shown.err


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        ("clickhouse://host", 2, "give clickhouse://USER@HOST:9000/DATABASE"),
        ("clickhouse://me:secret@host/db", 2, "leave it out and set RUNG_CLICKHOUSE_PASSWORD"),
        ("clickhouse://me@127.0.0.1:1/db", 6, "Connection refused"),
        ("/no/such", 6, "there is no such folder"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused(
    rung: Rung, place: str, code: int, message: str
) -> None:
    """In a line, with what would be right."""
    result = rung("metrics", "migrate", "--series", place)
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err


def test_days_that_cannot_be_are_refused(rung: Rung) -> None:
    """The option and its range are named."""
    result = rung("metrics", "migrate", "--series", "/no/such", "--logs-days", "-1")
    assert result.code == 2
    assert "--logs-days" in result.err
