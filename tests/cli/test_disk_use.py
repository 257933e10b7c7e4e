"""What the data folder takes on the disk: measured, and shown by `rung status`."""

import os
from pathlib import Path
from typing import Any

from cli.conftest import Rung
from rung.cli.local.data_folder import DataFolder
from rung.cli.local.disk_use import DiskMeter, taken
from support.scripted_server import Scripted, json_answer

MIB = 1024**2


def test_a_file_counts_once(tmp_path: Path) -> None:
    """Checkpoints share files by hard links; what is not there takes nothing."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.pt").write_bytes(b"x" * MIB)
    alone = taken(tmp_path / "a")
    os.link(tmp_path / "a" / "model.pt", tmp_path / "a" / "again.pt")
    (tmp_path / "a" / "elsewhere").symlink_to("/")

    assert MIB <= alone < 2 * MIB
    assert taken(tmp_path) == alone
    assert taken(tmp_path / "none") == 0


async def test_the_parts_of_a_data_folder(tmp_path: Path) -> None:
    """Each part by itself, the rest together, and the file system below."""
    folder = DataFolder.open(tmp_path / "data")
    try:
        parts = (("checkpoints", 3), ("areas/vision/checkpoints", 4), ("code", 2))
        for name, count in (*((f"objects/{it}", count) for it, count in parts), ("agent/data", 1)):
            (folder.path / name).mkdir(parents=True)
            (folder.path / name / "file").write_bytes(b"x" * count * MIB)
        meter = DiskMeter(folder)
        found = await meter.measure()
        assert await meter.measure() is found
    finally:
        folder.close()

    whole = {name: value // MIB for name, value in found.used_bytes.items()}
    assert (whole["checkpoints"], whole["code"], whole["data cache"]) == (7, 2, 1)
    assert whole["other"] == 0
    assert 0 < found.free_bytes <= found.total_bytes
    assert found.folder == str(tmp_path / "data")


def _status(**more: Any) -> dict[str, Any]:
    return {
        "version": "1",
        "ledger_id": "l",
        "experiments": {},
        "pools": [],
        "dead_letters": 0,
        "problems": [],
        "checkpoint_count": 1,
        "checkpoint_bytes": 2048,
        "disk": None,
    } | more


def test_status_shows_it(server: Scripted, rung: Rung) -> None:
    """On one machine the parts of the disk; elsewhere the checkpoints alone."""
    server.on("/agents", json_answer({"items": []}))
    server.on("/queue", json_answer({"items": [], "next_cursor": None}))
    server.on("/status", json_answer(_status()))
    assert "1 (2.0 KiB)" in rung("status").out
    disk = {
        "folder": "/d",
        "free_bytes": 5 * MIB,
        "total_bytes": 10 * MIB,
        "used_bytes": {"checkpoints": MIB, "code": 0, "ledger": 512},
    }
    server.on("/status", json_answer(_status(disk=disk)))
    out = rung("status").out
    assert "1.0 MiB used, 5.0 MiB of 10.0 MiB are free" in out
    assert "checkpoints 1.0 MiB, ledger 512 B" in out
    assert rung("status", "--json").json["disk"] == disk
