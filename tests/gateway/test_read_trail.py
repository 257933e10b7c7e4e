"""The trail of reads: who read what, without holding anybody up."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.conftest import World, patient
from rung.gateway.requests.read_trail import ReadTrail, ReadTrailSettings
from support.gateway.client import TOKEN
from support.gateway.scenario import EXPERIMENT, play

_FULL = Path("/dev/full")


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_read_is_a_line(world: World, tmp_path: Path) -> None:
    """With actor, route, object and status; a stream once, a write and a stranger not at all."""
    await world.play(play(1))
    path = tmp_path / "trail" / "reads"
    world.settings = patient(read_trail=ReadTrailSettings(path=path))
    async with world.gateway() as client:
        await client.get(f"/experiments/{EXPERIMENT}")
        await client.call("GET", "/experiments/none?a=b")
        await client.call("GET", "/status", headers={"Authorization": "Bearer wrong"})
        await client.call("POST", f"/experiments/{EXPERIMENT}/pause")
        url, headers = f"{client.url}/api/v1/log/stream", {"Authorization": f"Bearer {TOKEN}"}
        async with client.session.get(url, headers=headers) as response, asyncio.timeout(20):
            await response.content.readline()
    found = _lines(path)

    assert [(it["route"].rpartition("v1")[2], it["status"]) for it in found] == [
        ("/experiments/{experiment_id}", 200),
        ("/experiments/{experiment_id}", 400),
        ("/log/stream", 200),
    ]
    first = found[0]
    assert first.pop("time").endswith("Z")
    assert first == {
        "actor": "admin",
        "onbehalfof": None,
        "via": "root",
        "method": "GET",
        "route": "/api/v1/experiments/{experiment_id}",
        "object": {"experiment_id": EXPERIMENT},
        "query": "",
        "status": 200,
    }
    assert found[1]["query"] == "a=b"
    assert path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=25)
@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 120), st.integers(1, 4))
def test_files_rotate(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, files: int
) -> None:
    """What is kept are the last lines, whole and in order, in so many files of that size."""
    path = tmp_path_factory.mktemp("trail") / "reads"
    trail = ReadTrail(ReadTrailSettings(path=path, bytes_max=most, files=files))
    with trail.opened():
        for number, size in enumerate(sizes):
            trail.note({"n": number, "x": "x" * size})
    kept = sorted(path.parent.iterdir(), key=lambda it: int(it.suffix[1:] or 0), reverse=True)
    numbers = [line["n"] for it in kept for line in _lines(it)]

    assert trail.lost == 0
    assert len(kept) <= files
    assert numbers == list(range(len(sizes)))[len(sizes) - len(numbers) :]
    assert bool(numbers) == bool(sizes)
    assert all(it.stat().st_size <= most or len(_lines(it)) == 1 for it in kept)


async def test_a_full_disk_stops_no_read(world: World) -> None:
    """It is logged once, a problem in the status, and reads go on."""
    world.settings = patient(read_trail=ReadTrailSettings(path=_FULL))
    with capture_logs() as logs:
        async with world.gateway() as client:
            async with asyncio.timeout(20):
                while not (problems := (await client.get("/status"))["problems"]):
                    pass
            assert (await client.call("GET", "/status")).status == 200

    assert "read trail /dev/full: No space left on device" in problems[0]
    assert "reads go on" in problems[0]
    assert [it["event"] for it in logs].count("read trail not written") == 1


async def test_a_full_disk_stops_reads_where_it_shall(world: World) -> None:
    """503 with the reason; what writes goes on."""
    world.settings = patient(read_trail=ReadTrailSettings(path=_FULL, required=True))
    async with world.gateway() as client:
        async with asyncio.timeout(20):
            while (answer := await client.call("GET", "/status")).status == 200:
                pass
        assert (answer.status, answer.kind) == (503, "unavailable")
        assert "reads are refused" in answer.json["detail"]
        written = await client.call(
            "POST", "/pools/default/configure", json={"policy": "priority"}
        )
        assert written.status == 202


async def test_reads_go_on_once_there_is_room(tmp_path: Path) -> None:
    """The trail is tried again, and written from there on."""
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    trail = ReadTrail(ReadTrailSettings(path=folder / "reads", required=True))
    with trail.opened():
        trail.note({"n": 1})
        async with asyncio.timeout(20):
            while not trail.is_refusing:  # noqa: ASYNC110 - a thread sets it
                await asyncio.sleep(0)
            folder.unlink()
            while trail.problem() is not None:
                if not trail.is_refusing:
                    trail.note({"n": 2})
                await asyncio.sleep(0.01)
    assert trail.lost >= 1
    assert _lines(folder / "reads")[-1] == {"n": 2}


@pytest.mark.parametrize("name", ["bytes_max", "files"])
def test_settings_are_checked(name: str) -> None:
    """A value that cannot be is named."""
    wrong: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=name):
        ReadTrailSettings(path=Path("x"), **wrong)
