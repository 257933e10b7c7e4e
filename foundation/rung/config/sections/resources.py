"""The `resources` section."""

import math
import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from rung.config.sections.section import AS_WHOLE, Flag, Natural, Positive, Section, Text, Whole

PRIORITY: Final = 42
"""The default."""
POOL: Final = "default"

_MEMORY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtpe]?)(i?b)?\s*", re.IGNORECASE)


def _memory(value: Any) -> Any:
    fine = not isinstance(value, bool) and isinstance(value, int) and value >= 0
    if not (fine or (isinstance(value, str) and _MEMORY.fullmatch(value))):
        raise PydanticCustomError("memory", "must be a size in bytes, or text such as `4 GiB`")
    return value


def _share(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise PydanticCustomError("share", "must be a number above 0")
    return value


class Device(Section):
    """A device of the host that a container may use."""

    host_path: str
    """Where it is on the host."""
    container_path: str
    """Where the container sees it."""
    mode: str = "mrw"
    """Docker's access mode."""


class Resources(Section):
    """What the experiment may use of the machines."""

    slots_per_trial: Natural = 1
    """Slots (GPUs, or CPU slots) of each trial."""
    max_slots: Positive | None = None
    """How many slots the whole experiment may hold at once; absent: no limit."""
    priority: Annotated[int, Field(ge=1, le=99), AS_WHOLE] = PRIORITY
    """1 to 99; the smaller, the earlier its trials are placed."""
    weight: Annotated[float, AfterValidator(_share)] = 1.0
    """Share of the pool, relative to others, in a pool whose policy uses it."""
    resource_pool: Annotated[
        Text, BeforeValidator(lambda name: name or POOL, json_schema_input_type=str)
    ] = POOL
    """The pool whose agents train it."""
    is_single_node: Flag | None = None
    """Whether all slots of a trial must be on one machine."""
    shm_size: (
        Annotated[
            int | str, BeforeValidator(_memory), WithJsonSchema({"type": ["integer", "string"]})
        ]
        | None
    ) = None
    """Shared memory of a trial's container."""
    devices: list[Device] = Field(default_factory=list)
    """Devices of the host that a trial's container may use."""
    native_parallel: Flag = False
    """Historical."""
    slots: Whole | None = None
    """Historical."""
    agent_label: str | None = None
    """Historical."""
