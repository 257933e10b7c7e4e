"""Changes of workspaces and projects."""

from msgspec import Struct


class CreateWorkspace(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="workspace.create"
):
    """A new workspace, with its owner as its administrator."""

    workspace_id: str
    name: str
    """Unique in the installation."""
    description: str = ""
    owner_id: str | None = None
    """Id of a user; None: who asked."""
    default_pool: str = ""
    """Where experiments run that name no pool; empty: in the installation's default pool."""
    storage: str = ""
    """Prefix, or URL of a bucket, of the checkpoints of its experiments; empty: as everywhere."""


class ChangeWorkspace(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="workspace.change"
):
    """Another name, description, owner, default pool or storage."""

    workspace_id: str
    name: str | None = None
    description: str | None = None
    owner_id: str | None = None
    default_pool: str | None = None
    storage: str | None = None


class ArchiveWorkspace(Struct, frozen=True, kw_only=True, tag="workspace.archive"):
    """A workspace is closed to anything new, or opened again."""

    workspace_id: str
    archived: bool


class CreateProject(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="project.create"):
    """A new project of a workspace."""

    project_id: str
    workspace_id: str
    name: str
    """Unique in its workspace."""
    description: str = ""


class ChangeProject(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="project.change"):
    """Another name or description."""

    project_id: str
    name: str | None = None
    description: str | None = None


class ArchiveProject(Struct, frozen=True, kw_only=True, tag="project.archive"):
    """A project is closed to anything new, or opened again."""

    project_id: str
    archived: bool


class MoveProject(Struct, frozen=True, kw_only=True, tag="project.move"):
    """A project goes to another workspace, with its experiments."""

    project_id: str
    workspace_id: str
