"""Changes of registered models and their versions."""

from typing import Any

from msgspec import Struct, field


class CreateModel(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="model.create"):
    """A new model of a workspace."""

    model_id: str
    workspace_id: str
    name: str
    """Unique in its workspace."""
    description: str = ""
    labels: list[str] = field(default_factory=list[str])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class ChangeModel(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="model.change"):
    """Another name, description, labels or metadata."""

    model_id: str
    name: str | None = None
    description: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None


class ArchiveModel(Struct, frozen=True, kw_only=True, tag="model.archive"):
    """A model is closed to changes and new versions, or opened again."""

    model_id: str
    archived: bool


class MoveModel(Struct, frozen=True, kw_only=True, tag="model.move"):
    """A model goes to another workspace, with its versions."""

    model_id: str
    workspace_id: str


class RemoveModel(Struct, frozen=True, kw_only=True, tag="model.remove"):
    """A model ends, and with it all its versions."""

    model_id: str


class RegisterVersion(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="version.register"
):
    """A stored checkpoint becomes the next version of a model."""

    model_version_id: str
    model_id: str
    experiment_id: str
    trial_id: str
    checkpoint_id: str
    area: str = ""
    """The storage area of the experiment's checkpoints."""
    name: str = ""
    notes: str = ""
    labels: list[str] = field(default_factory=list[str])


class ChangeVersion(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="version.change"):
    """Another name, notes or labels of a version."""

    model_version_id: str
    name: str | None = None
    notes: str | None = None
    labels: list[str] | None = None


class RemoveVersion(Struct, frozen=True, kw_only=True, tag="version.remove"):
    """A version ends; its checkpoint may be deleted again."""

    model_version_id: str
