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

_DEVICE: Final = re.compile(r"(/[^:]*):(/[^:]*)(?::([rwm]+))?")
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


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise PydanticCustomError("path", "must be an absolute path, such as `/dev/fuse`")
    return value


def _mode(value: str) -> str:
    if not value or not set(value) <= set("rwm") or len(set(value)) < len(value):
        raise PydanticCustomError("mode", "must be some of the letters r, w and m, each once")
    return value


_Path = Annotated[str, AfterValidator(_absolute)]


class Device(Section):
    """A device of the host that a container may use."""

    host_path: _Path
    """Path of the device on the host."""
    container_path: _Path
    """Path of the device in the container."""
    mode: Annotated[str, AfterValidator(_mode)] = "mrw"
    """Access mode, of the letters r, w and m."""


def _device(value: Any) -> Any:
    """Read the form of docker's `--device`."""
    if not isinstance(value, str):
        return value
    parts = _DEVICE.fullmatch(value)
    if parts is None:
        raise PydanticCustomError(
            "device", "must be like `/dev/host:/dev/container` or `/dev/host:/dev/container:rwm`"
        )
    host, container, mode = parts.groups()
    return {"host_path": host, "container_path": container, "mode": mode or None}


class Resources(Section):
    """Slots, resource pool and priority of the experiment."""

    slots_per_trial: Natural = 1
    """Slots of each trial: GPUs, or CPU slots; 0: none. An agent runs up to 100 trials of no
    slots, in order of priority; they never yield to others."""
    max_slots: Positive | None = None
    """How many slots the whole experiment may hold at once; absent: no limit."""
    max_slot_hours: Annotated[float, AfterValidator(_share)] | None = None
    """How many slot-hours the whole experiment may use: slots times the hours for which its trials
    hold them. Then its trials checkpoint, and it ends with what it has. Absent: no limit."""
    priority: Annotated[int, Field(ge=1, le=99), AS_WHOLE] = PRIORITY
    """Priority, 1 to 99; the smaller, the earlier trials are placed."""
    weight: Annotated[float, AfterValidator(_share)] = 1.0
    """Share of the pool relative to other experiments, in a pool whose policy uses it."""
    resource_pool: Annotated[
        Text, BeforeValidator(lambda name: name or POOL, json_schema_input_type=str)
    ] = POOL
    """Resource pool whose agents train the trials."""
    is_single_node: Flag | None = None
    """Whether all slots of a trial must be on one machine."""
    shm_size: (
        Annotated[
            int | str, BeforeValidator(_memory), WithJsonSchema({"type": ["integer", "string"]})
        ]
        | None
    ) = None
    """Shared memory of a trial's container, in bytes or as text such as `4 GiB`."""
    devices: list[
        Annotated[Device, BeforeValidator(_device, json_schema_input_type=Device | str)]
    ] = Field(default_factory=list)
    """Devices of the host that a trial's container may use: maps, or text such as
    `/dev/host:/dev/container:rwm`."""
    native_parallel: Flag = False
    """A field of older files."""
    slots: Whole | None = None
    """A field of older files."""
    agent_label: str | None = None
    """A field of older files."""
