"""Unconfirmed messages: none lost, none repeated, in whatever order agents come and go."""

import resource
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from rung.core.ipc.unconfirmed import PREFIX, Unconfirmed, frames_in

LOCK = threading.Lock()
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30)),
        st.tuples(st.just("confirm"), st.integers(0, 40)),
        st.tuples(st.just("store"), st.just(0)),
        st.tuples(st.just("keep_in_memory"), st.just(0)),
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("tidy"), st.just(0)),
    ),
    max_size=40,
)


def frame(number: int) -> bytes:
    """Return the frame of a number."""
    return b"{%d}" % number + b"x" * (number % 7) + b"\n"


def read_all(unconfirmed: Unconfirmed, after: int) -> list[bytes]:
    """Return the frames that follow a number."""
    found = b""
    while True:
        data, after = unconfirmed.read(after)
        if not data:
            return found.splitlines(keepends=True)
        found += data


@given(ACTIONS)
def test_what_is_not_confirmed_is_there(actions: list[tuple[str, int]]) -> None:
    """After any actions, exactly the frames that follow the confirmed ones can be read."""
    with TemporaryDirectory() as folder:
        unconfirmed = Unconfirmed(Path(folder), "s", 0)
        added = confirmed = 0
        for action, number in actions:
            match action:
                case "add":
                    for _ in range(number):
                        added += 1
                        unconfirmed.add(frame(added))
                case "confirm":
                    unconfirmed.confirm(number)
                    confirmed = max(confirmed, min(number, added))
                case "store":
                    unconfirmed.store()
                case "write":
                    unconfirmed.write(LOCK)
                case "tidy":
                    unconfirmed.tidy()
                case _:
                    unconfirmed.keep_in_memory()
            assert (unconfirmed.first, unconfirmed.last) == (confirmed + 1, added)
            assert read_all(unconfirmed, confirmed) == list(
                map(frame, range(confirmed + 1, added + 1))
            )


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_the_file_has_what_memory_loses(before: int, confirmed: int, after: int) -> None:
    """What was not confirmed when the agent vanished, and all that follows, is in the file."""
    with TemporaryDirectory() as folder:
        unconfirmed = Unconfirmed(Path(folder), "s", 3)
        for number in range(1, before + 1):
            unconfirmed.add(frame(number))
        unconfirmed.confirm(confirmed)
        unconfirmed.store()
        unconfirmed.write(LOCK)
        for number in range(before + 1, before + after + 1):
            unconfirmed.add(frame(number))
            unconfirmed.write(LOCK)
        path = Path(folder) / f"{PREFIX}s"
        first = min(confirmed, before) + 1
        expected = [frame(number).rstrip() for number in range(first, before + after + 1)]
        if not expected:
            assert not path.exists()
            return
        found = frames_in(path.read_bytes() + b"{cut of")
        assert found is not None
        head, frames = found
        assert (head.stream, head.rank, head.first, frames) == ("s", 3, first, expected)


def test_the_file_goes_when_all_is_confirmed(tmp_path: Path) -> None:
    """A file is removed with the confirmation of its last frame, and begun again if need be."""
    unconfirmed = Unconfirmed(tmp_path, "s", 0, bytes_max=200)
    unconfirmed.store()
    while not unconfirmed.full:
        unconfirmed.add(frame(unconfirmed.last + 1))
        unconfirmed.write(LOCK)
    unconfirmed.confirm(unconfirmed.last - 1)
    unconfirmed.tidy()
    assert unconfirmed.full
    unconfirmed.confirm(unconfirmed.last)
    unconfirmed.tidy()
    assert not list(tmp_path.iterdir())
    assert not unconfirmed.full
    last = unconfirmed.last
    unconfirmed.add(frame(last + 1))
    unconfirmed.write(LOCK)
    found = frames_in((tmp_path / f"{PREFIX}s").read_bytes())
    assert found is not None
    assert found[0].first == last + 1


def test_a_confirmation_behind_the_file_begins_another_one(tmp_path: Path) -> None:
    """Where it comes just before the agent is lost again: a line's number is its frame's."""
    unconfirmed = Unconfirmed(tmp_path, "s", 0)
    unconfirmed.store()
    for number in (1, 2):
        unconfirmed.add(frame(number))
    unconfirmed.write(LOCK)
    for number in (3, 4):
        unconfirmed.add(frame(number))
    unconfirmed.confirm(3)
    unconfirmed.write(LOCK)
    assert read_all(unconfirmed, 3) == [frame(4)]
    found = frames_in((tmp_path / f"{PREFIX}s").read_bytes())
    assert found is not None
    assert (found[0].first, found[1]) == (4, [frame(4).rstrip()])


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    """Frames that cannot be written stay in memory, in order, and are written when they can be."""
    unconfirmed = Unconfirmed(tmp_path / "folder", "s", 0)
    unconfirmed.store()
    for number in (1, 2, 3):
        unconfirmed.add(frame(number))
        unconfirmed.write(LOCK)
    assert read_all(unconfirmed, 0) == [frame(1), frame(2), frame(3)]
    (tmp_path / "folder").mkdir()
    unconfirmed.add(frame(4))
    unconfirmed.write(LOCK)
    found = frames_in((tmp_path / "folder" / f"{PREFIX}s").read_bytes())
    assert found is not None
    assert found[1] == [frame(number).rstrip() for number in (1, 2, 3, 4)]


def test_a_frame_is_written_whole_or_not(tmp_path: Path) -> None:
    """A file at its largest size takes no half of a frame."""
    unconfirmed = Unconfirmed(tmp_path, "s", 0)
    unconfirmed.store()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # Python ignores SIGXFSZ
    try:
        for number in range(1, 41):
            unconfirmed.add(frame(number))
            unconfirmed.write(LOCK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_all(unconfirmed, 0) == list(map(frame, range(1, 41)))
    found = frames_in((tmp_path / f"{PREFIX}s").read_bytes())
    assert found is not None
    assert 0 < len(found[1]) < 40
    assert found[1] == [frame(n).rstrip() for n in range(1, len(found[1]) + 1)]


def test_a_file_that_says_nothing() -> None:
    """A file that was cut off in its first line has no frames."""
    assert frames_in(b"") is None
    assert frames_in(b'{"stream": "s"') is None
