"""The base class and the types of all sections of the experiment file.

Unknown fields are refused, null means "not given", text is not converted to numbers. The docstring
below a field is its description in the JSON Schema and in messages.
"""

from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_YES = frozenset({"yes", "Yes", "YES", "on", "On", "ON"})
_NO = frozenset({"no", "No", "NO", "off", "Off", "OFF"})


class Section(BaseModel):
    """A part of the experiment file with a closed list of fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    KEEPS_NULL: ClassVar[frozenset[str]] = frozenset()
    """Fields for which null is a value."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: item
            for name, item in value.items()
            if item is not None or name in cls.KEEPS_NULL or name not in cls.model_fields
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the section's JSON Schema, in which a field that may be absent may be null."""
        schema = handler(core_schema)
        section = handler.resolve_ref_schema(schema)
        required = section.get("required", [])
        for name, field in section.get("properties", {}).items():
            if name not in required:
                section["properties"][name] = _nullable(field)
        return schema


def _nullable(schema: JsonSchemaValue) -> JsonSchemaValue:
    about: JsonSchemaValue = {
        key: schema[key] for key in ("title", "description", "default") if key in schema
    }
    rest = {key: value for key, value in schema.items() if key not in about}
    options = rest["anyOf"] if set(rest) == {"anyOf"} else [rest]
    if rest and {"type": "null"} not in options:
        options = [*options, {"type": "null"}]
    return {**about, "anyOf": options} if rest else about


def _flag(value: Any) -> Any:
    if isinstance(value, str):
        return True if value in _YES else False if value in _NO else value
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


Flag = Annotated[bool, BeforeValidator(_flag)]
"""True or false, or the words of YAML 1.1 for them (`yes`, `off`)."""

AS_WHOLE = BeforeValidator(_whole)
"""Goes after the limits, so that the JSON Schema shows them."""

Whole = Annotated[int, AS_WHOLE]
"""A whole number, also one written as `1e5`."""

Natural = Annotated[int, Field(ge=0), AS_WHOLE]
Positive = Annotated[int, Field(ge=1), AS_WHOLE]

Text = Annotated[str, Field(min_length=1)]
"""Text that is not empty."""
