"""Secrets: their form, and what of them is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.gateway.identity.secret import PREFIX, digest_of, draw, is_secret


def test_a_drawn_secret_is_one() -> None:
    """Two are never the same, and both have the form."""
    one, another = draw(), draw()
    assert is_secret(one)
    assert is_secret(another)
    assert one != another
    assert digest_of(one) != digest_of(another)
    assert len(digest_of(one)) == 64


@given(place=st.integers(0, len(PREFIX) + 45), letter=st.characters())
def test_a_changed_letter_is_noticed(place: int, letter: str) -> None:
    """The checksum finds any one mistake."""
    secret = draw()
    changed = secret[:place] + letter + secret[place + 1 :]
    assert is_secret(changed) == (changed == secret)


@pytest.mark.parametrize("text", ["", "rung_", "rung_" + "0" * 46, "x" * 51, "\udcff" * 51])
def test_what_is_none(text: str) -> None:
    """Texts of other lengths and letters have not the form; none fails."""
    assert not is_secret(text)
    assert digest_of(text)
