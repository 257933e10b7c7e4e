"""Usage: what workspaces, projects and owners use, and used in a period."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NamedTuple

from aiohttp import web
from msgspec import Meta, Struct, structs

from rung import api
from rung.gateway.access.authorization import access_of
from rung.gateway.access.place import Names
from rung.gateway.context import context_of, reply
from rung.gateway.directory.asking import now_ms
from rung.gateway.problem import bad_parameter
from rung.gateway.projections.experiments import (
    Counts,
    ExperimentProjection,
    Visible,
    count_by_place,
)
from rung.gateway.projections.filter import InvalidFilter, time_of
from rung.gateway.projections.usage import HOUR_MS, Slots, UsageProjection, read_slots
from rung.gateway.requests.query import read_query
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import READING, find_workspace, state_of
from rung.gateway.timestamp import timestamp

_SEE: Final = "workspace.view"
"""The permission to see a workspace, and its usage."""
_Since = Annotated[
    str,
    Meta(
        max_length=60,
        description="where the period begins, to the full hour: 2026-11-23, or how long ago: 30d;"
        " from the beginning if not given",
    ),
]


class UsageQuery(Struct, forbid_unknown_fields=True):
    """Of which period, told apart by what."""

    since: _Since | None = None
    by: Annotated[
        Literal["project", "owner"], Meta(description="what the numbers are told apart by")
    ] = "project"


class AllUsageQuery(Struct, forbid_unknown_fields=True):
    """Of which period, told apart by what."""

    since: _Since | None = None
    by: Annotated[api.UsageBy, Meta(description="what the numbers are told apart by")] = (
        "workspace"
    )


async def show_workspace_usage(request: web.Request) -> web.Response:
    """Show the usage of a workspace, by project or by owner."""
    query = read_query(request, UsageQuery)
    workspace = find_workspace(request, request.match_info["workspace"])
    projects = state_of(request).projects.values()
    own = frozenset(it.id for it in projects if it.workspace_id == workspace.id)
    return reply(await _report(request, own, query.since, query.by))


async def show_usage(request: web.Request) -> web.Response:
    """Show the usage of all workspaces that one sees."""
    query = read_query(request, AllUsageQuery)
    return reply(
        await _report(request, access_of(request).projects_with(_SEE), query.since, query.by)
    )


class _Of(NamedTuple):
    """Whose usage an item is; None: not told apart."""

    workspace_id: str | None = None
    project_id: str | None = None
    owner_id: str | None = None


async def _report(
    request: web.Request, visible: Visible, since: str | None, by: api.UsageBy
) -> api.UsageReport:
    models, access = context_of(request).models, access_of(request)
    at_ms = now_ms()
    since_hour = _hour_of(since, at_ms)
    slots = await models.read(
        UsageProjection, read_slots, visible, since_hour=since_hour, now_ms=at_ms
    )
    counts = await models.read(
        ExperimentProjection, count_by_place, visible, since=timestamp(since_hour * HOUR_MS)
    )
    homes = {it.id: it.workspace_id for it in state_of(request).projects.values()}

    def group(project: str, owner: str) -> _Of:
        match by:
            case "workspace":
                return _Of(workspace_id=homes.get(project))
            case "project":
                return _Of(homes.get(project), project)
            case "owner":
                return _Of(owner_id=owner)

    names = Names(access)
    items = [
        api.UsageItem(
            **structs.asdict(usage),
            workspace_id=of.workspace_id,
            workspace=of.workspace_id and names.workspace(of.workspace_id),
            project_id=of.project_id,
            project=of.project_id and names.project(of.project_id),
            owner_id=of.owner_id,
            owner=of.owner_id and names.user(of.owner_id),
        )
        for of, usage in _grouped(slots, counts, group).items()
    ]
    whole = _grouped(slots, counts, lambda _project, _owner: _Of())
    items.sort(
        key=lambda it: (-it.slot_hours, it.workspace or "", it.project or "", it.owner or "")
    )
    return api.UsageReport(
        by=by,
        since=None if since is None else timestamp(since_hour * HOUR_MS),
        at=timestamp(at_ms),
        total=whole.get(_Of(), api.Usage()),
        items=items,
    )


def _grouped(
    slots: dict[tuple[str, str], Slots],
    counts: dict[tuple[str, str], Counts],
    group: Callable[[str, str], _Of],
) -> dict[_Of, api.Usage]:
    """Return the sums of groups of projects and owners."""
    used: dict[_Of, list[Slots]] = {}
    had: dict[_Of, list[Counts]] = {}
    for place, each in slots.items():
        used.setdefault(group(*place), []).append(each)
    for place, some in counts.items():
        had.setdefault(group(*place), []).append(some)
    return {of: _sum(used.get(of, []), had.get(of, [])) for of in dict.fromkeys([*used, *had])}


def _sum(slots: Iterable[Slots], counts: Iterable[Counts]) -> api.Usage:
    found = api.Usage(experiments={}, trials={})
    for each in slots:
        found.slot_hours += (each.used_ms + each.running_ms) / HOUR_MS
        found.running_slot_hours += each.running_ms / HOUR_MS
        found.slots_running += each.running
        found.slots_waiting += each.waiting
    for some in counts:
        for into, states in (
            (found.experiments, some.experiments),
            (found.trials, some.trials),
        ):
            for state, count in states.items():
                into[state] = into.get(state, 0) + count
        found.checkpoint_count += some.checkpoints[0]
        found.checkpoint_bytes += some.checkpoints[1]
    return found


def _hour_of(since: str | None, at_ms: int) -> int:
    """Return the hour since 1970 at which a period begins.

    Raises:
        Problem: it is no time.
    """
    if since is None:
        return 0
    try:
        moment = datetime.fromisoformat(time_of(since, datetime.fromtimestamp(at_ms / 1000, UTC)))
    except InvalidFilter as error:
        raise bad_parameter("since", str(error)) from None
    return max(0, int(moment.timestamp()) // 3600)


ROUTES: Final = (
    Route(
        "GET",
        "/workspaces/{workspace}/usage",
        show_workspace_usage,
        "What a workspace uses, and used in a period, by project or owner",
        api.UsageReport,
        query=UsageQuery,
        problems=READING,
        needs=_SEE,
        about="workspace",
        complete=True,
    ),
    Route(
        "GET",
        "/usage",
        show_usage,
        "What the workspaces that one sees use, and used in a period",
        api.UsageReport,
        query=AllUsageQuery,
        needs=_SEE,
        about="workspace",
        complete=True,
    ),
)
