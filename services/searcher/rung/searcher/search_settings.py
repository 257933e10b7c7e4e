"""What the searcher needs to know of an experiment's configuration, typed.

The gateway has validated the configuration and filled in the defaults; what is read here is a
view of it. Fields that the searcher has no use for are ignored.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from rung.events.errors import InvalidConfig
from rung.searcher.space import Leaf, flatten

Mode = Literal["aggressive", "standard", "conservative"]

POOL_DEFAULT: Final = "default"
PRIORITY_DEFAULT: Final = 42
CONCURRENT_DEFAULT: Final = 16


class Search(Struct):
    """The `searcher` section; what a method has no use for is absent from it."""

    name: str
    metric: str
    smaller_is_better: bool = True
    time_metric: str = "batches"
    max_time: int | None = None
    max_trials: int | None = None
    max_concurrent_trials: int | None = None
    divisor: float | None = None
    num_rungs: int | None = None
    max_rungs: int | None = None
    mode: Mode | None = None
    bracket_rungs: list[int] | None = None
    stop_once: bool | None = None
    source_checkpoint_uuid: str | None = None

    @property
    def concurrent(self) -> int:
        """How many trials may train at once; 0: as many as there are."""
        limit = self.max_concurrent_trials
        return CONCURRENT_DEFAULT if limit is None else limit

    def need(self, field: Literal["max_time", "max_trials", "num_rungs"]) -> int:
        """Return a number that the method cannot do without.

        Raises:
            InvalidConfig: the configuration lacks it.
        """
        value: int | None = getattr(self, field)
        if value is None or value < 1:
            fix = f"{self.name} needs it: a whole number from 1 on"
            raise InvalidConfig([(f"searcher.{field}", fix)])
        return value


class Resources(Struct):
    """The `resources` section."""

    slots_per_trial: int | None = 1
    max_slots: int | None = None
    priority: int | None = None
    resource_pool: str | None = None


class _Reproducibility(Struct):
    experiment_seed: int


class _Config(Struct):
    searcher: Search
    reproducibility: _Reproducibility
    hyperparameters: dict[str, Any]
    resources: Resources = msgspec.field(default_factory=Resources)
    max_restarts: int | None = 5


class Settings(Struct):
    """All of a configuration that the searcher decides by."""

    search: Search
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
        search=read.searcher,
        space=flatten(read.hyperparameters),
        seed=read.reproducibility.experiment_seed,
        max_restarts=5 if read.max_restarts is None else read.max_restarts,
        pool=resources.resource_pool or POOL_DEFAULT,
        slots=1 if resources.slots_per_trial is None else resources.slots_per_trial,
        priority=PRIORITY_DEFAULT if resources.priority is None else resources.priority,
        max_slots=resources.max_slots,
    )
