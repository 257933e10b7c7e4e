"""Answers and bodies about secrets, templates and policies, and of the resolution of a file."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rung.api.directory import Recorded
from rung.api.listing import Listing

_Kind = Literal["defaults", "constraints", "invariants"]


class Secret(Recorded, kw_only=True):
    """A secret of a workspace; its value is never shown."""

    workspace_id: str
    description: str
    digest: Annotated[str, Meta(description="SHA-256 of the ciphertext")]


class SecretList(Listing[Secret], kw_only=True):
    """A page of secrets, by id."""

    items: list[Secret]
    next_cursor: str | None


class SecretWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A secret, new or with another value."""

    name: str
    value: Annotated[str, Meta(min_length=1, max_length=32_768)]
    description: str = ""


class Template(Recorded, kw_only=True):
    """A template of experiment files."""

    workspace_id: str
    document: str
    by: Annotated[str, Meta(description="id of the user who set it")]


class TemplateList(Listing[Template], kw_only=True):
    """A page of templates, by id."""

    items: list[Template]
    next_cursor: str | None


class TemplateWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A template, new or with another document."""

    name: str
    document: Annotated[str, Meta(description="a part of an experiment file, YAML")]


class Policy(Recorded, kw_only=True):
    """A policy."""

    kind: _Kind
    document: str
    scope: Annotated[str, Meta(description="where it holds, such as `workspace vision`")]
    by: Annotated[str, Meta(description="id of the user who set it")]
    workspace_id: Annotated[
        str | None, Meta(description="of a workspace's, or of one of its projects")
    ] = None
    project_id: str | None = None
    pool: str | None = None


class PolicyList(Listing[Policy], kw_only=True):
    """A page of policies, by id."""

    items: list[Policy]
    next_cursor: str | None


class PolicyWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A policy, new or with another document; without a place it is of the installation."""

    name: str
    kind: _Kind
    document: Annotated[str, Meta(description="YAML")]
    workspace: str | None = None
    project: Annotated[str | None, Meta(description="its id, or WORKSPACE/PROJECT")] = None
    pool: str | None = None


class ConfigWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """An experiment file to resolve."""

    source: Annotated[str, Meta(description="the experiment file, YAML")]
    workspace: str = "default"
    project: Annotated[str, Meta(description="name in the workspace, or id")] = "default"
    template: Annotated[str | None, Meta(description="of that workspace")] = None


class ResolvedValue(Struct, kw_only=True):
    """One value of a resolved file."""

    path: str
    value: Any
    origin: Annotated[
        str, Meta(description="file with line, template, policy with scope and author")
    ]


class ResolvedConfig(Struct, kw_only=True):
    """An experiment file as it would run, and where each value comes from."""

    config: Annotated[dict[str, Any], Meta(description="defaults filled in, secrets hidden")]
    values: list[ResolvedValue]
    warnings: list[str]
