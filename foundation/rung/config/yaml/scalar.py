"""The value of a plain scalar by the core schema of YAML 1.2.

PyYAML implements YAML 1.1, where `1e-3` is text, `no` is false, `010` is 8 and `12:30` is 750.
Here `1e-3` is a number, `no` is text, `010` is 10, `12:30` and `2025-01-31` are text. As in YAML
1.1, `1_000` is a thousand.
"""

import math
import re
from typing import Final

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT: Final = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
)
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

Scalar = str | int | float | bool | None


class BadScalar(ValueError):
    """A scalar that is valid in YAML and not in an experiment file."""


def resolve(word: str) -> Scalar:
    """Return the value of an unquoted scalar.

    Raises:
        BadScalar: a number that JSON or 64 bits cannot hold.
    """
    if word in _WORDS:
        return _WORDS[word]
    if word[0] not in "+-.0123456789":
        return word
    if _INT.fullmatch(word) or _BASED.fullmatch(word):
        return _integer(word)
    if _FLOAT.fullmatch(word):
        return _finite(word)
    if _NOT_FINITE.fullmatch(word):
        raise BadScalar("must be a finite number; infinity and NaN have no place in the file")
    return word


def checked_text(text: str) -> str:
    """Return the text if JSON, SQL and environment variables can hold it.

    Raises:
        BadScalar: it holds a NUL character or half of a surrogate pair.
    """
    if "\0" in text:
        raise BadScalar("must not contain the NUL character")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadScalar("must not contain half of a surrogate pair (\\ud800 to \\udfff)")
    return text


def _integer(word: str) -> int:
    if len(word) > 100:
        raise BadScalar("must fit into 64 bits")
    digits = word.replace("_", "")
    base = {"0o": 8, "0x": 16}.get(digits[:2], 10)
    value = int(digits[2:] if base != 10 else digits, base)
    if not INT_MIN <= value <= INT_MAX:
        raise BadScalar("must fit into 64 bits")
    return value


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise BadScalar("must fit into a 64-bit float (about 1.8e308 at most)")
    return value
