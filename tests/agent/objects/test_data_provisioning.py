"""Runs and their data: brought before they start, or while they run; shared; kept while used."""

import asyncio
import os
import secrets
import threading
from pathlib import Path
from typing import Any

import pytest

from rung.cache import NoRoom
from rung.events.allocation import AgentJoined
from rung.storage import ObjectStore, open_store
from servers.seaweed import Seaweed
from support.agent_rig import Rig
from support.processes import eventually

pytestmark = pytest.mark.e2e

SHOW = """
import os
from rung import core
with core.init() as ctx:
    for name, source in ctx.data.items():
        print(name, sorted(path.read_text() for path in source.files()), flush=True)
        assert os.environ["RUNG_DATA_" + name.upper()] == str(source)
"""
STREAM = """
from rung import core
with core.init() as ctx:
    train = ctx.data["train"]
    print("began", (train / "a").read_text(), flush=True)
    for path in train.files():
        print("read", path.name, path.stat().st_size, flush=True)
    print("all", len(list(train.path.iterdir())), flush=True)
"""
HOLD = """
import os, time
from rung import core
with core.init() as ctx:
    print("holds", ctx.data["train"].path.joinpath("a").stat().st_size, flush=True)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
"""


def folder(path: Path, **files: str) -> str:
    """Write files and return the folder's path."""
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return str(path)


def sources(**named: object) -> dict[str, Any]:
    """Return a `data` section with these sources."""
    return {"data": {"sources": named}}


async def held_room(rig: Rig) -> tuple[str, Path, dict[str, Any]]:
    """Have a run hold 60 of the cache's 100 bytes until a file is there.

    Returns:
        The run, that file, and a source of 60 bytes that has no room meanwhile.
    """
    used = {"location": folder(rig.folder / "used", a="u" * 60), "cache": True}
    wanted = {"location": folder(rig.folder / "wanted", a="w" * 60), "cache": True}
    go = rig.folder / "go"
    rig.start(cache_bytes=100)
    environment: dict[str, Any] = {"environment": {"environment_variables": [f"GO={go}"]}}
    holding = await rig.grant(code=rig.code(train=HOLD), **sources(train=used), **environment)
    await rig.until_printed("holds 60")
    return holding, go, wanted


@pytest.fixture
def data(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Give a store for data in S3, which agents of this process reach."""
    quick = {"RUNG_S3_TIMEOUT_S": "20", "RUNG_S3_PATIENCE_S": "0.5"}
    for name, value in (seaweed.environment | quick).items():
        monkeypatch.setenv(name, value)
    return open_store(f"{seaweed.url}/{secrets.token_hex(8)}")


async def test_local_data_stay_where_they_are(running: Rig) -> None:
    """A folder and a file on a disk of the machine, and a file of the code, are used in place."""
    place = folder(running.folder / "train", a="1", b="2")
    named = {"train": place, "val": f"{place}/b", "code": "train.py"}
    ended = await running.run_script(SHOW, **sources(**named))
    assert ended.printed()[:2] == ["train ['1', '2']", "val ['2']"]
    assert ended.exit.outcome == "finished"
    assert not (running.folder / "agent" / "data").exists()


async def test_data_come_into_the_cache_before_the_run(running: Rig, data: ObjectStore) -> None:
    """A run finds its data there; the next one on this node finds them without S3."""
    data.put_bytes("train/a", b"one")
    data.put_bytes("train/b", b"two")
    first = await running.run_script(SHOW, **sources(train=f"{data.url}/train"))
    second = await running.run_script(SHOW, **sources(train=f"{data.url}/train"))
    assert first.printed() == second.printed() == ["train ['one', 'two']"]
    told = [any("into the cache" in text for _, _, text in run.lines) for run in (first, second)]
    assert told == [True, False]


async def test_a_program_gets_the_path_by_its_variable(running: Rig, data: ObjectStore) -> None:
    """What is no Python finds the path in its environment, and all files there."""
    data.put_bytes("train/a", b"one")
    ended = await running.end_of(
        await running.grant(
            ["sh", "-c", 'cat "$RUNG_DATA_MY_TRAIN/a"'],
            **sources(**{"my-train": f"{data.url}/train"}),
        )
    )
    assert ended.printed() == ["one"]


async def test_several_runs_wait_for_one_filler(running: Rig, data: ObjectStore) -> None:
    """Runs that start together get the same files, brought once."""
    data.put_bytes("train/a", b"one")
    code = running.code(train=SHOW)
    config = sources(train=f"{data.url}/train")
    granted = [await running.grant(code=code, **config) for _ in range(4)]
    ended = [await running.end_of(allocation) for allocation in granted]
    assert [run.printed() for run in ended] == [["train ['one']"]] * 4
    cache = running.folder / "agent" / "data"
    assert len(list((cache / "blobs").glob("*/*"))) == len(list((cache / "trees").iterdir())) == 1


async def test_a_run_may_begin_while_its_data_come(running: Rig, data: ObjectStore) -> None:
    """With `stream: true` it reads each file as it comes, and waits for those that are to come."""
    for name in "abc":
        data.put_bytes(f"train/{name}", os.urandom(3_000_000).hex().encode())
    data.put_bytes("train/a", b"one")
    source = {"location": f"{data.url}/train", "stream": True}
    ended = await running.run_script(STREAM, **sources(train=source))
    assert ended.printed() == [
        "began one",
        "read a 3",
        "read b 6000000",
        "read c 6000000",
        "all 3",
    ]


async def test_waiting_for_a_stream_is_no_hang(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, data: ObjectStore
) -> None:
    """While data are on their way a trial may be silent; once they are there, it may not."""
    data.put_bytes("train/a", b"one")
    data.put_bytes("train/b", b"two")
    from rung.cache import Entry, Listing, s3_origin  # noqa: PLC0415 - replaced here
    from rung.cache.partial_download import PartialDownload  # noqa: PLC0415 - as above

    bring = s3_origin.S3Origin.bring
    come = threading.Event()

    def dawdle(
        self: s3_origin.S3Origin, of: Listing, entry: Entry, partial: PartialDownload
    ) -> None:
        if entry.name == "b":
            come.wait(60)
        bring(self, of, entry, partial)

    monkeypatch.setattr(s3_origin.S3Origin, "bring", dawdle)
    rig.start()
    source = {"location": f"{data.url}/train", "stream": True}
    script = f"{STREAM}    import time; time.sleep(600)\n"
    asyncio.get_running_loop().call_later(3, come.set)
    ended = await rig.run_script(script, hang_timeout=1.5, **sources(train=source))
    assert ended.printed() == ["began one", "read a 3", "read b 3", "all 2"]
    assert ended.exit.fault == "hang"


async def test_a_stream_that_breaks_is_told_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rig: Rig, data: ObjectStore
) -> None:
    """What can not be brought raises where the script waits for it, with the reason."""
    data.put_bytes("train/a", b"one")
    data.put_bytes("train/b", b"two")
    from rung.cache import DataError, Entry, Listing, s3_origin  # noqa: PLC0415 - replaced here
    from rung.cache.partial_download import PartialDownload  # noqa: PLC0415 - as above

    bring = s3_origin.S3Origin.bring

    def refuse(
        self: s3_origin.S3Origin, of: Listing, entry: Entry, partial: PartialDownload
    ) -> None:
        if entry.name == "b":
            raise DataError("the door is locked")
        bring(self, of, entry, partial)

    monkeypatch.setattr(s3_origin.S3Origin, "bring", refuse)
    rig.start()
    source = {"location": f"{data.url}/train", "stream": True}
    ended = await rig.run_script(STREAM, **sources(train=source))
    assert ended.exit.outcome == "failed"
    assert "the door is locked" in ended.exit.message


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/no/such/place", "data source train: there is no /no/such/place on this machine"),
        ("no/such", "data source train: there is no no/such among the experiment's code"),
        ({"location": "/no/such", "cache": True}, "data source train: /no/such is not on this"),
        ("s3://nobucket-here/x", "data source train: s3://nobucket-here/x: "),
    ],
)
async def test_what_is_not_there(
    running: Rig, data: ObjectStore, location: object, message: str
) -> None:
    """The run fails before it starts, and says which source it was and why."""
    ended = await running.run_script(SHOW, **sources(train=location))
    assert ended.exit.outcome == "failed"
    assert f"the run could not start: {message}" in ended.exit.message


async def test_the_platforms_own_objects_are_no_data(
    tmp_path: Path, data: ObjectStore, seaweed: Seaweed
) -> None:
    """No trial reads the checkpoints and the code of others by way of the agent's keys."""
    rig = Rig(tmp_path, store=data)
    rig.start()
    try:
        for place in ("", "/checkpoints", "/checkpoints/x", "/code", "/areas", "/areas/vision/x"):
            ended = await rig.run_script(SHOW, **sources(train=f"{data.url}{place}"))
            assert "of the platform's own store" in ended.exit.message
        data.put_bytes("data/train/a", b"one")
        ended = await rig.run_script(SHOW, **sources(train=f"{data.url}/data/train"))
        assert ended.printed() == ["train ['one']"]
    finally:
        await rig.close()


async def test_links_of_a_run_bring_nothing_of_the_platforms_into_the_cache(running: Rig) -> None:
    """Be they among data that it can write, or in its working folder, named as data."""
    await running.until(AgentJoined)
    secret = running.folder / "agent" / "secret"
    secret.mkdir()
    (secret / "token").write_text("the agent's")
    shared = Path(folder(running.folder / "shared", a="1"))
    attack = (
        "import os, time\n"
        f"os.symlink({str(secret)!r}, {str(shared / 'b')!r})\n"
        f"os.symlink({str(secret / 'token')!r}, {str(shared / 'c')!r})\n"
        f"os.symlink({str(secret)!r}, 'loot')\n"
        "print('planted', flush=True)\n"
        "time.sleep(600)\n"
    )
    attacker = await running.grant(code=running.code(train=attack))
    await running.until_printed("planted")
    named = sources(train={"location": str(shared), "cache": True})
    assert (await running.run_script(SHOW, **named)).printed() == ["train ['1']"]
    work = running.folder / "agent" / "work" / attacker.rpartition(".")[0]
    for place in (work, work / "loot", shared / "b", shared / "c"):
        named = sources(train={"location": str(place), "cache": True})
        ended = await running.run_script(SHOW, **named)
        assert "lies in a folder of Rung's own" in ended.exit.message
    await running.signal(attacker, "kill")


async def test_a_full_cache_waits_for_a_live_trial(rig: Rig) -> None:
    """Its data stay until it ends; the run that needs the room says so, waits, and goes on."""
    holding, go, wanted = await held_room(rig)
    waiting = await rig.grant(code=rig.code(train=SHOW), **sources(train=wanted))
    await rig.until_printed("the data cache has no room for 60 bytes")
    assert next(rig.folder.glob("agent/data/trees/*/files/a")).read_text() == "u" * 60
    go.touch()
    assert (await rig.end_of(holding)).exit.outcome == "finished"
    assert (await rig.end_of(waiting)).printed() == [f"train ['{'w' * 60}']"]


async def test_part_of_a_gang_waits_for_room_only_so_long(rig: Rig) -> None:
    """Two gangs whose parts hold each other's room end, instead of waiting for ever."""
    holding, go, wanted = await held_room(rig)
    with pytest.raises(NoRoom, match="none did within 0 s"):
        await rig.agent._provisioning.open(sources(train=wanted), rig.folder, print, 0.0)
    go.touch()
    assert (await rig.end_of(holding)).exit.outcome == "finished"


async def test_what_never_fits_fails(rig: Rig) -> None:
    """A run whose data are larger than the cache is told what to change."""
    source = {"location": folder(rig.folder / "s", a="u" * 60), "cache": True}
    rig.start(cache_bytes=50)
    ended = await rig.run_script(SHOW, **sources(train=source))
    assert "raise --cache-bytes" in ended.exit.message


async def test_a_run_that_is_withdrawn_while_it_waits(rig: Rig) -> None:
    """It leaves at once, holds nothing, and what has come is there for the next one."""
    _, _, wanted = await held_room(rig)
    waiting = await rig.grant(code=rig.code(train=SHOW), **sources(train=wanted))
    await rig.until_printed("the data cache has no room for 60 bytes")
    await rig.signal(waiting, "preempt")
    assert (await rig.end_of(waiting)).exit.outcome == "preempted"


async def test_s3_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose data's server is away starts when it is back."""
    with Seaweed(tmp_path / "server") as server:
        quick = {"RUNG_S3_TIMEOUT_S": "3", "RUNG_S3_PATIENCE_S": "0.3"}
        for name, value in (server.environment | quick).items():
            monkeypatch.setenv(name, value)
        store = open_store(f"{server.url}/data")
        store.put_bytes("train/a", b"one")
        rig = Rig(tmp_path)
        rig.start()
        try:
            await rig.until(AgentJoined)
            server.kill()
            code = rig.code(train=SHOW)
            granted = await rig.grant(code=code, **sources(train=f"{store.url}/train"))
            await rig.until_printed("waiting: data source train")
            server.start()
            assert (await rig.end_of(granted)).printed() == ["train ['one']"]
        finally:
            await rig.close()


async def test_two_agents_of_a_node_share_a_cache(tmp_path: Path, data: ObjectStore) -> None:
    """What one brought, the other finds."""
    data.put_bytes("train/a", b"one")
    rigs: list[Rig] = []
    try:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            rigs.append(Rig(tmp_path / name))
            rigs[-1].start(cache=tmp_path / "cache")
            ended = await rigs[-1].run_script(SHOW, **sources(train=f"{data.url}/train"))
            assert ended.printed() == ["train ['one']"]
    finally:
        for rig in rigs:
            await rig.close()
    assert len(list((tmp_path / "cache" / "blobs").glob("*/*"))) == 1


async def test_keys_to_the_data_are_hidden(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, data: ObjectStore
) -> None:
    """A trial's environment has none of the cache's own keys."""
    monkeypatch.setenv("RUNG_CACHE_AWS_SECRET_ACCESS_KEY", os.environ["AWS_SECRET_ACCESS_KEY"])
    rig.start()
    ended = await rig.run_script("import os; print([k for k in os.environ if 'RUNG_CACHE' in k])")
    assert ended.printed() == ["[]"]


async def test_an_agents_end_lets_go(rig: Rig, data: ObjectStore) -> None:
    """A killed run, and an agent that leaves, use nothing any more."""
    data.put_bytes("train/a", b"one")
    rig.start()
    environment: dict[str, Any] = {"environment": {"environment_variables": ["GO=/no/such"]}}
    config = sources(train=f"{data.url}/train") | environment
    await rig.grant(code=rig.code(train=HOLD), **config)
    await rig.until_printed("holds 3")
    await rig.abandon()
    from rung.cache.tree import Tree  # noqa: PLC0415 - looked at from outside

    (tree,) = (rig.folder / "agent" / "data" / "trees").iterdir()
    await eventually(lambda: not Tree(tree).used())
