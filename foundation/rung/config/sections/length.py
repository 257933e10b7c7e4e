"""Lengths of training: `{batches: 100}`, `{epochs: 3}` or `{records: 60000}`."""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from rung.config.sections.section import AS_WHOLE, Natural

Unit = Literal["batches", "records", "epochs"]
UNITS: Final[tuple[Unit, ...]] = ("batches", "records", "epochs")


def _one_unit(value: Any) -> Any:
    if isinstance(value, dict):
        value = {unit: number for unit, number in value.items() if number is not None}
        if len(value) != 1 or not set(value) <= set(UNITS):
            raise PydanticCustomError(
                "length", "must have exactly one of `batches`, `records`, `epochs`"
            )
    return value


def _positive(value: dict[Unit, int]) -> dict[Unit, int]:
    if min(value.values()) < 1:
        raise PydanticCustomError("length", "must be at least 1")
    return value


def _json_schema(minimum: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {unit: {"type": "integer", "minimum": minimum} for unit in UNITS},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }


Length = Annotated[
    dict[Unit, Natural], BeforeValidator(_one_unit), WithJsonSchema(_json_schema(0))
]
"""A length that may be 0, which mostly means "never"."""

PositiveLength = Annotated[
    dict[Unit, Natural],
    BeforeValidator(_one_unit),
    AfterValidator(_positive),
    WithJsonSchema(_json_schema(1)),
]

SearcherLength = Annotated[
    Annotated[PositiveLength, Tag("<length>")]
    | Annotated[int, Field(ge=1), AS_WHOLE, Tag("<number>")],
    Discriminator(lambda value: "<length>" if isinstance(value, dict) else "<number>"),
]
"""A length, or a bare number whose unit only the script knows."""
