"""`rung gc`."""

from cli.conftest import Rung
from support.scripted_server import Scripted, json_answer

ITEM = {"experiment_id": "k3v9x2ab", "trials": 2, "lines": 1204, "size_bytes": 35_000}
FOUND = {"before_ms": 5, "dry_run": False, "items": [ITEM], "lines": 1204, "size_bytes": 35_000}


def test_lines_are_deleted(server: Scripted, rung: Rung) -> None:
    """Of an experiment, or all of an age; a dry run says what would be deleted."""
    server.on("/logs/collect", json_answer(FOUND))
    result = rung("gc", "logs", "k3v9x2ab", "--dry-run")
    assert result.out.splitlines()[-1] == "1,204 lines (34.2 KiB) would be deleted."
    assert server.requests[0].query == {"experiment": "k3v9x2ab", "dry_run": "true"}
    result = rung("gc", "logs", "--older-than", "30d")
    assert result.out.splitlines()[-1] == "1,204 lines (34.2 KiB) deleted."
    assert set(server.requests[1].query) == {"before", "dry_run"}
    assert rung("gc", "logs", "--older-than", "30d", "--json").json == FOUND


def test_not_all_lines_of_all(server: Scripted, rung: Rung) -> None:
    """Without an experiment and an age nothing is asked for."""
    assert "name an experiment, or an age" in rung("gc", "logs").err
    assert "write such as 30d" in rung("gc", "logs", "--older-than", "soon").err
    assert not server.requests
