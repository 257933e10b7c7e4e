"""Values written into a query's text mean what they are, and nothing else."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.metrics.clickhouse.engine import Parameter
from rung.metrics.clickhouse.literal import fill, literal
from servers.clickhouse import ClickHouse


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "''"),
        ("loss", "'loss'"),
        ("it's", "'it\\'s'"),
        ("\\", "'\\\\'"),
        ("'; DROP TABLE metrics; --", "'\\'; DROP TABLE metrics; --'"),
        ("a\0b", "'a\\0b'"),
        ("{name:String}", "'{name:String}'"),
        (0, "0"),
        (-(1 << 63), "-9223372036854775808"),
        (1.0, "1.0"),
        (-1.0, "-1.0"),
    ],
)
def test_values_are_written_as_sql_has_them(value: str | float, text: str) -> None:
    """A text cannot end before its end."""
    assert literal(value) == text


def test_a_value_is_not_searched_for_placeholders() -> None:
    """What a value holds stays as it is, also if it looks like a placeholder."""
    sql = "SELECT {a:String}, {b:Int64}, {a:String}"
    assert fill(sql, {"a": "{b:Int64}", "b": 7}) == "SELECT '{b:Int64}', 7, '{b:Int64}'"


def test_a_missing_value_is_noticed() -> None:
    """A query never goes out with a placeholder in it."""
    with pytest.raises(KeyError, match="b"):
        fill("SELECT {b:Int64}", {"a": 1})


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    number=st.integers(-(1 << 63), (1 << 63) - 1),
    real=st.integers(-(1 << 50), 1 << 50).map(float),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_server_reads_back_what_was_written(
    clickhouse: ClickHouse, text: str, number: int, real: float
) -> None:
    """Whatever a text holds, the server sees the same bytes; whole numbers stay what they are."""
    parameters: dict[str, Parameter] = {"text": text, "number": number, "real": real}
    answer = clickhouse.query(
        fill("SELECT hex({text:String}), toInt64({number:Int64}), {real:Float64}", parameters)
    )
    shown, integer, double = answer.split("\t")
    assert bytes.fromhex(shown).decode() == text
    assert int(integer) == number
    assert float(double) == real
