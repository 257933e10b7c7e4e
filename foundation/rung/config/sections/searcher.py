"""How the search goes: one class per method.

Determined's methods with its names and defaults, and `hyperband` as published. All share
`time_metric` and `max_time` (how long a trial trains at most, and in what that is counted); the
older `max_length: {epochs: 10}` says the same in one field.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from rung.config.rungs import rungs_within
from rung.config.sections.hyperband_plan import trials_of
from rung.config.sections.length import PositiveLength, SearcherLength, Unit
from rung.config.sections.section import AS_WHOLE, Flag, Natural, Positive, Section, Text

TRIALS_MAX: Final = 1_000_000
RUNGS_MAX: Final = 100
"""Rungs of a bracket; their lengths are exact, and so cost the more the more there are."""

MaxTrials = Annotated[int, Field(ge=1, le=TRIALS_MAX), AS_WHOLE]
Divisor = Annotated[float, Field(gt=1, le=1_000_000)]


class Searching(Section):
    """What every method has; `cross` checks the fields that depend on each other."""

    NEEDS_TIME: ClassVar[bool] = False

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
    source_trial_id: Text | None = None
    """Start every trial from the latest checkpoint of this trial (an id such as `k3v9x2ab.4`)."""
    source_checkpoint_uuid: Text | None = None
    """Start every trial from this checkpoint."""

    def clock(self) -> tuple[str, int | None]:
        """Return what training is counted in and how much of it a trial gets at most."""
        length: dict[Unit, int] | int | None = getattr(self, "max_length", None)
        if isinstance(length, dict):
            [(unit, number)] = length.items()
            return unit, number
        return self.time_metric or "batches", self.max_time if length is None else length

    def expanded(self) -> dict[str, Any]:
        """Return the fields with the defaults that depend on other fields."""
        fields = self.model_dump()
        fields["time_metric"], fields["max_time"] = self.clock()
        return fields


class Single(Searching):
    """Train one trial, with the hyperparameters as they stand."""

    name: Literal["single"]
    max_length: SearcherLength | None = None
    """How long the trial trains; absent: the script ends by itself."""


class Random(Searching):
    """Train a number of trials with hyperparameters drawn at random."""

    name: Literal["random"]
    max_trials: MaxTrials
    """How many trials to train."""
    max_concurrent_trials: Natural = 16
    """How many trials may train at once, up to 10,000; 0: as many as there are slots."""
    max_length: SearcherLength | None = None
    """How long each trial trains; absent: the script ends by itself."""


class Grid(Searching):
    """Train one trial for every combination of the hyperparameters' values."""

    name: Literal["grid"]
    max_concurrent_trials: Natural = 16
    """How many trials may train at once, up to 10,000; 0: as many as there are slots."""
    max_length: SearcherLength | None = None
    """How long each trial trains; absent: the script ends by itself."""


class AsyncHalving(Searching):
    """Asynchronous successive halving (ASHA) with one bracket."""

    NEEDS_TIME: ClassVar[bool] = True

    name: Annotated[
        Literal["async_halving"],
        BeforeValidator(
            lambda name: "async_halving" if name == "asha" else name,
            json_schema_input_type=Literal["async_halving", "asha"],
        ),
    ]
    num_rungs: Annotated[int, Field(ge=1, le=RUNGS_MAX), AS_WHOLE]
    """How many rungs there are."""
    max_trials: MaxTrials
    """How many trials to start."""
    divisor: Divisor = 4.0
    """One trial in this many goes on from each rung to the next."""
    max_concurrent_trials: Natural = 16
    """How many trials may train at once, up to 10,000; 0: as many as there are slots."""
    max_length: PositiveLength | None = None
    """The older way to say time_metric and max_time."""
    stop_once: Flag = True
    """True: a trial trains until it falls behind at a rung and is stopped for good. False: it
    pauses at every rung and goes on when it is among the best (promotion)."""


class AdaptiveAsha(Searching):
    """ASHA with several brackets, which start at rungs of different lengths."""

    NEEDS_TIME: ClassVar[bool] = True

    name: Literal["adaptive_asha"]
    max_trials: MaxTrials
    """How many trials to start, over all brackets."""
    mode: Literal["aggressive", "standard", "conservative"] = "standard"
    """How eagerly trials are stopped: aggressive uses one bracket, standard about half of the
    possible ones, conservative all."""
    divisor: Divisor = 4.0
    """One trial in this many goes on from each rung to the next."""
    max_rungs: Annotated[int, Field(ge=1, le=RUNGS_MAX), AS_WHOLE] = 5
    """How many rungs the largest bracket has at most."""
    bracket_rungs: list[Annotated[int, Field(ge=1, le=RUNGS_MAX), AS_WHOLE]] = Field(
        default_factory=list, max_length=RUNGS_MAX
    )
    """Rungs of each bracket, in place of mode's choice."""
    max_concurrent_trials: Natural = 16
    """How many trials may train at once, up to 10,000; 0: as many as there are slots."""
    max_length: SearcherLength | None = None
    """The older way to say time_metric and max_time."""
    stop_once: Flag = True
    """True: a trial trains until it falls behind at a rung and is stopped for good. False: it
    pauses at every rung and goes on when it is among the best (promotion)."""


class Hyperband(Searching):
    """Hyperband as published: Li et al., JMLR 2018, algorithm 1, with R = max_time."""

    NEEDS_TIME: ClassVar[bool] = True

    name: Literal["hyperband"]
    divisor: Divisor = 3.0
    """The paper's eta: one trial in this many goes on from each rung to the next."""
    max_concurrent_trials: Natural = 16
    """How many trials may train at once, up to 10,000; 0: as many as there are slots."""

    @model_validator(mode="after")
    def _affordable(self) -> Self:
        if not self.max_time:
            return self  # told elsewhere
        if rungs_within(self.max_time, self.divisor, RUNGS_MAX + 1) > RUNGS_MAX:
            raise PydanticCustomError(
                "rungs",
                "max_time and divisor together make more than {limit} rungs; raise divisor (the"
                " paper has 3 or 4)",
                {"limit": RUNGS_MAX},
            )
        if trials_of(self.max_time, self.divisor, limit=TRIALS_MAX) is None:
            raise PydanticCustomError(
                "budget",
                "max_time and divisor together start more than {limit} trials; count in a larger"
                " time_metric (epochs instead of batches) or raise divisor",
                {"limit": f"{TRIALS_MAX:,}"},
            )
        return self


RETIRED: Final = {
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
    "sync_halving": "hyperband (or async_halving)",
    "custom": "random or adaptive_asha",
}
"""Methods that Determined once had → what to use in their place."""

METHODS: Final = (
    "single", "grid", "random", "async_halving", "asha", "adaptive_asha", "hyperband",
)  # fmt: skip


def _tag(value: Any) -> str:
    if isinstance(value, Searching):
        return f"<{getattr(value, 'name', '')}>"
    name = value.get("name") if isinstance(value, dict) else None
    return "<async_halving>" if name == "asha" else f"<{name}>"


Searcher = Annotated[
    Annotated[Single, Tag("<single>")]
    | Annotated[Random, Tag("<random>")]
    | Annotated[Grid, Tag("<grid>")]
    | Annotated[AsyncHalving, Tag("<async_halving>")]
    | Annotated[AdaptiveAsha, Tag("<adaptive_asha>")]
    | Annotated[Hyperband, Tag("<hyperband>")],
    Discriminator(
        _tag, custom_error_type="searcher_name", custom_error_message="must name a search method"
    ),
]
