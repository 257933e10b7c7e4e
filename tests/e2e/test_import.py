"""A ledger that is imported into another data folder, and what is killed right afterwards."""

import shutil
from pathlib import Path

import pytest

from support.installation import Installation
from support.user import config, wait_for

SEARCH = {"name": "grid", "max_length": {"batches": 12}}


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_killed_right_after_an_import(installation: Installation, tmp_path: Path) -> None:
    """A search goes on in its new folder, however early `rung up` is killed there."""
    hold = tmp_path / "hold"
    hold.touch()
    held = {"environment": {"environment_variables": [f"HOLD={hold}"]}}
    search = installation.submit(config("moved", SEARCH, **held))
    wait_for(lambda: installation.validations(search) > 3, "some of it was trained")
    installation.down()
    file = str(tmp_path / "ledger.jsonl")
    installation.rung("ledger", "export", "--output", file)
    new = Installation(tmp_path / "new")
    new.rung("ledger", "import", file)
    shutil.copytree(installation.folder / "objects", new.folder / "objects", dirs_exist_ok=True)
    for _ in range(2):
        new.up()
        new.kill_server()
    hold.unlink()
    new.up()
    try:
        assert new.ended(search)["state"] == "completed"
        shown = new.get(f"/experiments/{search}")
        assert [trial["restarts"] for trial in shown["trials"]] == [0] * 4
        new.rung("audit")
        again = new.rung("ledger", "import", file, check=False)
        assert "Rung runs on" in again.stderr
    finally:
        new.down()
    again = new.rung("ledger", "import", file, check=False)
    assert "this export is in this ledger already, complete" in again.stderr
