"""Answers and bodies about registered models and their versions."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from rung.api.directory import Recorded
from rung.api.listing import Listing

_LABELS = Annotated[list[str], Meta(description="each once")]
_METADATA = Annotated[dict[str, Any], Meta(description="any JSON object")]
_NOTES = Annotated[str, Meta(description="Markdown")]


class Model(Recorded, kw_only=True):
    """A registered model."""

    workspace_id: str
    workspace: Annotated[str, Meta(description="its name")]
    description: str
    labels: _LABELS
    metadata: _METADATA
    archived: bool
    version_count: int
    newest: Annotated[int | None, Meta(description="number of its newest version; null: none")]
    by: Annotated[str, Meta(description="id of the user who created it")]


class ModelList(Listing[Model], kw_only=True):
    """A page of models, by id."""

    items: list[Model]
    next_cursor: str | None


class ModelWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new model."""

    name: Annotated[str, Meta(description="unique in its workspace, without slashes")]
    workspace: Annotated[str, Meta(description="id or name")] = "default"
    description: str = ""
    labels: _LABELS = []
    metadata: _METADATA = {}


class ModelChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What changes of a model; null: it stays as it is."""

    name: str | None = None
    description: str | None = None
    labels: _LABELS | None = None
    metadata: Annotated[
        dict[str, Any] | None, Meta(description="in place of all that there was")
    ] = None


class ModelMove(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a model is to be."""

    workspace: Annotated[str, Meta(description="id or name")]


class ModelVersion(Recorded, kw_only=True):
    """A version of a model: a checkpoint, which stays as long as the version is there."""

    model_id: str
    number: Annotated[int, Meta(description="from 1 on, in its model; never used again")]
    experiment_id: str
    trial_id: str
    checkpoint_id: str
    notes: _NOTES
    labels: _LABELS
    by: Annotated[str, Meta(description="id of the user who registered it")]


class ModelVersionList(Listing[ModelVersion], kw_only=True):
    """A page of versions, the newest first."""

    items: list[ModelVersion]
    next_cursor: str | None


class ModelVersionWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint that is to be the next version of a model."""

    checkpoint: Annotated[str, Meta(description="its id, or an unambiguous beginning of it")]
    name: str = ""
    notes: _NOTES = ""
    labels: _LABELS = []


class ModelVersionChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What changes of a version; null: it stays as it is."""

    name: Annotated[str | None, Meta(description="empty: none")] = None
    notes: _NOTES | None = None
    labels: _LABELS | None = None
