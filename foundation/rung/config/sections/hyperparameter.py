"""Hyperparameters: constants, ranges, choices, and groups of them, nested at will."""

import math
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    RootModel,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from rung.config.sections.section import Positive, Section, Whole
from rung.methods.space import Leaf, flatten

DEPTH_MAX: Final = 20
"""Levels of groups within groups."""

_EXPONENT_MAX: Final = math.log(1e300)


class Const(Section):
    """A hyperparameter that is the same in every trial."""

    KEEPS_NULL: ClassVar[frozenset[str]] = frozenset({"val"})

    type: Literal["const"]
    val: Any
    """The value; also a list or a map."""


class Int(Section):
    """A whole number, drawn uniformly; both ends are included."""

    type: Literal["int"]
    minval: Whole
    """The smallest value."""
    maxval: Whole
    """The largest value."""
    count: Positive | None = None
    """How many values a grid search tries, evenly spaced from minval to maxval."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _ascending(self.minval, self.maxval)
        return self


class Double(Section):
    """A number, drawn uniformly."""

    type: Literal["double"]
    minval: float
    """The smallest value."""
    maxval: float
    """The largest value."""
    count: Positive | None = None
    """How many values a grid search tries, evenly spaced from minval to maxval."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _ascending(self.minval, self.maxval)
        if not math.isfinite(self.maxval - self.minval):
            raise PydanticCustomError("range", "maxval - minval must fit into a 64-bit float")
        return self


class Log(Section):
    """A number whose logarithm is drawn uniformly: `base` to the power of `minval` to `maxval`."""

    type: Literal["log"]
    minval: float
    """The smallest exponent: the smallest value is base to this power."""
    maxval: float
    """The largest exponent: the largest value is base to this power."""
    base: Annotated[float, Field(gt=0)]
    """Base of the power, mostly 10."""
    count: Positive | None = None
    """How many values a grid search tries, evenly spaced from minval to maxval."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _ascending(self.minval, self.maxval)
        if max(abs(self.minval), abs(self.maxval)) * abs(math.log(self.base)) > _EXPONENT_MAX:
            raise PydanticCustomError(
                "range",
                "base to the power of minval and of maxval must lie between 1e-300 and 1e300;"
                " minval and maxval are exponents",
            )
        return self


class Categorical(Section):
    """One of several values, all equally likely."""

    type: Literal["categorical"]
    vals: Annotated[list[Any], Field(min_length=1)]
    """The values to choose from, of any kind."""


class Group(RootModel[dict[str, "Hyperparameter"]]):
    """Hyperparameters by name."""

    def leaves(self) -> list[Leaf]:
        """Return all hyperparameters with their paths, sorted by path."""
        return flatten(self.model_dump())

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return a schema that a typed hyperparameter does not fit as well."""
        schema = handler(core_schema)
        handler.resolve_ref_schema(schema)["not"] = {"required": ["type"]}
        return schema


def _ascending(minval: float, maxval: float) -> None:
    if not minval < maxval:
        raise PydanticCustomError(
            "range",
            "minval ({minval}) must be less than maxval ({maxval});"
            " for one value write the value alone",
            {"minval": minval, "maxval": maxval},
        )


def _bare(value: Any) -> Any:
    return {"type": "const", "val": value} if not isinstance(value, Const) else value


KINDS: Final[dict[str, type[Section]]] = {
    "const": Const,
    "int": Int,
    "double": Double,
    "log": Log,
    "categorical": Categorical,
}


def _tag(value: Any) -> str:
    """Return the tag of a hyperparameter's kind; in brackets, so that no name looks like it."""
    if isinstance(value, Section):
        return f"<{type(value).__name__.lower()}>"
    if isinstance(value, Group):
        return "<group>"
    if not isinstance(value, dict):
        return "<bare>"
    if "type" not in value:
        return "<group>"
    return f"<{value['type']}>"


_BARE_SCHEMA: Final = {
    "type": ["string", "number", "boolean", "array", "null"],
    "description": "A constant.",
}

Hyperparameter = Annotated[
    Annotated[Const, Tag("<const>")]
    | Annotated[Int, Tag("<int>")]
    | Annotated[Double, Tag("<double>")]
    | Annotated[Log, Tag("<log>")]
    | Annotated[Categorical, Tag("<categorical>")]
    | Annotated[Group, Tag("<group>")]
    | Annotated[Const, BeforeValidator(_bare), WithJsonSchema(_BARE_SCHEMA), Tag("<bare>")],
    Discriminator(
        _tag,
        custom_error_type="hyperparameter_type",
        custom_error_message=(
            "`type` must be one of const, int, double, log, categorical;"
            " a group of hyperparameters has no member called `type`"
        ),
    ),
]
