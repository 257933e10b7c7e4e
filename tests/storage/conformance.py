"""What every object store must do, whatever it keeps objects in."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rung.storage import (
    ObjectError,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    areas_of,
    inspect,
    prepare,
)
from rung.storage.area import try_out


class ObjectStoreContract:
    """Inherit it and give a fixture `store`: an empty one."""

    def test_what_was_put_is_read_back(self, store: ObjectStore, tmp_path: Path) -> None:
        """Bytes and files come back as they went in, and a later write replaces an earlier one."""
        source = tmp_path / "source"
        source.write_bytes(os.urandom(3 << 20))
        store.put("code/a.tar.gz", source)
        store.put_bytes("code/b", b"first")
        store.put_bytes("code/b", b"second")
        store.get("code/a.tar.gz", tmp_path / "new" / "target")
        assert (tmp_path / "new" / "target").read_bytes() == source.read_bytes()
        assert store.read("code/b") == b"second"

    def test_an_empty_object_is_one(self, store: ObjectStore, tmp_path: Path) -> None:
        """Nothing is something: it is listed, read, and fetched."""
        (tmp_path / "source").write_bytes(b"")
        store.put("empty", tmp_path / "source")
        (tmp_path / "target").write_bytes(b"what was there before")
        store.get("empty", tmp_path / "target")
        assert store.read("empty") == (tmp_path / "target").read_bytes() == b""
        assert store.list("") == [ObjectInfo("empty", 0)]

    def test_a_shorter_object_leaves_nothing_of_a_longer_target(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        """What was in the target file is gone."""
        store.put_bytes("x", b"short")
        (tmp_path / "target").write_bytes(b"what was there before")
        store.get("x", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == b"short"

    @pytest.mark.timeout(60)
    def test_a_target_that_is_a_link_or_a_pipe_is_replaced(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        """What a link leads to stays as it is, and no reader of a pipe is waited for."""
        store.put_bytes("x", b"bytes")
        (tmp_path / "other").write_bytes(b"another's")
        (tmp_path / "link").symlink_to(tmp_path / "other")
        os.mkfifo(tmp_path / "pipe")
        for name in ("link", "pipe"):
            store.get("x", tmp_path / name)
            assert (tmp_path / name).read_bytes() == b"bytes"
        assert (tmp_path / "other").read_bytes() == b"another's"

    @pytest.mark.parametrize(
        ("offset", "size", "expected"),
        [
            (0, None, b"0123456789"),
            (3, None, b"3456789"),
            (0, 4, b"0123"),
            (3, 4, b"3456"),
            (8, 4, b"89"),
            (10, 4, b""),
            (99, None, b""),
            (3, 0, b""),
        ],
    )
    def test_some_of_the_bytes_can_be_read(
        self, store: ObjectStore, *, offset: int, size: int | None, expected: bytes
    ) -> None:
        """A range ends where the object ends."""
        store.put_bytes("x", b"0123456789")
        assert store.read("x", offset, size) == expected

    def test_a_missing_object_is_named(self, store: ObjectStore, tmp_path: Path) -> None:
        """Reading what is not there says what is not there, and leaves no empty target."""
        with pytest.raises(ObjectMissing, match="no object 'code/none'"):
            store.read("code/none")
        with pytest.raises(ObjectMissing, match="no object 'code/none'"):
            store.get("code/none", tmp_path / "target")
        assert not (tmp_path / "target").exists()

    def test_a_missing_source_stores_nothing(self, store: ObjectStore, tmp_path: Path) -> None:
        """A file that is not there is the caller's trouble, in words."""
        with pytest.raises(ObjectError, match="cannot write 'x'"):
            store.put("x", tmp_path / "none")
        assert store.list("") == []

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "/etc/passwd",
            "../up",
            "a/../../up",
            "a/./b",
            "a//b",
            "a/",
            "a\\..\\b",
            "a\0b",
            "a\nb",
            ".incoming/x",
            "x" * 1025,
            "\ud800",
        ],
    )
    def test_a_name_that_could_climb_out_is_refused(
        self, store: ObjectStore, name: str, tmp_path: Path
    ) -> None:
        """No name reaches outside the store, whichever way it is used."""
        with pytest.raises(ObjectError, match="object"):
            store.put_bytes(name, b"")
        with pytest.raises(ObjectError, match="object"):
            store.read(name)
        with pytest.raises(ObjectError, match="object"):
            store.get(name, tmp_path / "target")
        with pytest.raises(ObjectError, match="object"):
            store.presign(name, 60)

    @pytest.mark.parametrize("name", ["a b", "ü/ß", "100%", "a+b", "&=?#", "~x", "'\"<>", "☃"])
    def test_odd_names_are_names(self, store: ObjectStore, name: str) -> None:
        """What a file may be called, an object may be called."""
        store.put_bytes(name, name.encode())
        assert store.read(name) == name.encode()
        assert store.list("") == [ObjectInfo(name, len(name.encode()))]
        assert store.delete(name) == 1

    def test_a_version_goes_with_the_bytes(self, store: ObjectStore) -> None:
        """It stays while they do, is another for others, and none is there of nothing."""
        store.put_bytes("a", b"one")
        before = store.version("a")
        assert before == store.version("a") != ""
        store.put_bytes("a", b"two")
        assert store.version("a") != before
        with pytest.raises(ObjectMissing):
            store.version("b")

    def test_listing_and_deleting_go_by_prefix(self, store: ObjectStore) -> None:
        """A prefix stands for the names that begin with it, also in the middle of a part."""
        for name in ("a/x/1", "a/x/2", "a/xy", "b"):
            store.put_bytes(name, name.encode())
        assert [info.name for info in store.list("")] == ["a/x/1", "a/x/2", "a/xy", "b"]
        assert store.list("a/x/") == [ObjectInfo("a/x/1", 5), ObjectInfo("a/x/2", 5)]
        assert [info.name for info in store.list("a/x")] == ["a/x/1", "a/x/2", "a/xy"]
        assert store.list("none/") == []
        assert store.delete("a/x/") == 2
        assert store.delete("a/x/") == 0
        assert [info.name for info in store.list("")] == ["a/xy", "b"]

    def test_deleting_everything_by_mistake_is_refused(self, store: ObjectStore) -> None:
        """The empty prefix is no prefix for a deletion."""
        with pytest.raises(ObjectError, match="every object"):
            store.delete("")

    def test_a_prefix_that_climbs_out_is_refused(self, store: ObjectStore) -> None:
        """Neither listing nor deleting leaves the store."""
        for prefix in ("../", "/etc/", "a/../../"):
            with pytest.raises(ObjectError, match="prefix"):
                store.list(prefix)
            with pytest.raises(ObjectError, match="prefix"):
                store.delete(prefix)

    def test_threads_may_share_it(self, store: ObjectStore, tmp_path: Path) -> None:
        """Eight threads put and get at once, and nobody gets another's bytes."""

        def there_and_back(number: int) -> bool:
            data = bytes([number]) * (100_000 + number)
            store.put_bytes(f"x/{number}", data)
            store.get(f"x/{number}", tmp_path / str(number))
            return (tmp_path / str(number)).read_bytes() == data

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(there_and_back, range(40)))
        assert len(store.list("x/")) == 40

    def test_preparing_leaves_nothing_behind_and_nothing_to_do(self, store: ObjectStore) -> None:
        """After `prepare` nothing differs, and a second time does nothing."""
        prepare(store)
        assert inspect(store) == []
        assert prepare(store) == []
        assert store.list("") == []

    def test_an_area_is_a_store_of_its_own(self, store: ObjectStore, tmp_path: Path) -> None:
        """Whatever is done in it is not done to objects of the same name outside or in others."""
        source = tmp_path / "source"
        source.write_bytes(b"vision")
        area, other = store.area("vision"), store.area("teams/vision")
        for each, data in ((store, b"none"), (other, b"other")):
            each.put_bytes("checkpoints/e/c/x", data)
        area.put("checkpoints/e/c/x", source)
        area.get("checkpoints/e/c/x", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == b"vision"
        assert area.read("checkpoints/e/c/x", 1, 3) == b"isi"
        assert area.version("checkpoints/e/c/x") != store.version("checkpoints/e/c/x")
        assert area.list("checkpoints/") == [ObjectInfo("checkpoints/e/c/x", 6)]
        assert [it.name for it in store.list("checkpoints/")] == ["checkpoints/e/c/x"]
        assert areas_of(store) == ["teams/vision", "vision"]
        assert area.delete("checkpoints/") == 1
        with pytest.raises(ObjectMissing):
            area.read("checkpoints/e/c/x")
        assert store.read("checkpoints/e/c/x") == b"none"
        assert other.read("checkpoints/e/c/x") == b"other"
        assert areas_of(store) == ["teams/vision"]

    def test_no_area_outside_of_the_store(self, store: ObjectStore) -> None:
        """An empty name is the store itself; others that are none are refused."""
        store.put_bytes("x", b"1")
        assert store.area("").read("x") == b"1"
        for name in ("..", "/x", "a/../b", "checkpoints", "s3://other/x"):
            with pytest.raises(ObjectError, match="storage area"):
                store.area(name)

    def test_an_area_can_be_tried_out(self, store: ObjectStore) -> None:
        """It leaves nothing there."""
        try_out(store.area("vision"))
        assert store.list("") == []
