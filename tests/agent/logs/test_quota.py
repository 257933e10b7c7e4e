"""The limit of a run's log."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rung.agent.logs.quota import BURST_BYTES, RATE_BYTES_S, LogQuota, Missing, size_of
from rung.events.metric import LogLine


def line(number: int, size: int = 100) -> LogLine:
    """Return a printed line that takes so many bytes."""
    blank = LogLine(rank=0, stream="stdout", level="info", time_ms=number, text="")
    text = f"{number} ".ljust(size - size_of([blank]), ".")
    return structs.replace(blank, text=text)


def texts(parts: Sequence[LogLine | Missing]) -> list[str | int]:
    """Return the lines' numbers, and of a mark how many lines are missing."""
    return [part.lines if isinstance(part, Missing) else part.text.split()[0] for part in parts]


def test_beginning_and_end_are_kept() -> None:
    """Of a log that is too long, the first three quarters of its room are its beginning."""
    quota = LogQuota(4000)
    stored: list[LogLine | Missing] = []
    for number in range(100):
        stored += quota.take([line(number)], 0.0)
    assert quota.full
    assert texts(stored) == [str(number) for number in range(30)]
    stored += quota.end()
    assert texts(stored[30:]) == [60, *(str(number) for number in range(90, 100))]
    assert stored[30] == Missing("quota", 0, 30, 60, 6000)


def test_a_log_that_fits_just_so_is_whole() -> None:
    """Nothing is missing where the end has room: what was held comes behind no mark."""
    quota = LogQuota(4000)
    stored: list[LogLine | Missing] = []
    for number in range(40):
        stored += quota.take([line(number)], 0.0)
    assert not quota.full
    stored += quota.end()
    assert texts(stored) == [str(number) for number in range(40)]


def test_what_is_printed_too_fast_is_marked_and_goes_on() -> None:
    """Beyond a burst the newest lines are held; once they fit they follow the mark."""
    quota = LogQuota(1 << 30)
    size = 1 << 16
    burst = BURST_BYTES // size
    stored: list[LogLine | Missing] = []
    for number in range(burst + 100):
        stored += quota.take([line(number, size)], 0.0)
    assert len(stored) == burst
    assert quota.holding
    assert quota.due(0.1) == ()
    later = list(quota.due(quota.tail_bytes / RATE_BYTES_S))
    held = quota.tail_bytes // size
    assert texts(later) == [100 - held, *(str(burst + 100 - held + n) for n in range(held))]
    assert isinstance(later[0], Missing)
    assert later[0].reason == "rate"
    assert not quota.holding
    assert texts(quota.take([line(7)], 60.0)) == ["7"]


@given(
    st.integers(4096, 40_000),
    st.lists(
        st.tuples(st.lists(st.integers(100, 3000), min_size=1, max_size=30), st.floats(0, 2)),
        max_size=40,
    ),
)
def test_every_line_is_stored_or_counted(most: int, blocks: list[tuple[list[int], float]]) -> None:
    """In their order, and never more of them than the log may have, however they come."""
    quota = LogQuota(most)
    printed = [size for sizes, _ in blocks for size in sizes]
    stored: list[LogLine | Missing] = []
    now_s = 0.0
    number = 0
    for sizes, later_s in blocks:
        now_s += later_s
        stored += quota.take([line(number + i, size) for i, size in enumerate(sizes)], now_s)
        number += len(sizes)
    stored += quota.end()
    position = size = 0
    for part in stored:
        if isinstance(part, Missing):
            gone = printed[part.time_ms : part.time_ms + part.lines]
            assert (part.time_ms, part.size_bytes) == (position, sum(gone))
            position += part.lines
        else:
            assert part.time_ms == position
            size += printed[position]
            position += 1
    assert position == len(printed)
    assert size <= most


@given(st.lists(st.integers(100, 3000), min_size=1, max_size=100), st.integers(1, 20))
def test_blocks_do_not_matter(sizes: list[int], block: int) -> None:
    """However many lines come at once, the same are stored, and counted."""
    lines = [line(number, size) for number, size in enumerate(sizes)]
    stored: list[list[LogLine | Missing]] = []
    for length in (1, block):
        quota = LogQuota(20_000)
        found: list[LogLine | Missing] = []
        for start in range(0, len(lines), length):
            found += quota.take(lines[start : start + length], 0.0)
        stored.append(found + quota.end())
    assert stored[0] == stored[1]
