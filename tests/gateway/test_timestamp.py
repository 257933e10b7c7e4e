"""Times of answers."""

from datetime import datetime

import pytest

from rung.gateway.timestamp import timestamp

MOMENTS = {
    0: "1970-01-01T00:00:00.000Z",
    1_767_225_600_001: "2026-01-01T00:00:00.001Z",
    1_767_225_600_999: "2026-01-01T00:00:00.999Z",
}


@pytest.mark.parametrize(("ms", "text"), MOMENTS.items())
def test_a_time_is_to_the_millisecond(ms: int, text: str) -> None:
    """In UTC, and read back as it was."""
    assert timestamp(ms) == text
    assert round(datetime.fromisoformat(text).timestamp() * 1_000) == ms
