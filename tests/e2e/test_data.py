"""Data from S3 to the training loop, through a real installation."""

import secrets
from pathlib import Path

import pytest

from rung.storage.s3.settings import from_environment
from rung.storage.s3.store import S3Store
from servers.seaweed import Seaweed
from support.installation import Installation
from support.user import config

pytestmark = pytest.mark.e2e
_READING = Path(__file__).parent / "reading"


def test_a_search_reads_from_the_cache(tmp_path: Path, seaweed: Seaweed) -> None:
    """Its trials share one copy of the data, and how long they waited for them is a metric."""
    store = S3Store(f"{seaweed.url}/{secrets.token_hex(8)}", from_environment(seaweed.environment))
    for number in range(16):
        store.put_bytes(f"train/{number:02}", str(number / 16).encode())
    installation = Installation(tmp_path / "data")
    installation._environment.update(seaweed.environment)
    installation._environment["RUNG_AGENT_CACHE_BYTES"] = "1MB"
    installation.up()
    try:
        searcher = {"name": "random", "max_trials": 3, "max_length": {"batches": 24}}
        experiment = installation.submit(
            config(
                "reading",
                searcher,
                scheduling_unit=4,
                data={"sources": {"train": f"{store.url}/train"}, "mine": [1, 2]},
            ),
            _READING,
        )
        ended = installation.ended(experiment)
        assert ended["state"] == "completed"
        assert [trial["state"] for trial in ended["trials"]] == ["completed"] * 3
        assert ended["config"]["data"]["mine"] == [1, 2]
        names = installation.get(
            f"/experiments/{experiment}/metrics?kind=system&name=data_wait_fraction"
        )["names"]
        assert {"kind": "system", "name": "data_wait_fraction"} in names
        blobs = list((tmp_path / "data" / "agent" / "data" / "blobs").glob("*/*"))
        assert len(blobs) == 16
    finally:
        installation.down()
