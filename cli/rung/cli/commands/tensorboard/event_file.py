"""TensorBoard's event files: curves as records, without TensorFlow or protobuf.

A file is a sequence of records, each its length, a masked CRC-32C of the length, the data, and a
masked CRC-32C of the data. The data are an `Event` message: the time, the step, and the value of
one tag; the first says only which version of the format follows.
"""

import struct
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

NAME: Final = "events.out.tfevents.0.rung"
"""TensorBoard reads files with `tfevents` in their name."""
_VERSION: Final = b"brain.Event:2"
_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF


class Scalar(NamedTuple):
    """A point of a curve."""

    tag: str
    step: int
    time_s: float
    value: float


class EventFile:
    """Writes scalars into a folder, in place of what it wrote there before."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / NAME).open("wb")
        self._file.write(_record(_double(1, 0.0) + _bytes(3, _VERSION)))

    def add(self, scalar: Scalar) -> None:
        """Write a point."""
        value = _bytes(1, scalar.tag.encode()) + _float(2, scalar.value)
        event = _double(1, scalar.time_s) + _number(2, scalar.step) + _bytes(5, _bytes(1, value))
        self._file.write(_record(event))

    def flush(self) -> None:
        """Let readers see what is written."""
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum."""
    crc = _WORD
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _WORD


def _table() -> list[int]:
    table = []
    for entry in range(256):
        crc = entry
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE: Final = _table()


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = ((crc >> 15) | (crc << 17)) & _WORD
    return struct.pack("<I", (rotated + _MASK) & _WORD)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
