"""Scripts that store and restore a checkpoint, and a store in S3 for their agent."""

import secrets
from pathlib import Path

import pytest

from rung.storage import ObjectStore, Provenance, open_store, store_checkpoint
from servers.seaweed import Seaweed

STORE = """
import os
from rung import core
with core.init() as ctx:
    with ctx.checkpoint.store_path(steps_completed=5) as (path, checkpoint_id):
        (path / "state").write_bytes(b"s" * 3_000_000)
        (path / "sub").mkdir()
        (path / "sub" / "more").write_text("more")
    print("staged", flush=True)
"""
RESTORE = """
from rung import core
with core.init() as ctx:
    latest = ctx.checkpoint.download_latest()
    print("latest", latest, flush=True)
    if latest:
        with ctx.checkpoint.restore_path(latest) as path:
            print((path / "state").stat().st_size, (path / "sub" / "more").read_text())
        print(ctx.checkpoint.get_metadata(latest))
"""


def store_at(server: Seaweed, monkeypatch: pytest.MonkeyPatch, **changes: str) -> ObjectStore:
    """Return an empty store; this process's environment is that of an agent that uses it."""
    quick = {"RUNG_S3_TIMEOUT_S": "20", "RUNG_S3_PATIENCE_S": "0.5"}
    for name, value in (server.environment | quick | changes).items():
        monkeypatch.setenv(name, value)
    return open_store(f"{server.url}/{secrets.token_hex(8)}")


def stored_elsewhere(store: ObjectStore, files: Path) -> str:
    """Store a checkpoint of another experiment, of files that are made; return its id."""
    (files / "sub").mkdir(parents=True)
    (files / "state").write_bytes(b"state")
    (files / "sub" / "more").write_text("more")
    checkpoint_id = "exp00002.3.1.5"
    store_checkpoint(
        store,
        files,
        checkpoint_id=checkpoint_id,
        steps_completed=5,
        metadata={},
        provenance=Provenance(experiment_id="exp00002", trial_id="exp00002.3", run=1),
    )
    return checkpoint_id
