"""`rung model`, and `client.models`, against a gateway with the directory and checkpoint-gc."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Rung
from gateway.conftest import World
from rung.checkpoint_gc.service import components
from rung.client import Client
from rung.ledger import Ledger
from rung.runtime.service import Component
from rung.storage import FolderStore
from support.gateway.checkpoint import FILES, store_files
from support.gateway.threaded import TOKEN, threaded


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a gateway that has a search with the checkpoint `c1`."""

    async def furnish(ledger: Ledger, store: FolderStore) -> tuple[Component, ...]:
        await store_files(World(ledger, store), tmp_path / "files", FILES)
        return components(store)

    with threaded(tmp_path / "objects", furnish) as url:
        monkeypatch.setenv("RUNG_URL", url)
        monkeypatch.setenv("RUNG_TOKEN", TOKEN)
        monkeypatch.setenv("RUNG_DATA", str(tmp_path / "data"))
        yield url


def test_a_model_from_its_beginning_to_its_end(rung: Rung, tmp_path: Path, url: str) -> None:
    """Created, given a version that is downloaded and not deleted, moved, deleted."""

    def out(*arguments: str) -> str:
        result = rung("model", *arguments)
        assert result.code == 0, result
        return result.out

    created = out("create", "digits", "--label", "prod", "--metadata", '{"classes": 10}')
    assert created == "Model digits of workspace default is created.\n"
    assert "JSON object" in rung("model", "create", "x", "--metadata", "[]").err
    assert "digits" in out("list", "--label", "prod", "--open")
    assert "digits" not in out("list", "--archived")
    assert "{'classes': 10}" in out("show", "digits")

    registered = out("register", "digits", "c1", "--name", "first", "--notes", "good")
    assert registered == "Checkpoint c1 is version 1 of model digits.\n"
    assert "c1" in out("versions", "digits")
    assert "good" in out("show", "digits", "--version", "1")
    assert "changed" in out("edit", "digits", "--version", "1", "--notes", "better")
    assert "give --version" in rung("model", "edit", "digits", "--notes", "x").err
    changed = out("edit", "digits", "--description", "reads digits", "--no-labels")
    assert changed == "Model digits is changed.\n"
    assert rung("model", "show", "digits", "--json").json["labels"] == []
    refused = rung("delete", "c1", "--yes")
    assert refused.code != 0
    assert "c1" in refused.err

    folder = tmp_path / "model"
    said = out("download", "digits", "1", "--output", str(folder))
    assert said.endswith(f"of version 1 of model digits in {folder}\n")
    with Client(url, TOKEN) as client:
        client.models.download("digits", None, tmp_path / "again")
        (version,) = client.models.versions("digits")
        assert (version.number, version.notes) == (1, "better")
    for place in (folder, tmp_path / "again"):
        for name, data in FILES.items():
            assert (place / name).read_bytes() == data

    assert "archived" in out("archive", "digits")
    assert "open again" in out("unarchive", "digits")
    assert rung("workspace", "create", "vision").code == 0
    assert out("move", "digits", "vision") == "Model digits is in workspace vision now.\n"
    assert "Version 1" in out("delete", "vision/digits", "--version", "1")
    assert out("delete", "digits") == "Model digits is deleted.\n"
    assert rung("model", "show", "digits").code == 4
