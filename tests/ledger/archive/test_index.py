"""Which segments are read where, and which positions are in none."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.events import LedgerError, topic
from rung.ledger.archive.index import holes, ledgers_in, pieces, resolve_ledger
from rung.ledger.archive.segment import Place, Segment
from rung.storage import FolderStore

PLACE = Place("a-ledger", topic.LOGS, 0, 1)

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12)


@given(spans)
def test_each_position_is_read_once_and_what_is_missing_is_told(
    found: list[tuple[int, int]],
) -> None:
    """However segments overlap: each position that one holds is read, from one that holds it."""
    segments = sorted(
        (
            Segment(PLACE, first, first + more, f"{number:064}")
            for number, (first, more) in enumerate(found)
        ),
        key=lambda it: (it.first, it.last, it.digest),
    )
    read: list[int] = []
    walk = pieces(segments)
    for start, segment in walk:
        assert segment.first <= start <= segment.last
        read += range(start, segment.last + 1)
    held = {position for it in segments for position in range(it.first, it.last + 1)}
    assert read == sorted(held)
    missing = [position for hole in holes(segments) for position in range(hole[0], hole[1] + 1)]
    end = max(held, default=-1) + 1
    assert missing == [position for position in range(end) if position not in held]
    assert len(walk) <= len(segments)


def test_which_ledger_is_meant(tmp_path: Path) -> None:
    """The only one in a store; of several, the one that is named."""
    store = FolderStore(tmp_path)
    with pytest.raises(LedgerError, match="holds no archive"):
        resolve_ledger(store, None)
    store.put_bytes("archive/one/x", b"")
    assert resolve_ledger(store, None) == resolve_ledger(store, "one") == "one"
    store.put_bytes("archive/two/x", b"")
    assert ledgers_in(store) == ["one", "two"]
    assert resolve_ledger(store, "two") == "two"
    with pytest.raises(LedgerError, match=r"name one, as in .*#one; there are one, two"):
        resolve_ledger(store, None)
    with pytest.raises(LedgerError, match="no archive of the ledger 'three'; it holds one, two"):
        resolve_ledger(store, "three")
