"""What an unquoted word means."""

import pytest

from rung.config.yaml.scalar import BadScalar, Scalar, resolve


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-1.5e+2", -150.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("-0", 0),
        ("+7", 7),
        ("no", "no"),
        ("Yes", "Yes"),
        ("off", "off"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("null", None),
        ("2025-01-31", "2025-01-31"),
        ("12:30:00", "12:30:00"),
        ("1.2.3", "1.2.3"),
        ("1_", "1_"),
        ("_1", "_1"),
        ("0b101", "0b101"),
        ("-", "-"),
        (".", "."),
        ("e5", "e5"),
        ("nan", "nan"),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_resolve(word: str, value: Scalar) -> None:
    """Words mean what people expect, not what YAML 1.1 says."""
    found = resolve(word)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "word", [".inf", "-.INF", ".NaN", "1e400", "9223372036854775808", "-9" * 60, "0x" + "f" * 17]
)
def test_bad_scalar(word: str) -> None:
    """Numbers that JSON or 64 bits cannot hold are refused."""
    if word.count("-") > 1:
        assert resolve(word) == word
        return
    with pytest.raises(BadScalar):
        resolve(word)
