"""The cache: filled once, verified, shared, evicted least recently used, never what is used."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cache.origins import CountingOrigin, GatedOrigin, written
from rung.cache import (
    Cache,
    DataChanged,
    DataError,
    FolderOrigin,
    Held,
    NoRoom,
    Origin,
    Source,
)
from rung.cache.blob_store import BlobStore
from rung.cache.origin import digests_of
from rung.cache.tree import STAMP_S, Tree
from rung.runtime.health.disk import Disk
from support.small_disk import small_disk


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Give an empty cache of 100 bytes."""
    return Cache(tmp_path / "cache", 100)


def filled(cache: Cache, origin: Origin) -> tuple[Held, int]:
    """Reserve and fill a source; return the claim and how many files had to be brought."""
    held = cache.reserve([origin.list()])
    return held, cache.fill(held, 0, origin).run()


def blobs(cache: Cache) -> list[Path]:
    """Return the contents that the cache holds."""
    return sorted((cache.folder / "blobs").glob("*/*"))


def test_files_are_there_whole_and_read_only(cache: Cache, tmp_path: Path) -> None:
    """A filled source has its files under their names, and nobody may write to them."""
    held, brought = filled(cache, written(tmp_path / "s", a="one", sub__b="two"))
    root = held.roots[0]
    assert brought == 2
    assert (root / "a").read_text() == "one"
    assert (root / "sub" / "b").read_text() == "two"
    assert (root / "a").stat().st_mode & 0o777 == 0o444
    held.close()


def test_a_second_user_finds_them(cache: Cache, tmp_path: Path) -> None:
    """Nothing is brought twice."""
    origin = CountingOrigin(written(tmp_path / "s", a="one", b="two"))
    first, _ = filled(cache, origin)
    second, brought = filled(cache, origin)
    assert (brought, sorted(origin.brought)) == (0, ["a", "b"])
    assert first.roots == second.roots


def test_equal_content_lies_there_once(cache: Cache, tmp_path: Path) -> None:
    """Files are kept by content, whatever they are called and wherever they come from."""
    filled(cache, written(tmp_path / "s", a="same", b="same"))
    filled(cache, written(tmp_path / "t", c="same"))
    assert len(blobs(cache)) == 1
    assert cache.size() == 4


def test_more_equal_files_than_a_file_may_have_links(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no more links are allowed to a content, the next file brings it once more."""
    real = Path.hardlink_to

    def limited(path: Path, target: Path) -> None:
        if target.stat().st_nlink >= 4:
            raise OSError(errno.EMLINK, "Too many links")
        real(path, target)

    monkeypatch.setattr(Path, "hardlink_to", limited)
    origin = written(tmp_path / "s", **{f"empty{number}": "" for number in range(30)})
    held, _ = filled(cache, origin)
    assert len(list(held.roots[0].iterdir())) == 30
    assert filled(cache, origin)[1] == 0
    assert len(blobs(cache)) == 1


def test_a_changed_file_alone_is_brought_anew(cache: Cache, tmp_path: Path) -> None:
    """The next listing of a folder shares with the last one what did not change."""
    origin = CountingOrigin(written(tmp_path / "s", a="one", b="two"))
    first, _ = filled(cache, origin)
    written(tmp_path / "s", b="another")
    second, brought = filled(cache, origin)
    assert brought == 1
    assert (first.roots[0] / "b").read_text() == "two"
    assert (second.roots[0] / "b").read_text() == "another"


def test_one_file_is_a_source_too(cache: Cache, tmp_path: Path) -> None:
    """Its path is the file's, not a folder's."""
    folder = tmp_path / "s"
    written(folder, labels="1,2")
    origin = written(folder / "labels")
    held, _ = filled(cache, origin)
    assert held.roots[0].name == "labels"
    assert held.roots[0].read_text() == "1,2"


def test_many_users_wait_for_one_filler(cache: Cache, tmp_path: Path) -> None:
    """Several that come at once bring each file once, and all of them find all files."""
    gated = GatedOrigin(written(tmp_path / "s", a="1", b="2"), held_back=lambda _: True)
    with ThreadPoolExecutor(4) as threads:
        users = [threads.submit(filled, Cache(cache.folder, 100), gated) for _ in range(4)]
        assert gated.reached.wait(30)
        gated.gate.set()
        brought = [user.result()[1] for user in users]
    assert sorted(brought) == [0, 0, 0, 2]
    assert sorted(gated.brought) == ["a", "b"]


def test_files_appear_one_by_one(cache: Cache, tmp_path: Path) -> None:
    """While one is on its way, another can be read; what is not whole is not there."""
    gated = GatedOrigin(written(tmp_path / "s", a="1", b="2"), held_back="b".__eq__)
    held = cache.reserve([gated.list()])
    with ThreadPoolExecutor(1) as threads:
        filling = threads.submit(cache.fill(held, 0, gated).run)
        assert gated.reached.wait(30)
        while not (held.roots[0] / "a").exists():
            assert not filling.done()
        assert not (held.roots[0] / "b").exists()
        assert not held.trees[0].complete
        gated.gate.set()
        filling.result()
    assert (held.roots[0] / "b").read_text() == "2"


def test_the_least_recently_used_goes(cache: Cache, tmp_path: Path) -> None:
    """Room is made by evicting what nobody used for longest."""
    old, _ = filled(cache, written(tmp_path / "old", a="o" * 40))
    new, _ = filled(cache, written(tmp_path / "new", a="n" * 40))
    new.close()
    old.close()
    os.utime(old.trees[0].folder / "use", ns=(2, 2))
    os.utime(new.trees[0].folder / "use", ns=(1, 1))
    filled(cache, written(tmp_path / "next", a="x" * 40))
    assert old.roots[0].exists()
    assert not new.roots[0].exists()
    assert cache.size() == 80


def test_what_is_used_stays(cache: Cache, tmp_path: Path) -> None:
    """A live user's files are never evicted: who needs room waits until it ends."""
    used, _ = filled(cache, written(tmp_path / "used", a="u" * 60))
    wanted = written(tmp_path / "wanted", a="w" * 60)
    with pytest.raises(NoRoom, match="live trials use all but 40 bytes"):
        cache.reserve([wanted.list()])
    assert (used.roots[0] / "a").read_text() == "u" * 60
    used.close()
    held, _ = filled(cache, wanted)
    assert (held.roots[0] / "a").read_text() == "w" * 60
    assert not used.roots[0].exists()


def test_the_disk_keeps_what_its_agents_need(tmp_path: Path) -> None:
    """However much the cache may hold, idle data go before the disk is full; live ones stay."""
    with small_disk(8) as disk:
        cache = Cache(disk / "cache", 10**12)
        old, _ = filled(cache, written(tmp_path / "old", a="o" * 5_000_000))
        wanted = written(tmp_path / "wanted", a="w" * 5_000_000)
        with pytest.raises(NoRoom, match=r"its disk has 3,.* left"):
            cache.reserve([wanted.list()])
        old.close()
        filled(cache, wanted)[0].close()
        assert Disk([cache.folder]).look_now() is None
        with pytest.raises(DataError, match="the cache may hold 8,"):
            cache.reserve([written(tmp_path / "large", a="l" * 8_388_600).list()])


def test_what_a_filler_will_bring_is_counted(cache: Cache, tmp_path: Path) -> None:
    """Two that fit one by one but not both do not fill the disk together."""
    first = cache.reserve([written(tmp_path / "first", a="u" * 60).list()])
    wanted = written(tmp_path / "wanted", a="w" * 60)
    with pytest.raises(NoRoom):
        cache.reserve([wanted.list()])
    first.close()
    cache.reserve([wanted.list()]).close()


def test_what_a_stopped_filler_left_is_no_need_for_room(cache: Cache, tmp_path: Path) -> None:
    """Half a file that is wanted counts once: its next user brings the rest, and waits not."""
    origin = written(tmp_path / "s", a="x" * 60)
    listing = origin.list()
    cache.reserve([listing]).close()
    (cache.folder / "filling" / listing.file_key(listing.entries[0])).write_bytes(b"x" * 48)
    held, brought = filled(cache, origin)
    assert (brought, cache.size()) == (1, 60)
    held.close()


def test_what_a_filler_brought_already_counts_once(cache: Cache, tmp_path: Path) -> None:
    """Another user gets what is left beside a file on its way, however much of it has come."""
    listing = written(tmp_path / "s", a="x" * 60).list()
    held = cache.reserve([listing])
    (cache.folder / "filling" / listing.file_key(listing.entries[0])).write_bytes(b"x" * 48)
    cache.reserve([written(tmp_path / "t", b="y" * 40).list()]).close()
    held.close()


def test_what_never_fits_is_refused(cache: Cache, tmp_path: Path) -> None:
    """The message says how large it is, how large the cache, and what to change."""
    origin = written(tmp_path / "s", a="x" * 101)
    with pytest.raises(DataError, match=r"101 bytes.*100 bytes.*--cache-bytes") as refused:
        cache.reserve([origin.list()])
    assert not refused.value.retriable


def test_shared_content_is_no_need_for_room(cache: Cache, tmp_path: Path) -> None:
    """A new listing that shares most files with an old one evicts neither these nor itself."""
    origin = CountingOrigin(written(tmp_path / "s", a="a" * 80, b="b"))
    old, _ = filled(cache, origin)
    old.close()
    written(tmp_path / "s", b="c" * 10)
    _, brought = filled(cache, origin)
    assert brought == 1


def test_a_damaged_file_is_brought_anew(cache: Cache, tmp_path: Path) -> None:
    """What somebody wrote into the cache is noticed before the next user gets it."""
    origin = CountingOrigin(written(tmp_path / "s", a="good", b="fine"))
    held, _ = filled(cache, origin)
    path = held.roots[0] / "a"
    path.chmod(0o644)
    path.write_text("evil")
    held.close()
    again, brought = filled(cache, origin)
    assert brought == 1
    assert (again.roots[0] / "a").read_text() == "good"


def test_after_a_restart_of_the_machine_all_is_verified(cache: Cache, tmp_path: Path) -> None:
    """What a power cut left half-written, with size and time as they should be, is found."""
    origin = CountingOrigin(written(tmp_path / "s", a="good", b="fine"))
    held, _ = filled(cache, origin)
    path = held.roots[0] / "a"
    path.chmod(0o644)
    path.write_text("\0\0\0\0")
    os.utime(path, (STAMP_S, STAMP_S))
    held.close()
    (cache.folder / "boot").write_text("another")
    again, brought = filled(Cache(cache.folder, 100), origin)
    assert brought == 1
    assert sorted(p.read_text() for p in again.roots[0].iterdir()) == ["fine", "good"]


def test_a_file_that_changes_while_it_is_copied(cache: Cache, tmp_path: Path) -> None:
    """It is not mixed: the filler says that the listing is not true any more."""
    origin = written(tmp_path / "s", a="one")
    held = cache.reserve([origin.list()])
    written(tmp_path / "s", a="other")
    with pytest.raises(DataChanged, match="was changed while it was copied"):
        cache.fill(held, 0, origin).run()
    assert not (held.roots[0] / "a").exists()
    assert "was changed" in held.trees[0].failure


KILLED = """
import os, signal, sys
from pathlib import Path
from rung.cache import Cache, FolderOrigin, Source
from rung.cache import partial_download as parts
parts.PART_BYTES = 1000
folder, source = map(Path, sys.argv[1:])
class Dying(parts.PartialDownload):
    def done(self, within):
        super().done(within)
        if within // 1000 == 3:
            os.kill(os.getpid(), signal.SIGKILL)
import rung.cache.blob_store as blob_store
blob_store.PartialDownload = lambda path, size: Dying(path, size, 1000)
origin = FolderOrigin(Source("train", str(source)))
cache = Cache(folder, 1_000_000)
held = cache.reserve([origin.list()])
cache.fill(held, 0, origin).run()
"""


def test_a_killed_filler_leaves_nothing_half_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks are free, no file of it is half there, and the next one goes on where it was."""
    content = "".join(f"{n:09}\n" for n in range(1000))
    origin = written(tmp_path / "s", large=content)
    dead = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "cache", tmp_path / "s"], check=False
    )
    assert dead.returncode == -signal.SIGKILL
    cache = Cache(tmp_path / "cache", 1_000_000)
    held = cache.reserve([origin.list()])
    assert not list(held.roots[0].iterdir())
    assert not held.trees[0].complete
    offsets: list[int] = []
    monkeypatch.setattr(
        "rung.cache.blob_store.PartialDownload", lambda path, size: _watched(path, size, offsets)
    )
    assert cache.fill(held, 0, origin).run() == 1
    assert (held.roots[0] / "large").read_text() == content
    assert min(offsets) == 4000


def _watched(path: Path, size: int, offsets: list[int]) -> "object":
    from rung.cache.partial_download import PartialDownload  # noqa: PLC0415 - the one that is replaced

    class Watched(PartialDownload):
        def write(self, offset: int, data: bytes) -> None:
            offsets.append(offset)
            super().write(offset, data)

    return Watched(path, size, 1000)


def test_a_filler_that_is_stopped_keeps_what_has_come(cache: Cache, tmp_path: Path) -> None:
    """Who stops waiting for its turn leaves at once; the next one goes on."""
    gated = GatedOrigin(written(tmp_path / "s", a="1"), held_back=lambda _: True)
    held = cache.reserve([gated.list()])
    first, second = (cache.fill(held, 0, gated) for _ in range(2))
    with ThreadPoolExecutor(2) as threads:
        filling = threads.submit(first.run)
        assert gated.reached.wait(30)
        waiting = threads.submit(second.run)
        second.stop.set()
        with pytest.raises(DataError, match="stopped"):
            waiting.result(30)
        gated.gate.set()
        assert filling.result(30) == 1


@pytest.mark.parametrize("names", [["a", "a/b"], ["../x"], ["a//b"], ["/a"], ["x" * 300]])
def test_names_that_are_no_files(names: list[str]) -> None:
    """Objects whose names cannot be files below one folder are refused by name."""
    from rung.cache import Entry, Listing  # noqa: PLC0415 - beside the test that needs them

    listing = Listing("s3 x/", single=False, entries=[Entry(name, 1, "v") for name in names])
    with pytest.raises(DataError, match="rename"):
        listing.check("data source train")


def test_links_in_a_circle_end(cache: Cache, tmp_path: Path) -> None:
    """Linked folders are followed, once."""
    origin = written(tmp_path / "s", a="1")
    (tmp_path / "s" / "loop").symlink_to(tmp_path / "s")
    held, brought = filled(cache, origin)
    assert brought == 1
    assert [path.name for path in held.roots[0].iterdir()] == ["a"]


def test_a_file_that_becomes_a_link_into_a_hidden_folder(cache: Cache, tmp_path: Path) -> None:
    """It is not brought, also where it was a file when the folder was listed."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "token").write_text("one")
    written(tmp_path / "data", a="one")
    origin = FolderOrigin(Source("train", str(tmp_path / "data")), [hidden])
    listing = origin.list()
    held = cache.reserve([listing])
    (tmp_path / "data" / "a").unlink()
    (tmp_path / "data" / "a").symlink_to(hidden / "token")
    with pytest.raises(DataError, match="leads into a folder of Rung's own"):
        cache.fill(held, 0, origin).run()
    held.close()


def test_users_and_evictors_at_once(tmp_path: Path) -> None:
    """Many that come and go with more than fits always read what they reserved."""
    folder = tmp_path / "cache"
    origins = [written(tmp_path / f"s{n}", a=f"{n}" * 40, b=f"{n}!") for n in range(4)]
    stop = threading.Event()

    def use(worker: int) -> int:
        cache, done = Cache(folder, 100), 0
        for turn in range(12):
            origin, number = origins[(worker + turn) % 4], (worker + turn) % 4
            while not stop.is_set():
                try:
                    held = cache.reserve([origin.list()])
                except NoRoom:
                    continue
                cache.fill(held, 0, origin).run()
                assert (held.roots[0] / "a").read_text() == f"{number}" * 40
                held.close()
                done += 1
                break
        return done

    with ThreadPoolExecutor(4) as threads:
        try:
            assert list(threads.map(use, range(4), timeout=90)) == [12] * 4
        finally:
            stop.set()
    assert Cache(folder, 100).size() <= 100


def test_a_file_that_is_taken_in_while_the_cache_is_counted(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts once, wherever the count comes by first: else more is let in than fits."""
    origin = written(tmp_path / "s", a="x" * 60)
    held = cache.reserve([origin.list()])
    reached, gate = threading.Event(), threading.Event()
    keep, scandir = BlobStore.keep, os.scandir

    def keep_later(*found: Any) -> None:
        reached.set()
        assert gate.wait(30)
        keep(*found)

    monkeypatch.setattr(BlobStore, "keep", keep_later)
    counted: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        filling = threads.submit(cache.fill(held, 0, origin).run)
        assert reached.wait(30)

        def scan(path: Path) -> Any:
            if counted:  # one place was looked through: now the file moves
                gate.set()
                filling.result(30)
            counted.append(path.name)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", scan)
        assert Cache(cache.folder, 100).size() == 60
        assert filling.result(30) == 1


def test_a_leftover_is_deleted_only_while_nobody_can_go_on_with_it(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filler that comes upon it at that moment waits, and then begins anew."""
    listing = written(tmp_path / "gone", a="x" * 60).list()
    cache.open()
    leftover = cache.folder / "filling" / listing.file_key(listing.entries[0])
    leftover.write_bytes(b"x" * 48)
    locked: list[bool] = []
    unlink = Path.unlink

    def watched(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as it is
        if path == leftover:
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    locked.append(True)
                else:
                    locked.append(False)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    cache.reserve([written(tmp_path / "wanted", a="w" * 60).list()]).close()
    assert locked == [True]
    assert not leftover.exists()


def test_what_a_stopped_filler_left_is_its_next_users(cache: Cache, tmp_path: Path) -> None:
    """Half a file that somebody reserved is not thrown away for another, who has no more room."""
    listing = written(tmp_path / "s", a="x" * 60).list()
    held = cache.reserve([listing])
    leftover = cache.folder / "filling" / listing.file_key(listing.entries[0])
    leftover.write_bytes(b"x" * 48)
    with pytest.raises(NoRoom, match="all but 40 bytes"):
        cache.reserve([written(tmp_path / "t", b="y" * 52).list()])
    assert leftover.exists()
    held.close()


def test_a_content_that_two_look_for_and_one_brings(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who saw it missing a moment ago does not delete what another brought meanwhile."""
    origin = written(tmp_path / "s", a="one")
    listing = origin.list()
    filled(cache, origin)[0].close()
    (blob,) = blobs(cache)
    blob.unlink()
    blob_store, key = BlobStore(cache.folder), listing.file_key(listing.entries[0])
    real = Path.exists

    def brought_meanwhile(path: Path) -> bool:
        if "suspects" in path.parts:
            monkeypatch.undo()
            with blob_store.partial(key, 3) as partial:
                origin.bring(listing, listing.entries[0], partial)
                digest, _ = digests_of(partial.path, md5=False)
                blob_store.keep(partial, key, digest, tmp_path / "target")
        return real(path)

    monkeypatch.setattr(Path, "exists", brought_meanwhile)
    assert blob_store.find(key, 3) == blob
    assert cache.size() == 3


def test_a_content_that_is_given_away_while_the_cache_is_swept(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had no user when it was looked at, and has one now, is not deleted."""
    filled(cache, written(tmp_path / "s", a="one"))[0].close()
    (blob,) = blobs(cache)
    (tree,) = (cache.folder / "trees").iterdir()
    shutil.rmtree(tree)
    blob_store, flock = BlobStore(cache.folder), fcntl.flock

    def given_away(lock: int, kind: int) -> None:
        monkeypatch.undo()
        assert blob_store.link(blob, tmp_path / "target")
        flock(lock, kind)

    monkeypatch.setattr(fcntl, "flock", given_away)
    assert blob_store.sweep(set()) == 0
    assert blob.samefile(tmp_path / "target")


def test_who_starts_beside_a_filler_does_not_disturb_it(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clearing up may fall into any moment: what is half noted is no leftover."""
    real = Path.rename

    def clears_up_before(path: Path, target: Path) -> Path:
        with monkeypatch.context() as calm:
            calm.setattr(Path, "rename", real)
            Cache(cache.folder, 100).open()
        return real(path, target)

    origin = written(tmp_path / "s", a="one", b="two")
    held = cache.reserve([origin.list()])
    monkeypatch.setattr(Path, "rename", clears_up_before)
    assert cache.fill(held, 0, origin).run() == 2
    assert (held.roots[0] / "b").read_text() == "two"


def test_a_tree_knows_its_listing(cache: Cache, tmp_path: Path) -> None:
    """What belongs into a tree can be read there, by who waits for it."""
    origin = written(tmp_path / "s", a="1", sub__b="22")
    held = cache.reserve([origin.list()])
    assert Tree(held.trees[0].folder).listing() == origin.list()


def test_a_folder_that_is_filled_shows_whole_files_alone(cache: Cache, tmp_path: Path) -> None:
    """Who lists it while it is filled, or after a kill, sees no draft of anything."""
    gated = GatedOrigin(written(tmp_path / "s", a="1", b="2"), held_back="b".__eq__)
    held = cache.reserve([gated.list()])
    seen: set[str] = set()
    with ThreadPoolExecutor(1) as threads:
        filling = threads.submit(cache.fill(held, 0, gated).run)
        assert gated.reached.wait(30)
        while "a" not in seen:
            seen.update(path.name for path in held.roots[0].iterdir())
        gated.gate.set()
        while not filling.done():
            seen.update(path.name for path in held.roots[0].iterdir())
    assert seen <= {"a", "b"}
    assert not list((cache.folder / "linking").iterdir())


def test_what_is_being_filled_is_not_evicted(cache: Cache, tmp_path: Path) -> None:
    """Also when its user is gone already, and the filler is about to notice."""
    gated = GatedOrigin(written(tmp_path / "s", a="1" * 60), held_back=lambda _: True)
    held = cache.reserve([gated.list()])
    wanted = written(tmp_path / "wanted", a="w" * 60)
    with ThreadPoolExecutor(1) as threads:
        filling = threads.submit(cache.fill(held, 0, gated).run)
        assert gated.reached.wait(30)
        held.close()
        with pytest.raises(NoRoom):
            cache.reserve([wanted.list()])
        gated.gate.set()
        filling.result()
    cache.reserve([wanted.list()]).close()
