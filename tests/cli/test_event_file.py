"""Event files are what TensorBoard's own reader takes."""

import math
from pathlib import Path
from typing import Any

import pytest

from rung.cli.commands.tensorboard.event_file import NAME, EventFile, Scalar, crc32c

POINTS = [
    Scalar("validation/loss", 1, 1_700_000_000.25, 0.5),
    Scalar("validation/loss", 300, 1_700_000_001.0, math.nan),
    Scalar("training/größe", 1 << 40, 1_700_000_002.0, -1e300),
]


def test_checksums() -> None:
    """The checksum is Castagnoli's, by its published example."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_tensorboards_reader_takes_them(tmp_path: Path) -> None:
    """Steps, times and values come back; what no float holds becomes infinite."""
    reader: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader",
        reason="not installed: tensorboard",
    )
    with EventFile(tmp_path / "trial") as file:
        for point in POINTS:
            file.add(point)
    loaded = list(reader.LegacyEventFileLoader(str(tmp_path / "trial" / NAME)).Load())
    assert loaded[0].file_version == "brain.Event:2"
    found = [(event.summary.value[0].tag, event.step, event.wall_time) for event in loaded[1:]]
    assert found == [point[:3] for point in POINTS]
    first, second, third = (event.summary.value[0].simple_value for event in loaded[1:])
    assert first == 0.5
    assert math.isnan(second)
    assert third == -math.inf


def test_a_file_is_written_anew(tmp_path: Path) -> None:
    """The same points make the same bytes, whatever was there before."""
    contents = []
    for _ in range(2):
        with EventFile(tmp_path) as file:
            file.add(POINTS[0])
            file.flush()
            contents.append((tmp_path / NAME).read_bytes())
    assert contents[0] == contents[1]
