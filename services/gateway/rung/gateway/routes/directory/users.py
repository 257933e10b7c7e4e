"""Users and service accounts: list, show, create, change, deactivate, activate."""

from collections.abc import Callable
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from rung import api
from rung.events import changes
from rung.gateway.context import reply
from rung.gateway.directory.asking import Asking
from rung.gateway.directory.state import User
from rung.gateway.requests.query import NoQuery, PageQuery, read_query
from rung.gateway.requests.version import version_of
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find,
    find_workspace,
    listed,
    may,
    recorded,
    reply_thing,
    state_of,
    wanted,
)


class UserQuery(PageQuery, forbid_unknown_fields=True):
    """Which users."""

    active: Annotated[bool | None, Meta(description="only those that are, or are not")] = None
    group: Annotated[str | None, Meta(description="only members of the group of this id")] = None


async def list_users(request: web.Request) -> web.Response:
    """List users, by id."""
    return _list(request, lambda it: it.kind == "person" and may(request, "user.view"))


async def list_accounts(request: web.Request) -> web.Response:
    """List service accounts, by id."""
    return _list(request, lambda it: it.kind == "service" and _may_see(request, it))


def _list(request: web.Request, visible: Callable[[User], bool]) -> web.Response:
    query, state = read_query(request, UserQuery), state_of(request)
    group = None if query.group is None else state.groups.get(query.group)
    members = None if query.group is None else (group.members if group is not None else {})
    found = [
        it
        for it in state.users.values()
        if visible(it)
        and query.active in {None, it.active}
        and (members is None or it.id in members)
    ]
    items, cursor = listed(found, query, lambda it: shown(request, it))
    return reply(api.UserList(items=items, next_cursor=cursor))


async def show_user(request: web.Request) -> web.Response:
    """Show a user."""
    read_query(request, NoQuery)
    return _reply(request, _of_path(request, "user"))


async def show_account(request: web.Request) -> web.Response:
    """Show a service account."""
    read_query(request, NoQuery)
    return _reply(request, _of_path(request, "account"))


async def create_user(request: web.Request) -> web.Response:
    """Create a user."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.UserWanted), Asking.of(request)
    change = changes.CreateUser(
        user_id=asking.new_id(),
        name=body.name,
        display_name=body.display_name,
        email=body.email,
    )
    await asking.make(change)
    return _reply(request, state_of(request).users[change.user_id], status=201)


async def create_account(request: web.Request) -> web.Response:
    """Create a service account."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.AccountWanted), Asking.of(request)
    place = body.workspace
    workspace = None if place is None else find_workspace(request, place, "workspace")
    change = changes.CreateUser(
        user_id=asking.new_id(),
        name=body.name,
        kind="service",
        display_name=body.display_name,
        workspace_id=None if workspace is None else workspace.id,
    )
    await asking.make(change)
    return _reply(request, state_of(request).users[change.user_id], status=201)


async def change_user(request: web.Request) -> web.Response:
    """Change a user."""
    return await _change(request, "user")


async def change_account(request: web.Request) -> web.Response:
    """Change a service account."""
    return await _change(request, "account")


async def deactivate_user(request: web.Request) -> web.Response:
    """Deactivate a user: all tokens and sessions are revoked at once."""
    return await _set_active(request, "user", active=False)


async def activate_user(request: web.Request) -> web.Response:
    """Activate a user again."""
    return await _set_active(request, "user", active=True)


async def deactivate_account(request: web.Request) -> web.Response:
    """Deactivate a service account: all its tokens are revoked at once."""
    return await _set_active(request, "account", active=False)


async def activate_account(request: web.Request) -> web.Response:
    """Activate a service account again."""
    return await _set_active(request, "account", active=True)


async def _change(request: web.Request, name: str) -> web.Response:
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.UserChange), Asking.of(request)
    user = _of_path(request, name)
    change = changes.ChangeUser(
        user_id=user.id,
        name=body.name,
        display_name=body.display_name,
        email=body.email,
        issuer=body.issuer,
    )
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).users[user.id])


async def _set_active(request: web.Request, name: str, *, active: bool) -> web.Response:
    read_query(request, NoQuery)
    asking, user = Asking.of(request), _of_path(request, name)
    change = changes.SetUserActive(user_id=user.id, active=active)
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).users[user.id])


def _of_path(request: web.Request, name: str) -> User:
    """Return the user or service account that the path names.

    Raises:
        Problem: there is none that who asks may see.
    """
    person = name == "user"

    def visible(it: User) -> bool:
        if person:
            return it.kind == "person" and may(request, "user.view")
        return it.kind == "service" and _may_see(request, it)

    users, word = state_of(request).users, "user" if person else "service account"
    reference = request.match_info[name]
    return find(request, users, User.TABLE, reference, word, visible=visible)


def _may_see(request: web.Request, account: User) -> bool:
    return may(request, "service.view", account.workspace_id)


def shown(request: web.Request, user: User) -> api.User:
    """Return a user as the API shows one."""
    groups = [it.id for it in state_of(request).groups.values() if user.id in it.members]
    return api.User(
        **recorded(user),
        kind=user.kind,
        display_name=user.display_name,
        email=user.email,
        active=user.active,
        workspace_id=user.workspace_id,
        issuer=user.issuer,
        groups=sorted(groups),
    )


def _reply(request: web.Request, user: User, *, status: int = 200) -> web.Response:
    return reply_thing(shown(request, user), user.version, status=status)


ROUTES: Final = (
    Route("GET", "/users", list_users, "Users, by id", api.UserList, query=UserQuery),
    Route(
        "POST",
        "/users",
        create_user,
        "Create a user",
        api.User,
        status=201,
        body=body_of(api.UserWanted),
        idempotent=True,
        problems=CREATING,
    ),
    Route("GET", "/users/{user}", show_user, "A user", api.User, problems=READING),
    Route(
        "POST",
        "/users/{user}",
        change_user,
        "Change a user's name, display name or address",
        api.User,
        body=body_of(api.UserChange),
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/users/{user}/deactivate",
        deactivate_user,
        "Deactivate a user, and revoke all tokens and sessions",
        api.User,
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/users/{user}/activate",
        activate_user,
        "Activate a user again",
        api.User,
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "GET",
        "/service-accounts",
        list_accounts,
        "Service accounts, by id",
        api.UserList,
        query=UserQuery,
    ),
    Route(
        "POST",
        "/service-accounts",
        create_account,
        "Create a service account",
        api.User,
        status=201,
        body=body_of(api.AccountWanted),
        idempotent=True,
        problems=CREATING,
    ),
    Route(
        "GET",
        "/service-accounts/{account}",
        show_account,
        "A service account",
        api.User,
        problems=READING,
    ),
    Route(
        "POST",
        "/service-accounts/{account}",
        change_account,
        "Change a service account's name or display name",
        api.User,
        body=body_of(api.UserChange),
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/service-accounts/{account}/deactivate",
        deactivate_account,
        "Deactivate a service account, and revoke all its tokens",
        api.User,
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/service-accounts/{account}/activate",
        activate_account,
        "Activate a service account again",
        api.User,
        idempotent=True,
        problems=CHANGING,
    ),
)
