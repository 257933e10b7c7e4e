"""Groups of users: list, show, create, change, members, delete."""

from typing import Final

from aiohttp import web

from rung import api
from rung.events import changes
from rung.events.directory import DirectoryChanged
from rung.gateway.context import reply
from rung.gateway.directory.asking import Asking
from rung.gateway.directory.state import Group
from rung.gateway.identity.identity import IDENTITY
from rung.gateway.problem import bad_parameter
from rung.gateway.requests.query import NoQuery, PageQuery, read_query
from rung.gateway.requests.version import version_of
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find_group,
    find_user,
    listed,
    may,
    recorded,
    reply_thing,
    state_of,
    wanted,
)


async def list_groups(request: web.Request) -> web.Response:
    """List groups, by id."""
    query = read_query(request, PageQuery)
    found = state_of(request).groups.values() if may(request, "group.view") else ()
    items, cursor = listed(found, query, lambda it: _shown(request, it))
    return reply(api.GroupList(items=items, next_cursor=cursor))


async def show_group(request: web.Request) -> web.Response:
    """Show a group with its members."""
    read_query(request, NoQuery)
    return _reply(request, _of_path(request))


async def create_group(request: web.Request) -> web.Response:
    """Create a group."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.GroupWanted), Asking.of(request)
    change = changes.CreateGroup(
        group_id=asking.new_id(),
        name=body.name,
        description=body.description,
        issuer=_issuer(request) if body.from_provider else "",
    )
    await asking.make(change)
    return _reply(request, state_of(request).groups[change.group_id], status=201)


async def change_group(request: web.Request) -> web.Response:
    """Change a group's name or description."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.GroupChange), Asking.of(request)
    group = _of_path(request)
    change = changes.ChangeGroup(
        group_id=group.id, name=body.name, description=body.description, issuer=body.issuer
    )
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).groups[group.id])


async def change_members(request: web.Request) -> web.Response:
    """Change who is in a group."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.MembersWanted), Asking.of(request)
    group = _of_path(request)
    change = changes.ChangeMembers(
        group_id=group.id,
        add=[find_user(request, name, "add").id for name in body.add],
        remove=[find_user(request, name, "remove").id for name in body.remove],
    )
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).groups[group.id])


async def delete_group(request: web.Request) -> web.Response:
    """Delete a group, and take the roles that it was given."""
    read_query(request, NoQuery)
    asking = Asking.of(request)
    reference = request.match_info["group"]
    before = await asking.before()
    group_id = None
    if isinstance(before, DirectoryChanged) and isinstance(before.change, changes.RemoveGroup):
        group_id = before.change.group_id  # it is there no longer
    change = changes.RemoveGroup(group_id=group_id or find_group(request, reference).id)
    await asking.make(change, expected=version_of(request))
    return reply(api.Removed(id=change.group_id))


def _issuer(request: web.Request) -> str:
    """Return the identity provider's name in the directory.

    Raises:
        Problem: there is no provider.
    """
    provider = request.app[IDENTITY].settings.provider
    if provider is None:
        raise bad_parameter(
            "from_provider",
            "this gateway has no identity provider (rung service gateway --oidc-issuer …)",
        )
    return provider.issuer


def _of_path(request: web.Request) -> Group:
    return find_group(request, request.match_info["group"])


def _shown(request: web.Request, group: Group) -> api.Group:
    users = state_of(request).users
    return api.Group(
        **recorded(group),
        description=group.description,
        issuer=group.issuer,
        members=[
            api.Member(id=user_id, name=users[user_id].name, issuer=issuer)
            for user_id, issuer in sorted(group.members.items())
        ],
    )


def _reply(request: web.Request, group: Group, *, status: int = 200) -> web.Response:
    return reply_thing(_shown(request, group), group.version, status=status)


ROUTES: Final = (
    Route("GET", "/groups", list_groups, "Groups, by id", api.GroupList, query=PageQuery),
    Route(
        "POST",
        "/groups",
        create_group,
        "Create a group",
        api.Group,
        status=201,
        body=body_of(api.GroupWanted),
        idempotent=True,
        problems=CREATING,
    ),
    Route("GET", "/groups/{group}", show_group, "A group", api.Group, problems=READING),
    Route(
        "POST",
        "/groups/{group}",
        change_group,
        "Change a group's name or description",
        api.Group,
        body=body_of(api.GroupChange),
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/groups/{group}/members",
        change_members,
        "Change who is in a group",
        api.Group,
        body=body_of(api.MembersWanted),
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/groups/{group}/delete",
        delete_group,
        "Delete a group, and take the roles that it was given",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
    ),
)
