"""Sizes as people write them."""

import click
import pytest

from rung.agent.size import Size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("200000", 200_000),
        ("500GB", 500 * 10**9),
        ("500g", 500 * 10**9),
        ("1.5TiB", 3 * 2**39),
        (" 10 MiB ", 10 * 2**20),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Powers of ten, or of two where an `i` says so."""
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "many", "-5GB", "5 boxes", "1e9"])
def test_what_is_no_size(text: str) -> None:
    """The message says how one is written."""
    with pytest.raises(click.UsageError, match="500GB or 200GiB"):
        Size().convert(text, None, None)
