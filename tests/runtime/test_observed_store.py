"""What passes through an observed object store is what passes through the one inside."""

from pathlib import Path

from rung.runtime.metrics import catalog
from rung.runtime.metrics.observed_store import ObservedStore
from rung.storage import FolderStore, ObjectInfo


def test_everything_is_passed_on_and_timed(tmp_path: Path) -> None:
    """Each method does what the store inside does; each operation has been observed."""
    inside = FolderStore(tmp_path / "store")
    store = ObservedStore(inside)
    (tmp_path / "file").write_bytes(b"abc")
    store.put("a/file", tmp_path / "file")
    store.put_bytes("a/bytes", b"xyz")
    store.get("a/bytes", tmp_path / "got")

    assert (store.url, store.parallel) == (inside.url, inside.parallel)
    assert (tmp_path / "got").read_bytes() == b"xyz"
    assert store.read("a/file", 1, 1) == b"b"
    assert store.list("a/") == [ObjectInfo("a/bytes", 3), ObjectInfo("a/file", 3)]
    assert store.presign("a/file", 1.0) is None
    assert store.delete("a/") == 2
    store.close()
    told = catalog.METER.expose().decode()
    for operation in ("put", "get", "read", "list", "delete"):
        assert f'rung_objects_seconds_count{{operation="{operation}"}}' in told
