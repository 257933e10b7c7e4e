"""What can be set about an archive."""

import pytest

from rung.ledger.archive import ArchiveSettings


@pytest.mark.parametrize(
    ("setting", "value"),
    [("every_s", 0), ("every_s", float("nan")), ("segment_bytes", 0), ("parallel", 65)],
)
def test_settings_that_are_not_possible(setting: str, value: float) -> None:
    """Each is refused by its name, with what would be right."""
    with pytest.raises(ValueError, match=rf"^{setting} is {value}: give .*"):
        ArchiveSettings(**{setting: value})  # type: ignore[arg-type]
