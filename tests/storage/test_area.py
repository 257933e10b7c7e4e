"""Storage areas: which names they can have, and that nothing leaves or crosses them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.storage import FolderStore, ObjectError, areas_of, is_area, split_area
from rung.storage.area import AREA_LENGTH_MAX, AREAS, area_prefix, try_out
from rung.storage.key import check_name

PARTS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,12}", fullmatch=True).filter(
    lambda part: part != "checkpoints"
)
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("/".join)


@given(NAMES)
def test_names_of_plain_parts_are_names(name: str) -> None:
    """Their objects lie below `areas/`, and are told apart from others by their names alone."""
    assert is_area(name) == (len(name) <= AREA_LENGTH_MAX)
    if is_area(name):
        own = f"{area_prefix(name)}checkpoints/e/c/manifest.json"
        assert check_name(own).startswith(AREAS)
        assert split_area(own) == (name, "checkpoints/e/c/manifest.json")


@given(st.text(max_size=120))
def test_whatever_is_a_name_stays_in_its_area(name: str) -> None:
    """What is accepted is a relative name without `.` and `..`; all other text is refused."""
    if is_area(name):
        assert check_name(name) == name == name.lower()
        assert {".", "..", "checkpoints", ""}.isdisjoint(name.split("/"))
    elif name:
        with pytest.raises(ObjectError, match="storage area"):
            area_prefix(name)


@given(NAMES.filter(is_area), NAMES.filter(is_area))
def test_no_area_holds_checkpoints_of_another(first: str, second: str) -> None:
    """A deletion by prefix in one reaches into no other."""
    mine, other = (f"{area_prefix(it)}checkpoints/" for it in (first, second))
    assert mine == other or not (mine.startswith(other) or other.startswith(mine))


@pytest.mark.parametrize(
    "name",
    [
        "..", "a/..", "../a", "/a", "a/", "a//b", ".", "a/./b", "A", "a b", "a.b", "a\\b", "ä",
        "-a", "_a", "a\n", "checkpoints", "a/checkpoints", "checkpoints/a", "s3://bucket/a",
        "file:///a", "a%2fb", "a" * (AREA_LENGTH_MAX + 1), ".incoming",
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    """Nothing is made of them, and the message says what would be right."""
    assert not is_area(name)
    with pytest.raises(ObjectError, match="give parts such as vision or teams/vision"):
        FolderStore(tmp_path / "objects").area(name)
    assert [it.name for it in (tmp_path / "objects").iterdir()] == [".incoming"]


def test_an_area_is_a_folder(tmp_path: Path) -> None:
    """Below `areas/`, where another disk can be; objects elsewhere are not among its own."""
    store = FolderStore(tmp_path / "objects")
    store.put_bytes("checkpoints/e/c/x", b"out")
    area = store.area("teams/vision")
    area.put_bytes("checkpoints/e/c/x", b"in")
    path = tmp_path / "objects" / "areas" / "teams" / "vision" / "checkpoints" / "e" / "c" / "x"
    assert path.read_bytes() == b"in"
    assert store.area("") is store
    assert areas_of(store) == ["teams/vision"]
    area.delete("checkpoints/e/")
    assert not path.parent.parent.parent.exists()
    assert areas_of(store) == []
    assert store.read("checkpoints/e/c/x") == b"out"


def test_a_process_that_writes_in_one_folder_reads_other_areas(tmp_path: Path) -> None:
    """As a trial in a view of its own: where it does not write, it makes nothing either."""
    root = tmp_path / "objects"
    FolderStore(root).area("speech").put_bytes("checkpoints/e2/c/x", b"2")
    trial = FolderStore(root, "areas/vision/checkpoints/e1")
    trial.area("vision").put_bytes("checkpoints/e1/c/x", b"1")
    incoming = root / "areas" / "vision" / "checkpoints" / "e1" / ".incoming"
    assert incoming.is_dir()
    assert not (root / "areas" / "vision" / ".incoming").exists()
    (root / "areas" / "speech" / ".incoming").rmdir()
    assert trial.area("speech").read("checkpoints/e2/c/x") == b"2"
    assert not (root / "areas" / "speech" / ".incoming").exists()


def test_where_nothing_can_be_written_is_found_out(tmp_path: Path) -> None:
    """A file in the place of the folder, such as a disk that is not there leaves."""
    store = FolderStore(tmp_path / "objects")
    try_out(store.area("vision"))
    assert store.area("vision").list("") == []
    (tmp_path / "objects" / "areas" / "speech").write_bytes(b"")
    with pytest.raises(ObjectError, match="cannot open"):
        try_out(store.area("speech"))
