"""Saved searches: filters of experiments under a name, one's own or shared in a workspace."""

from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from rung import api
from rung.events import changes
from rung.gateway.access.authorization import access_of
from rung.gateway.context import context_of, reply
from rung.gateway.directory.asking import Asking, principal_of
from rung.gateway.directory.state import Search
from rung.gateway.problem import Problem
from rung.gateway.projections.filter import InvalidFilter, conditions_of
from rung.gateway.requests.query import NoQuery, PageQuery, read_query
from rung.gateway.requests.version import version_of
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    body_of,
    find,
    find_workspace,
    listed,
    may,
    recorded,
    removed_before,
    reply_thing,
    state_of,
    wanted,
)


async def list_searches(request: web.Request) -> web.Response:
    """List one's own saved searches, and those that are shared where one may see them."""
    query = read_query(request, PageQuery)
    found = [it for it in state_of(request).searches.values() if _sees(request, it)]
    items, cursor = listed(found, query, lambda it: _shown(request, it))
    return reply(api.SavedSearchList(items=items, next_cursor=cursor))


async def save_search(request: web.Request) -> web.Response:
    """Save a filter, new or in place of the one of that name."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.SavedSearchWanted), Asking.of(request)
    try:
        conditions_of(body.query, now=datetime.now(UTC))
    except InvalidFilter as error:
        item = api.ProblemItem(path="query", message=str(error))
        raise Problem(422, "invalid", f"query: {error}", errors=[item]) from None
    place = None
    if body.workspace is not None:
        place = find_workspace(request, body.workspace, "workspace").id
        access_of(request).check("search.edit", place, f"sharing a search in {body.workspace}")
    space = f"{Search.TABLE}/{place or f'of {_user_id(request)}'}"
    known = context_of(request).directory.id_of(space, body.name)
    change = changes.SaveSearch(
        search_id=known or asking.new_id(),
        name=body.name,
        query=body.query,
        workspace_id=place,
    )
    await asking.make(change, expected=version_of(request))
    found = state_of(request).searches[change.search_id]
    return reply_thing(_shown(request, found), found.version, status=201)


async def delete_search(request: web.Request) -> web.Response:
    """Remove a saved search."""
    read_query(request, NoQuery)
    asking, name = Asking.of(request), request.match_info["search"]
    done = removed_before(await asking.before(), changes.RemoveSearch)
    if done is not None:
        return reply(api.Removed(id=done))
    found = _named(request, name)
    await asking.make(changes.RemoveSearch(search_id=found.id), expected=version_of(request))
    return reply(api.Removed(id=found.id))


def _named(request: web.Request, reference: str) -> Search:
    """Return a search by its id or its name, one's own before those that are shared.

    Raises:
        Problem: there is none that who asks may see, or several are shared under this name.
    """
    seen = {
        key: it
        for key, it in state_of(request).searches.items()
        if reference in {it.id, it.name} and _sees(request, it)
    }
    chosen = {key: it for key, it in seen.items() if it.workspace_id is None} or seen
    if len(chosen) > 1:
        ids = ", ".join(sorted(chosen))
        detail = f"several saved searches have this name: {ids}; give the id"
        raise Problem(409, "ambiguous", detail)
    return next(iter(chosen.values()), None) or find(
        request, chosen, Search.TABLE, reference, "search", visible=lambda _: True
    )


def _user_id(request: web.Request) -> str:
    principal = principal_of(request)
    return principal.on_behalf_of or principal.user_id


def _sees(request: web.Request, search: Search) -> bool:
    if search.workspace_id is None:
        return search.user_id == _user_id(request)
    return may(request, "search.view", search.workspace_id)


def _shown(request: web.Request, search: Search) -> api.SavedSearch:
    state = state_of(request)
    workspace = state.workspaces.get(search.workspace_id or "")
    user = state.users.get(search.user_id)
    return api.SavedSearch(
        **recorded(search),
        query=search.query,
        workspace_id=search.workspace_id,
        workspace=None if workspace is None else workspace.name,
        user=search.user_id if user is None else user.name,
        editable=search.workspace_id is None or may(request, "search.edit", search.workspace_id),
    )


ROUTES: Final = (
    Route(
        "GET",
        "/searches",
        list_searches,
        "One's saved searches, and shared ones that one may see, by id",
        api.SavedSearchList,
        query=PageQuery,
        about="directory",
    ),
    Route(
        "POST",
        "/searches",
        save_search,
        "Save a filter of experiments under a name",
        api.SavedSearch,
        status=201,
        body=body_of(api.SavedSearchWanted),
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/searches/{search}/delete",
        delete_search,
        "Remove a saved search",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
)
