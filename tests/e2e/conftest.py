"""Installations for end-to-end tests, stopped whatever the test did."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.installation import Installation


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """Return an installation that runs."""
    item = Installation(tmp_path / "data")
    item.up()
    yield item
    item.down()
