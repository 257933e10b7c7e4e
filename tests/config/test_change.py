"""Fields of an experiment file are changed, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.config.change import InvalidChange, changed
from rung.config.yaml import document

_TEXT = st.text(st.characters(exclude_categories=["C"]), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
    | st.sampled_from(["1e-3", "0x1f", "yes", "null", "~", ".inf", "1_000", "0o17", "-", "1:30"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
def test_values_come_back_as_they_were(value: object) -> None:
    """Whatever a value looks like in YAML, the file that is written is read as the same."""
    text = changed("a: {b: [1, 2]}\nc: x\n", {"a.new": value, "a.b.1": "1e-3"})
    assert document.read(text).tree == {"a": {"b": [1, "1e-3"], "new": value}, "c": "x"}


def test_fields_are_left_out() -> None:
    """Those that are there; the others are no fault."""
    text = changed("a: {b: 1, c: 2}\n", {}, without=("a.b", "a.x.y", "z"))
    assert document.read(text).tree == {"a": {"c": 2}}


@pytest.mark.parametrize("path", ["a.b.x", "a.b.7", "a.b.0.c"])
def test_what_is_not_there(path: str) -> None:
    """An item of a list that is none, and a field of what has none."""
    with pytest.raises(InvalidChange):
        changed("a: {b: [1]}\n", {path: 1})
