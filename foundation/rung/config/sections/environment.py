"""The `environment` section."""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from rung.config.sections.section import Flag, Section

DEVICES: Final = ("cpu", "cuda", "rocm")

_VARIABLE: Final = re.compile(r"[^=\0]+(=[^\0]*)?", re.DOTALL)


def _variable(value: Any) -> Any:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise PydanticCustomError("variable", "must be text of the form `NAME=value`")
    if value.startswith("RUNG_"):
        raise PydanticCustomError(
            "variable", "names that begin with RUNG_ belong to the platform; use another name"
        )
    return value


Variable = Annotated[
    str, BeforeValidator(_variable), WithJsonSchema({"type": "string", "pattern": "^[^=]+(=|$)"})
]


class EnvironmentVariables(Section):
    """Variables by the kind of slot that a trial gets."""

    cpu: list[Variable] = Field(default_factory=list)
    """For trials on CPU slots."""
    cuda: list[Variable] = Field(default_factory=list)
    """For trials on NVIDIA GPUs."""
    rocm: list[Variable] = Field(default_factory=list)
    """For trials on AMD GPUs."""


class EnvironmentImage(Section):
    """Container images by the kind of slot."""

    cpu: str | None = None
    """For trials on CPU slots."""
    cuda: str | None = None
    """For trials on NVIDIA GPUs."""
    rocm: str | None = None
    """For trials on AMD GPUs."""


class RegistryAuth(Section):
    """Login for a registry of images."""

    username: str | None = None
    """As docker's field of this name."""
    password: str | None = None
    """As docker's field of this name."""
    auth: str | None = None
    """As docker's field of this name."""
    email: str | None = None
    """As docker's field of this name."""
    serveraddress: str | None = None
    """As docker's field of this name."""
    identitytoken: str | None = None
    """As docker's field of this name."""
    registrytoken: str | None = None
    """As docker's field of this name."""


class ProxyPort(Section):
    """A port of the trial's container that is reached from outside."""

    proxy_port: float
    """Number of the port."""
    proxy_tcp: Flag = False
    """Whether the protocol is plain TCP, not HTTP."""
    unauthenticated: Flag = False
    """Whether it is reached without authentication."""
    default_service_id: Flag = False
    """Whether it is the trial's main service."""


def _by_device(value: Any) -> Any:
    """Spell out one value for all kinds of slot; `gpu` is what `cuda` was once called."""
    if isinstance(value, list | str):
        return dict.fromkeys(DEVICES, value)
    if isinstance(value, dict) and "gpu" in value:
        rest = {name: item for name, item in value.items() if name != "gpu"}
        if value["gpu"] is not None:
            rest["cuda"] = value["gpu"] if rest.get("cuda") is None else rest["cuda"]
        return rest
    return value


class Environment(Section):
    """Environment variables and container settings of a trial's processes."""

    environment_variables: Annotated[
        EnvironmentVariables,
        BeforeValidator(_by_device, json_schema_input_type=EnvironmentVariables | list[Variable]),
    ] = Field(default_factory=EnvironmentVariables)
    """A list of `NAME=value`, or one such list for each of cpu, cuda, rocm."""
    image: Annotated[
        EnvironmentImage,
        BeforeValidator(_by_device, json_schema_input_type=EnvironmentImage | str),
    ] = Field(default_factory=EnvironmentImage)
    """Container image, or one for each of cpu, cuda, rocm."""
    force_pull_image: Flag = False
    """Whether the image is pulled even if it is present."""
    ports: dict[str, Any] = Field(default_factory=dict)
    """Ports of the container."""
    proxy_ports: list[ProxyPort] = Field(default_factory=list)
    """Ports that are reached from outside."""
    registry_auth: RegistryAuth | None = None
    """Login for the registry of images."""
    add_capabilities: list[str] = Field(default_factory=list)
    """Linux capabilities to add."""
    drop_capabilities: list[str] = Field(default_factory=list)
    """Linux capabilities to drop."""
    pod_spec: dict[str, Any] | None = None
    """Kubernetes pod specification."""
