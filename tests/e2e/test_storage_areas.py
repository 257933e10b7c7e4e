"""Two workspaces whose checkpoints lie in areas of their own, through a kill and to their end."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.storage import FolderStore, load_checkpoint
from support.installation import Installation
from support.user import config, wait_for

STEPS = 12
HELD = 10
"""The step at which the curve waits."""
GRID = {"name": "grid", "max_length": {"batches": STEPS}, "max_concurrent_trials": 2}
SPACE = {
    "limit": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 2},
    "pause_s": 0.02,
}
NONE = set[str]()
SINGLE = {"name": "single", "max_length": {"batches": 2 * STEPS}}
AREAS = ("", "teams/vision", "speech", "later")


def _owners(store: FolderStore) -> dict[str, set[str]]:
    """Return the experiments with objects in each area."""
    found = {}
    for area in AREAS:
        objects = store.area(area).list("checkpoints/")
        found[area] = {info.name.split("/")[1] for info in objects}
    return found


def _bytes(store: FolderStore, area: str, experiment: str) -> dict[str, bytes]:
    """Return the objects of an experiment in an area."""
    within = store.area(area)
    names = [info.name for info in within.list(f"checkpoints/{experiment}/")]
    return {name: within.read(name) for name in names}


def _best(installation: Installation, experiment: str) -> str:
    found: Any = installation.get(f"/experiments/{experiment}/best")
    return str(found["checkpoint"]["id"])


def _settled(installation: Installation, experiment: str) -> bool:
    found = installation.get(f"/experiments/{experiment}/checkpoints")["items"]
    return bool(found) and all(each["state"] in {"stored", "deleted"} for each in found)


def _submit(installation: Installation, workspace: str, **more: Any) -> str:
    search = more.pop("searcher", GRID)
    space = more.pop("hyperparameters", SPACE)
    file = config(f"in-{workspace}", search, hyperparameters=space, **more)
    if workspace != "default":
        file |= {"workspace": workspace, "project": "digits"}
    return installation.submit(file)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Installation, Path]]:
    """Return an installation, and a file that keeps trials from ending while it exists."""
    hold = tmp_path / "hold"
    item = Installation(tmp_path / "data", slots=4, environment={"HOLD": str(hold)})
    item.up()
    yield item, hold
    item.down()


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_areas_of_two_workspaces(held: tuple[Installation, Path], tmp_path: Path) -> None:
    """Searches, a kill of everything, resumption, downloads, a fork across, moves and deletions.

    The bytes of each experiment lie in the area that its workspace had as it was submitted, and
    nowhere else; the search finds what the same one finds without an area.
    """
    installation, hold = held
    store = FolderStore(installation.folder / "objects")
    plain, vision, speech = _searched(installation, store, hold)
    best = _best(installation, vision)
    installation.rung("download", best, "--output", str(tmp_path / "best"))
    load_checkpoint(store.area("teams/vision"), vision, best, tmp_path / "there")
    assert _tree(tmp_path / "best") == _tree(tmp_path / "there")
    across = _started_across(installation, best)
    expected = {"": {plain}, "teams/vision": {vision}, "speech": {speech, across}, "later": NONE}
    assert _owners(store) == expected

    before = _bytes(store, "teams/vision", vision)
    installation.rung("move", vision, "--workspace", "speech")
    fork = json.loads(installation.rung("fork", speech, "--set", "name=fork", "--json").stdout)[
        "experiment_id"
    ]
    assert installation.ended(fork)["state"] == "completed"
    assert _bytes(store, "teams/vision", vision) == before != {}
    installation.rung("download", best, "--output", str(tmp_path / "again"))
    assert _tree(tmp_path / "again") == _tree(tmp_path / "best")

    _ask(installation, f"/experiments/{vision}/delete?now=true&force=true")
    installation.kill_server()
    installation.up()
    wait_for(lambda: not _owners(store)["teams/vision"], "its objects are deleted")
    gone = _best(installation, speech)
    _ask(installation, f"/checkpoints/{gone}/delete")
    prefix = f"checkpoints/{speech}/{gone}/"
    wait_for(lambda: not store.area("speech").list(prefix), "one checkpoint is deleted")
    wait_for(lambda: _settled(installation, speech), "its deletion is on record")
    assert _owners(store) == expected | {"teams/vision": NONE, "speech": {speech, across, fork}}
    wait_for(lambda: not installation.get("/deadletters")["items"], "no dead letters")
    installation.rung("audit")
    installation.rung("verify")
    _copy(installation, speech, tmp_path)


def _searched(installation: Installation, store: FolderStore, hold: Path) -> tuple[str, str, str]:
    """Search in three workspaces through a kill of everything; return the experiments."""
    installation.rung("workspace", "create", "vision", "--storage", "teams/vision")
    installation.rung("workspace", "create", "speech")
    installation.rung("workspace", "edit", "speech", "--storage", "speech")
    refused = installation.rung("workspace", "edit", "speech", "--storage", "../x", check=False)
    assert refused.returncode != 0
    assert "give parts such as vision or teams/vision" in refused.stderr
    for name in ("vision", "speech"):
        installation.rung("project", "create", f"{name}/digits")

    plain = _submit(installation, "default")
    installation.ended(plain)
    hold.touch()
    vision, speech = (_submit(installation, it) for it in ("vision", "speech"))
    installation.rung("workspace", "edit", "vision", "--storage", "later")
    for name in (vision, speech):
        wait_for(lambda: installation.validations(name) == 2 * HELD, "all its trials are held")  # noqa: B023 - called here
    installation.kill_server()
    hold.unlink()
    installation.up()
    results = {name: installation.result(name) for name in (plain, vision, speech)}
    assert results[vision] == results[speech] == results[plain]
    for name in results:
        wait_for(lambda: _settled(installation, name), "superfluous checkpoints are deleted")  # noqa: B023 - called here
    expected = {"": {plain}, "teams/vision": {vision}, "speech": {speech}, "later": NONE}
    assert _owners(store) == expected
    for name in (vision, speech):
        assert len(_restored(installation, name)) == 2, "a trial went on from no checkpoint"
    assert installation.get(f"/experiments/{vision}")["storage"] == "teams/vision"
    return plain, vision, speech


def _started_across(installation: Installation, checkpoint: str) -> str:
    """Train from a checkpoint of another area; return the experiment."""
    across = _submit(
        installation,
        "speech",
        searcher={**SINGLE, "source_checkpoint_uuid": checkpoint},
        hyperparameters={"limit": 0.5, "pause_s": 0.0},
    )
    assert installation.ended(across)["state"] == "completed"
    assert _restored(installation, across) == [checkpoint]
    wait_for(lambda: _settled(installation, across), "superfluous checkpoints are deleted")
    return across


def _copy(installation: Installation, experiment: str, folder: Path) -> None:
    """Copy ledger and objects to another installation, and download a checkpoint there."""
    file, source = str(folder / "ledger.jsonl"), installation.folder / "objects"
    installation.down()
    installation.rung("ledger", "export", "--output", file)
    new = Installation(folder / "new")
    target = new.folder / "objects"
    installation.rung("objects", "copy", str(source), target.as_uri())
    imported = json.loads(new.rung("ledger", "import", file, "--json").stdout)
    assert imported["missing_objects"] == []
    new.up()
    try:
        best = _best(new, experiment)
        new.rung("download", best, "--output", str(folder / "copied"))
        load_checkpoint(FolderStore(source).area("speech"), experiment, best, folder / "source")
        assert _tree(folder / "copied") == _tree(folder / "source") != {}
    finally:
        new.down()


def _ask(installation: Installation, path: str) -> None:
    url, token = installation.server
    request = urllib.request.Request(  # noqa: S310 - a loopback address of our own
        f"{url}/api/v1{path}", headers={"Authorization": f"Bearer {token}"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
        assert answer.status == 202


def _restored(installation: Installation, experiment: str) -> list[str]:
    """Return the checkpoints that runs of an experiment went on from."""
    lines = installation.rung("ledger", "show", experiment, "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    kind = "rung.trial.restored.v1"
    return [event["data"]["checkpoint_id"] for event in events if event["type"] == kind]


def _tree(folder: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
