"""Places in a rung."""

from rung.searcher.methods.rungs import Rung


def test_ties_are_broken_by_index() -> None:
    """Of two equal results the earlier trial's comes first, whenever it arrived."""
    rung = Rung()
    assert [rung.add(0.5, 3), rung.add(0.5, 1), rung.add(0.1, 9)] == [0, 0, 0]
    assert rung.entries == [(0.1, 9), (0.5, 1), (0.5, 3)]
