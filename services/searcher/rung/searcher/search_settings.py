"""What the searcher needs to know of an experiment's configuration, typed.

The gateway has validated the configuration and filled in the defaults; what is read here is a
view of it. Fields that the searcher has no use for are ignored.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from rung.events.errors import InvalidConfig
from rung.methods.space import Leaf, flatten
from rung.methods.table import AnyOptions, read_options

POOL_DEFAULT: Final = "default"
PRIORITY_DEFAULT: Final = 42


class Resources(Struct):
    """The `resources` section."""

    slots_per_trial: int | None = 1
    max_slots: int | None = None
    priority: int | None = None
    resource_pool: str | None = None


class _Reproducibility(Struct):
    experiment_seed: int


class _Config(Struct):
    searcher: dict[str, Any]
    reproducibility: _Reproducibility
    hyperparameters: dict[str, Any]
    resources: Resources = msgspec.field(default_factory=Resources)
    max_restarts: int | None = 5


class Settings(Struct):
    """All of a configuration that the searcher decides by."""

    method: str
    """As the configuration names it."""
    search: AnyOptions
    space: list[Leaf]
    seed: int
    max_restarts: int
    pool: str
    slots: int
    priority: int
    max_slots: int | None


def read_settings(config: dict[str, Any]) -> Settings:
    """Return the searcher's view of an expanded configuration.

    Raises:
        InvalidConfig: a field that the searcher needs is missing or of another type.
    """
    try:
        read = msgspec.convert(config, _Config)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        raise InvalidConfig([(path.strip("`").removeprefix("$.") or "config", text)]) from error
    resources = read.resources
    return Settings(
        method=str(read.searcher.get("name")),
        search=read_options(read.searcher),
        space=flatten(read.hyperparameters),
        seed=read.reproducibility.experiment_seed,
        max_restarts=5 if read.max_restarts is None else read.max_restarts,
        pool=resources.resource_pool or POOL_DEFAULT,
        slots=1 if resources.slots_per_trial is None else resources.slots_per_trial,
        priority=PRIORITY_DEFAULT if resources.priority is None else resources.priority,
        max_slots=resources.max_slots,
    )
