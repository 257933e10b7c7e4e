"""The `searcher` section: one for each method, made of the options that the method declares.

The methods of `rung.methods`, those of Determined with its names and defaults. All share
`time_metric` and `max_time` (how long a trial trains at most, and the unit); the older
`max_length: {epochs: 10}` holds both in one field.
"""

from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
)

import msgspec
from pydantic import BeforeValidator, Discriminator, Field, Tag, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from rung.config.sections.length import PositiveLength, SearcherLength, Unit
from rung.config.sections.section import AS_WHOLE, Flag, Positive, Section, Text
from rung.methods.method import SearchOptions
from rung.methods.table import METHODS, canonical, read_options


def _trial_id(value: Any) -> Any:
    """Refuse the number of a trial, which is how Determined names trials."""
    if isinstance(value, int) or (isinstance(value, str) and value.strip().isdigit()):
        raise PydanticCustomError(
            "source_trial_id",
            "trials have ids here, such as `k3v9x2ab.4` (`rung show ID` lists them), and a trial"
            " of Determined cannot be continued, only loaded by the script; must be such an id",
        )
    return value


class Searching(Section):
    """The fields of all methods; `validators` checks those that depend on each other."""

    METHOD: ClassVar[type[SearchOptions]]
    """The method's declaration."""

    metric: Text
    """The validation metric that the search optimises, as the script reports it."""
    smaller_is_better: Flag = True
    """Whether a smaller value of the metric is better."""
    time_metric: Text | None = None
    """What training is counted in: `batches`, `epochs`, `records`, or a metric that the script
    reports with its validations. For the first three, the step of a validation that does not hold
    the metric stands in."""
    max_time: Positive | None = None
    """How long a trial trains at most, in units of time_metric."""
    source_trial_id: Annotated[Text, BeforeValidator(_trial_id)] | None = None
    """Start every trial from the latest checkpoint of this trial (an id such as `k3v9x2ab.4`)."""
    source_checkpoint_uuid: Text | None = None
    """Start every trial from this checkpoint (an id such as `k3v9x2ab.4.1.800`)."""

    @model_validator(mode="after")
    def _affordable(self) -> Self:
        problem = self.options().problem()
        if problem is not None:
            raise PydanticCustomError("searcher", "{problem}", {"problem": problem})
        return self

    def options(self) -> SearchOptions:
        """Return the options as the method reads them; `max_time` may be absent."""
        return read_options(self._timed(), timed=False)

    def clock(self) -> tuple[str, int | None]:
        """Return the time metric, and how long a trial trains at most."""
        length: dict[Unit, int] | int | None = getattr(self, "max_length", None)
        if isinstance(length, dict):
            [(unit, number)] = length.items()
            return unit, number
        return self.time_metric or "batches", self.max_time if length is None else length

    def concurrent(self) -> int:
        """Return how many trials may train at once, 0: all; `max_time` is there if required."""
        options = self.options()
        return options.concurrent or options.concurrent_unless_given()

    def expanded(self) -> dict[str, Any]:
        """Return the fields with the defaults that depend on other fields.

        `max_concurrent_trials: 0` is replaced by the bound of the method, if it has one.
        """
        fields = self._timed()
        if "max_concurrent_trials" in fields:
            fields["max_concurrent_trials"] = self.concurrent()
        return fields

    def _timed(self) -> dict[str, Any]:
        fields = self.model_dump()
        fields["time_metric"], fields["max_time"] = self.clock()
        return fields


class _Made(Searching, use_attribute_docstrings=False):
    """Base of the sections that are made of options: they have no source to read docstrings in."""


RETIRED: Final = {
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
    "sync_halving": "hyperband (or async_halving)",
    "custom": "random or adaptive_asha",
}
"""Methods that Determined once had → what to use in their place."""


def _section(options: type[SearchOptions]) -> type[Searching]:
    """Return the section of the experiment file for a method's options."""
    name = str(options.__struct_config__.tag)
    names = Literal[(name, *options.ALIASES)]  # type: ignore[valid-type]
    fields: dict[str, Any] = {
        "name": (
            Annotated[
                Literal[name],
                BeforeValidator(
                    lambda given: canonical(given) if isinstance(given, str) else given,
                    json_schema_input_type=names,
                ),
            ],
            ...,
        )
    }
    common = {field.name for field in msgspec.structs.fields(SearchOptions)}
    for field in msgspec.structs.fields(options):
        if field.name not in common:
            fields[field.name] = _field(field)
    if options.MAX_LENGTH != "none":
        kind = PositiveLength if options.MAX_LENGTH == "units" else SearcherLength
        about = "The older way to say time_metric and max_time."
        fields["max_length"] = (kind | None, Field(default=None, description=about))
    made = create_model(
        "".join(part.capitalize() for part in name.split("_")),
        __base__=_Made,
        __doc__=options.__doc__,
        __module__=__name__,
        **fields,
    )
    made.METHOD = options
    return made


def _field(field: msgspec.structs.FieldInfo) -> tuple[Any, FieldInfo]:
    """Return the type and the default of an option in the experiment file."""
    kind, metas = _unwrapped(field.type)
    about = next((meta.description for meta in reversed(metas) if meta.description), None)
    info: FieldInfo
    if field.default_factory is not msgspec.NODEFAULT:
        info = Field(default_factory=field.default_factory, description=about)
    elif field.default is not msgspec.NODEFAULT:
        info = Field(default=field.default, description=about)
    else:
        info = Field(description=about)
    return _lenient(kind, metas), info


def _unwrapped(kind: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Return a type without its annotations, and these."""
    if get_origin(kind) is not Annotated:
        return kind, []
    inner, *marks = get_args(kind)
    bare, metas = _unwrapped(inner)
    return bare, [*metas, *(mark for mark in marks if isinstance(mark, msgspec.Meta))]


_LIMITS: Final = ("ge", "gt", "le", "lt", "min_length", "max_length")


def _lenient(kind: Any, metas: list[msgspec.Meta]) -> Any:
    """Return the type in the experiment file, with its limits, which also accepts older YAML.

    Raises:
        TypeError: options cannot have this type.
    """
    limits = {
        name: value
        for meta in metas
        for name in _LIMITS
        if (value := getattr(meta, name)) is not None
    }
    if kind is bool:
        return Flag
    if kind is int:
        return Annotated[int, Field(**limits), AS_WHOLE]
    if kind is float:
        return Annotated[float, Field(**limits)]
    if kind is str:
        return Text
    if get_origin(kind) is Literal:
        return kind
    if get_origin(kind) is list:
        item = _lenient(*_unwrapped(get_args(kind)[0]))
        return Annotated[list[item], Field(**limits)]  # type: ignore[valid-type]
    raise TypeError(f"an option of a search method cannot be a {kind}")


SECTIONS: Final = {name: _section(options) for name, options in METHODS.items()}
"""Method → its section."""


def _tag(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return f"<{canonical(name) if isinstance(name, str) else name}>"


if TYPE_CHECKING:
    Searcher = Searching
else:
    Searcher = Annotated[
        Union[  # noqa: UP007 - made of the table
            tuple(Annotated[kind, Tag(f"<{name}>")] for name, kind in SECTIONS.items())
        ],
        Discriminator(
            _tag,
            custom_error_type="searcher_name",
            custom_error_message="must name a search method",
        ),
    ]
