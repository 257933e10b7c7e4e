"""`ctx.data`: paths of the sources, under Rung and by hand."""

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from rung import core
from rung.cache import Cache, DataError, FolderOrigin, Held, Listing, Source, user_cache
from rung.core._data import DataSource
from rung.core.ipc.environment import filling_variable_of
from servers.seaweed import Seaweed
from support.agent_end import agent_end


@pytest.fixture
def filling(tmp_path: Path) -> tuple[Cache, Held, FolderOrigin]:
    """Give a source of three files that is reserved and not filled yet."""
    folder = tmp_path / "s"
    (folder / "deep").mkdir(parents=True)
    for name in ("a", "b", "deep/c"):
        (folder / name).write_text(name)
    origin = FolderOrigin(Source("train", str(folder)))
    cache = Cache(tmp_path / "cache", 1000)
    return cache, cache.reserve([origin.list()]), origin


def source_of(held: Held) -> DataSource:
    """Return the source as a trial has it."""
    return DataSource("train", held.roots[0], held.trees[0].folder)


def config(**sources: Any) -> dict[str, Any]:
    """Return an experiment's configuration with these sources."""
    return {"data": {"sources": sources}}


def test_by_hand_paths_are_used_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same script finds its data without Rung: absolute ones, and those beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNG_ALLOCATION", raising=False)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").write_text("one")
    with core.init(config=config(train=str(tmp_path / "train"), tiny="train/a")) as ctx:
        assert list(ctx.data) == ["train", "tiny"]
        assert str(ctx.data["train"]) == str(tmp_path / "train")
        assert Path(ctx.data["tiny"]).read_text() == "one"
        assert (ctx.data["train"] / "a").read_text() == "one"
        assert [path.name for path in ctx.data["train"].files()] == ["a"]
        assert [path.name for path in ctx.data["tiny"].files()] == ["a"]


def test_by_hand_s3_goes_through_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seaweed: Seaweed
) -> None:
    """What is in S3 is downloaded once, into the user's own cache."""
    from rung.storage import open_store  # noqa: PLC0415 - wants the S3 client

    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RUNG_ALLOCATION", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    store = open_store(f"{seaweed.url}/by-hand-{tmp_path.name}")
    store.put_bytes("train/a", b"one")
    with core.init(config=config(train=f"{store.url}/train")) as ctx:
        path = ctx.data["train"].path
    assert (path / "a").read_bytes() == b"one"
    assert path.is_relative_to(user_cache.folder())


def test_under_rung_the_agent_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is what the agent put into the environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with agent_end(tmp_path, config=config(train="s3://bucket/x", other="/x")) as agent:
        for name, value in agent.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RUNG_DATA_TRAIN", str(tmp_path / "there"))
        with core.init() as ctx:
            assert ctx.data["train"].path == tmp_path / "there"
            with pytest.raises(DataError, match="RUNG_DATA_OTHER is not set"):
                ctx.data["other"]


def test_what_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the sources that there are; a place that is missing is named too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNG_ALLOCATION", raising=False)
    with core.init(config=config(train="/no/such/place")) as ctx:
        with pytest.raises(KeyError, match=r"'val': the experiment's data.sources names train"):
            ctx.data["val"]
        with pytest.raises(DataError, match="data source train: there is no /no/such/place"):
            ctx.data["train"]


def test_a_path_waits_for_all_files(filling: tuple[Cache, Held, FolderOrigin]) -> None:
    """Whoever takes the source for a path gets it once all of it is there."""
    cache, held, origin = filling
    source = source_of(held)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(len(list(source.path.rglob("*")))))
    reader.start()
    reader.join(0.1)
    assert reader.is_alive()
    cache.fill(held, 0, origin).run()
    reader.join(30)
    assert found == [4]


def test_a_file_waits_for_itself(filling: tuple[Cache, Held, FolderOrigin]) -> None:
    """One file can be read before the others are there, a folder once it is whole."""
    _, held, _ = filling
    source = source_of(held)
    (held.roots[0] / "b").write_text("b")
    assert (source / "b").read_text() == "b"
    (held.roots[0] / "deep").mkdir()
    (held.roots[0] / "deep" / "c").write_text("c")
    assert [path.name for path in (source / "deep").iterdir()] == ["c"]


def test_what_will_never_come(filling: tuple[Cache, Held, FolderOrigin]) -> None:
    """A name that is not listed is not waited for; a filler that gave up says why."""
    _, held, _ = filling
    source = source_of(held)
    with pytest.raises(FileNotFoundError, match=r"has no 'deep/d'; did you mean 'deep/c'\?"):
        source / "deep/d"
    held.trees[0].fail("the door is locked")
    with pytest.raises(DataError, match="the door is locked"):
        source / "a"
    with pytest.raises(DataError, match="the door is locked"):
        list(source.files())


def test_a_single_file_is_waited_for(tmp_path: Path) -> None:
    """A source that is one file has that file's path, and is its only file."""
    (tmp_path / "x").write_text("1")
    origin = FolderOrigin(Source("x", str(tmp_path / "x")))
    cache = Cache(tmp_path / "cache", 1000)
    held = cache.reserve([origin.list()])
    source = source_of(held)
    cache.fill(held, 0, origin).run()
    assert [path.read_text() for path in source.files()] == ["1"]
    assert source.path.read_text() == "1"


def test_workers_of_a_loader_may_have_it(filling: tuple[Cache, Held, FolderOrigin]) -> None:
    """A source can be sent to another process."""
    source = source_of(filling[1])
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301 - our own


def test_a_listing_is_kept_with_its_files(filling: tuple[Cache, Held, FolderOrigin]) -> None:
    """What is waited for is what was listed, in its order."""
    listing = filling[1].trees[0].listing()
    assert isinstance(listing, Listing)
    assert [entry.name for entry in listing.entries] == ["a", "b", "deep/c"]


def test_the_variable_of_a_stream() -> None:
    """It says where a source is being filled."""
    assert filling_variable_of("my-train") == "RUNG_FILLING_MY_TRAIN"
