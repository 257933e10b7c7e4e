"""Answers about usage: what workspaces, projects and owners use and used."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rung.api.states import Time

UsageBy = Literal["workspace", "project", "owner"]


class Usage(Struct, kw_only=True):
    """What some experiments use, and used in a period."""

    slot_hours: Annotated[
        float, Meta(description="slots times hours in the period, of what still runs too")
    ] = 0.0
    running_slot_hours: Annotated[
        float, Meta(description="the part of it that is of allocations that still run")
    ] = 0.0
    slots_running: Annotated[int, Meta(description="slots that are held now")] = 0
    slots_waiting: Annotated[int, Meta(description="slots that are waited for now")] = 0
    experiments: Annotated[
        dict[str, int], Meta(description="state → experiments that were submitted in the period")
    ] = {}
    trials: Annotated[dict[str, int], Meta(description="state → trials of these experiments")] = {}
    checkpoint_count: Annotated[
        int, Meta(description="checkpoints in the object store now, of whatever period")
    ] = 0
    checkpoint_bytes: Annotated[int, Meta(description="their bytes")] = 0


class UsageItem(Usage, kw_only=True):
    """The usage of a workspace, of a project, or of an owner; null: it is not told apart."""

    workspace_id: str | None
    workspace: str | None
    project_id: str | None
    project: str | None
    owner_id: str | None
    owner: str | None


class UsageReport(Struct, kw_only=True):
    """Usage in a period; an experiment counts where it is now."""

    by: UsageBy
    since: Annotated[
        Time | None,
        Meta(description="the full hour at which the period begins; null: from the beginning"),
    ]
    at: Annotated[Time, Meta(description="the time of the answer, at which the period ends")]
    total: Usage
    items: Annotated[list[UsageItem], Meta(description="the most slot-hours first")]
