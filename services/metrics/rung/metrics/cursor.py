"""Where a page of lines ends, as a text that a client hands back."""

import base64
import binascii
from typing import Final, NamedTuple

import msgspec


class LineKey(NamedTuple):
    """What orders printed lines: no two have the same."""

    time_ms: int
    trial_id: str
    sequence: int
    line: int
    origin: str


_decoder: Final = msgspec.json.Decoder(LineKey)


def write_cursor(key: LineKey) -> str:
    """Return the cursor behind a line."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def read_cursor(text: str) -> LineKey:
    """Return the line behind which a cursor stands.

    Raises:
        ValueError: it is no cursor of this service.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return _decoder.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, msgspec.DecodeError) as error:
        raise ValueError(
            f"after is {text!r}: give the cursor that came with the page before, unchanged"
        ) from error
