"""The operations of SCIM, each a change of the directory that the provisioning account asks for.

What is sent is read by scim2-models, which knows the protocol: schemas, filters, paths, PATCH. A
PATCH or PUT is applied to the resource as it is shown, and what of it differs is changed; so
`remove`, `replace` and paths with filters need no code here. Deactivation goes first, and a user
who is deleted is retired: name and external id are free, what was done stays on record.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.hdrs import IF_MATCH
from pydantic import ValidationError
from scim2_models import (
    Context,
    Error,
    InvalidValueException,
    ListResponse,
    PatchOp,
    Resource,
    ResponseParameters,
    SCIMException,
    SearchRequest,
)
from scim2_models.path import AttrPath, CompareOperator, Comparison

from rung.events import changes
from rung.events.changes import Change
from rung.gateway.context import context_of
from rung.gateway.directory import state
from rung.gateway.directory.asking import Refused, System, note, principal_of
from rung.gateway.identity.identity import IDENTITY
from rung.gateway.problem import Problem, bad_parameter
from rung.gateway.requests.upload import read_body
from rung.gateway.scim.errors import MEDIA_TYPE, ROOT, error
from rung.gateway.scim.resources import (
    CONFIG,
    POLICY,
    RESOURCE_TYPES,
    RESULTS_MAX,
    Group,
    User,
    address_of,
    group_of,
    user_of,
    version_of,
)

R = TypeVar("R", bound=Resource[Any])

_BYTES_MAX: Final = 4 * 1024 * 1024
_PAGE: Final = 100
_STRIDE: Final = 100
"""Resources that are looked at in one go; other requests are answered in between."""
_FLAGS: Final = frozenset({"active", "primary"})
_QUERY: Final = {
    "filter": "filter",
    "startindex": "startIndex",
    "count": "count",
    "attributes": "attributes",
    "excludedattributes": "excludedAttributes",
}


class Endpoint:
    """One request for SCIM's resources, with what is the identity provider's in the directory."""

    def __init__(self, request: web.Request) -> None:
        """Take a request.

        Raises:
            Problem: the installation has no identity provider.
        """
        self.request: Final = request
        identity = request.app[IDENTITY]
        if identity.provider is None:
            detail = "this installation has no identity provider; see --oidc-issuer"
            raise Problem(404, "not-found", detail)
        self.issuer: Final = identity.provider.settings.issuer
        context = context_of(request)
        self.context: Final = context
        self.system: Final = System.of(context)
        self.principal: Final = principal_of(request)
        public = identity.settings.public_url
        self.base: Final = str(request.url.origin()) if public is None else public.rstrip("/")

    @property
    def folded(self) -> state.State:
        """The directory as this replica has folded it."""
        return self.context.directory.state

    # What there is.

    def user(self, name: str) -> state.User | None:
        """Return a user whom the provider manages, by id."""
        found = self.folded.users.get(name)
        if found is None or found.retired or found.kind == "service":
            return None
        return found if found.issuer == self.issuer else None

    def group(self, name: str) -> state.Group | None:
        """Return a group that the provider manages, by id."""
        found = self.folded.groups.get(name)
        return found if found is not None and found.issuer == self.issuer else None

    def shown_user(self, user: state.User) -> User:
        """Return a user as SCIM has one."""
        groups = self.folded.groups.values()
        within = [it for it in groups if user.id in it.members and it.issuer == self.issuer]
        return user_of(user, within, self.base)

    def shown_group(self, group: state.Group) -> Group:
        """Return a group as SCIM has one."""
        return group_of(group, filter(None, map(self.user, group.members)), self.base)

    # What is asked for.

    async def body(self) -> dict[str, Any]:
        """Return the JSON object that was sent.

        Raises:
            Problem: it is none.
        """
        try:
            sent = msgspec.json.decode(await read_body(self.request, _BYTES_MAX))
        except (msgspec.DecodeError, RecursionError) as failure:
            raise Problem(400, "malformed", f"the body is no JSON: {failure}") from failure
        if not isinstance(sent, dict):
            raise Problem(400, "malformed", "the body must be a JSON object")
        found: dict[str, Any] = _usual(sent)
        return found

    def expected(self, thing: state.Thing) -> int | None:
        """Return the version that If-Match names, None if the request is about any.

        Raises:
            Problem: it is not that of the thing, or none at all.
        """
        text = self.request.headers.get(IF_MATCH)
        if text is None or text.strip() == "*":
            return None
        if text.strip().removeprefix("W/") != f'"{thing.version}"':
            detail = f"the resource has the version {version_of(thing)}; read it again"
            raise Problem(412, "changed", detail)
        return thing.version

    async def change(self, change: Change, expected: int | None = None) -> None:
        """Have the directory make a change, in the name of who asks.

        Raises:
            Problem: it is refused.
        """
        try:
            await self.system.change(change, self.principal, expected=expected)
        except Refused as refused:
            raise refused.problem() from refused
        finally:
            note(self.context)

    # Answers.

    def answer(self, resource: Resource[Any], context: Context, status: int = 200) -> web.Response:
        """Return a resource, or what of it the query asks for."""
        shown = _parameters(self.request, type(resource))
        headers = {}
        if resource.meta is not None and resource.meta.version and resource.meta.location:
            headers = {"ETag": resource.meta.version, "Location": resource.meta.location}
        dumped = resource.model_dump(scim_ctx=context, response_parameters=shown)
        return _json(dumped, status, headers)

    async def listed(
        self,
        query: type[SearchRequest[Any]],
        sent: Mapping[str, Any],
        *found: Callable[["Endpoint", Any], Iterable[Resource[Any]]],
    ) -> web.Response:
        """Return the resources that a query asks for.

        Args:
            query: for the kind of the resources, or a union of several.
            sent: the parameters of the query.
            found: return the resources among which they are, given the filter.
        """
        wanted = query.model_validate(
            dict(sent), scim_ctx=Context.SEARCH_REQUEST, scim_policy=POLICY
        )
        matching: list[Resource[Any]] = []
        among = itertools.chain.from_iterable(some(self, wanted.filter) for some in found)
        for number, each in enumerate(among):
            if number % _STRIDE == _STRIDE - 1:
                await asyncio.sleep(0)
            if wanted.filter is None or wanted.filter.match(each):
                matching.append(each)
        start = max(1, wanted.start_index or 1)
        count = _PAGE if wanted.count is None else min(max(0, wanted.count), RESULTS_MAX)
        part = matching[start - 1 : start - 1 + count]
        items = [
            it.model_dump(scim_ctx=Context.SEARCH_RESPONSE, response_parameters=wanted)
            for it in part
        ]
        return _list(items, total=len(matching), start=start)


def handled(serve: Callable[[Endpoint], Any]) -> Callable[[web.Request], Any]:
    """Return the handler of an operation, which answers with SCIM's errors."""

    async def handle(request: web.Request) -> web.Response:
        try:
            response: web.Response = await serve(Endpoint(request))
        except ValidationError as failure:
            return _error(Error.from_validation_errors(failure)[0])
        except SCIMException as failure:
            return _error(failure.to_error())
        return response

    return handle


# Users.


async def list_users(at: Endpoint) -> web.Response:
    """List users."""
    return await at.listed(SearchRequest[User], _query(at.request), _users)


async def show_user(at: Endpoint) -> web.Response:
    """Show a user."""
    return _shown(at, at.shown_user(_user(at)))


async def create_user(at: Endpoint) -> web.Response:
    """Create a user."""
    sent = await at.body()
    wanted = _read(User, sent, Context.RESOURCE_CREATION_REQUEST)
    name, user_id = _required("userName", wanted.user_name), at.system.draw_id()
    given, family = _names(wanted)
    change = changes.CreateUser(
        user_id=user_id,
        name=name,
        display_name=wanted.display_name or " ".join(filter(None, [given, family])),
        email=address_of(wanted),
        issuer=at.issuer,
        external_id=wanted.external_id or "",
        given_name=given,
        family_name=family,
    )
    _check_adoption(at, name)
    await at.change(change)
    if wanted.active is False:
        await at.change(changes.SetUserActive(user_id=user_id, active=False))
    made = at.shown_user(at.folded.users[user_id])
    return at.answer(made, Context.RESOURCE_CREATION_RESPONSE, 201)


async def replace_user(at: Endpoint) -> web.Response:
    """Replace what is known of a user."""
    user = _user(at)
    wanted = _read(User, await at.body(), Context.RESOURCE_REPLACEMENT_REQUEST)
    wanted.replace(at.shown_user(user))
    if wanted.active is None:
        wanted.active = True
    await _change_user(at, user, wanted)
    return at.answer(at.shown_user(_user(at)), Context.RESOURCE_REPLACEMENT_RESPONSE)


async def patch_user(at: Endpoint) -> web.Response:
    """Change some of what is known of a user."""
    user = _user(at)
    wanted = _patched(at.shown_user(user), await at.body())
    await _change_user(at, user, wanted)
    return at.answer(at.shown_user(_user(at)), Context.RESOURCE_PATCH_RESPONSE)


async def delete_user(at: Endpoint) -> web.Response:
    """Retire a user."""
    user = _user(at)
    await at.change(changes.RetireUser(user_id=user.id), at.expected(user))
    return web.Response(status=204)


async def _change_user(at: Endpoint, user: state.User, wanted: User) -> None:
    """Have a user be as is wanted; an end of access comes first."""
    expected = at.expected(user)
    given, family = _names(wanted)
    name = _required("userName", wanted.user_name)
    change = changes.ChangeUser(
        user_id=user.id,
        name=_other(name, user.name),
        display_name=_other(wanted.display_name, user.display_name),
        email=_other(address_of(wanted), user.email),
        external_id=_other(wanted.external_id, user.external_id),
        given_name=_other(given, user.given_name),
        family_name=_other(family, user.family_name),
    )
    asked: list[Change] = [] if change == changes.ChangeUser(user_id=user.id) else [change]
    if wanted.active is False and user.active:
        asked.insert(0, changes.SetUserActive(user_id=user.id, active=False))
    elif wanted.active is True and not user.active:
        asked.append(changes.SetUserActive(user_id=user.id, active=True))
    if change.name is not None:
        _check_adoption(at, change.name)
    for each in asked:
        await at.change(each, expected)
        expected = None


def _names(user: User) -> tuple[str, str]:
    name = user.name
    return ("", "") if name is None else (name.given_name or "", name.family_name or "")


def _users(at: Endpoint, wanted: Any) -> Iterable[User]:
    """Return the users among whom those are that a filter matches."""
    names = _equal(wanted, "userName", "id")
    found: Iterable[str] = at.folded.users
    if names is not None:
        found = [names, at.context.directory.id_of(state.User.TABLE, names) or ""]
    for user_id in sorted(set(found)):
        user = at.user(user_id)
        if user is not None:
            yield at.shown_user(user)


def _user(at: Endpoint) -> state.User:
    name = at.request.match_info["id"]
    found = at.user(name)
    if found is None:
        raise _missing("user", name)
    return found


def _check_adoption(at: Endpoint, name: str) -> None:
    """Refuse the name of a user whom the provider does not manage, and say how it could be."""
    known = at.context.directory.user_by_name(name)
    if known is not None and known.issuer != at.issuer:
        raise Problem(
            409,
            "taken",
            f"there is a user {name!r} whom this identity provider does not manage; an"
            f" administrator hands the user over: rung user edit {name} --issuer {at.issuer}",
        )


# Groups.


async def list_groups(at: Endpoint) -> web.Response:
    """List groups."""
    return await at.listed(SearchRequest[Group], _query(at.request), _groups)


async def show_group(at: Endpoint) -> web.Response:
    """Show a group with its members."""
    return _shown(at, at.shown_group(_group(at)))


async def create_group(at: Endpoint) -> web.Response:
    """Create a group."""
    wanted = _read(Group, await at.body(), Context.RESOURCE_CREATION_REQUEST)
    group_id, members = at.system.draw_id(), _members(at, wanted)
    name = _required("displayName", wanted.display_name)
    change = changes.CreateGroup(
        group_id=group_id, name=name, issuer=at.issuer, external_id=wanted.external_id or ""
    )
    await at.change(change)
    if members:
        await at.change(changes.ChangeMembers(group_id=group_id, add=members))
    made = at.shown_group(at.folded.groups[group_id])
    return at.answer(made, Context.RESOURCE_CREATION_RESPONSE, 201)


async def replace_group(at: Endpoint) -> web.Response:
    """Replace a group's name and members."""
    group = _group(at)
    wanted = _read(Group, await at.body(), Context.RESOURCE_REPLACEMENT_REQUEST)
    wanted.replace(at.shown_group(group))
    await _change_group(at, group, wanted)
    return at.answer(at.shown_group(_group(at)), Context.RESOURCE_REPLACEMENT_RESPONSE)


async def patch_group(at: Endpoint) -> web.Response:
    """Change a group's name or members."""
    group = _group(at)
    wanted = _patched(at.shown_group(group), await at.body())
    await _change_group(at, group, wanted)
    return at.answer(at.shown_group(_group(at)), Context.RESOURCE_PATCH_RESPONSE)


async def delete_group(at: Endpoint) -> web.Response:
    """Delete a group, and take the roles that it was given."""
    group = _group(at)
    await at.change(changes.RemoveGroup(group_id=group.id), at.expected(group))
    return web.Response(status=204)


async def _change_group(at: Endpoint, group: state.Group, wanted: Group) -> None:
    """Have a group be as is wanted; who leaves does so first."""
    expected = at.expected(group)
    before = [it for it in group.members if at.user(it) is not None]
    after = _members(at, wanted)
    joining = [it for it in after if it not in group.members]
    staying = set(after)
    leaving = [it for it in before if it not in staying]
    change = changes.ChangeGroup(
        group_id=group.id,
        name=_other(_required("displayName", wanted.display_name), group.name),
        external_id=_other(wanted.external_id, group.external_id),
    )
    asked: list[Change] = []
    if joining or leaving:
        asked.append(changes.ChangeMembers(group_id=group.id, add=joining, remove=leaving))
    if change != changes.ChangeGroup(group_id=group.id):
        asked.append(change)
    for each in asked:
        await at.change(each, expected)
        expected = None


def _members(at: Endpoint, wanted: Group) -> list[str]:
    """Return the ids of the members that are wanted.

    Raises:
        SCIMException: one is no user whom the provider manages.
    """
    found = dict.fromkeys(it.value or "" for it in wanted.members or [])
    for user_id in found:
        if at.user(user_id) is None:
            detail = f"members: there is no user {user_id[:100]!r}; groups in groups are not kept"
            raise InvalidValueException(detail=detail)
    return list(found)


def _groups(at: Endpoint, wanted: Any) -> Iterable[Group]:
    """Return the groups among which those are that a filter matches."""
    names = _equal(wanted, "displayName", "id")
    found: Iterable[str] = at.folded.groups
    if names is not None:
        found = [names, at.context.directory.id_of(state.Group.TABLE, names) or ""]
    for group_id in sorted(set(found)):
        group = at.group(group_id)
        if group is not None:
            yield at.shown_group(group)


def _group(at: Endpoint) -> state.Group:
    name = at.request.match_info["id"]
    found = at.group(name)
    if found is None:
        raise _missing("group", name)
    return found


# Searches, whose query is a body.


async def search(at: Endpoint) -> web.Response:
    """Find users and groups."""
    return await at.listed(SearchRequest[User | Group], await at.body(), _users, _groups)


async def search_users(at: Endpoint) -> web.Response:
    """Find users."""
    return await at.listed(SearchRequest[User], await at.body(), _users)


async def search_groups(at: Endpoint) -> web.Response:
    """Find groups."""
    return await at.listed(SearchRequest[Group], await at.body(), _groups)


# What the service is.


async def show_config(at: Endpoint) -> web.Response:
    """Show what of SCIM there is."""
    return at.answer(CONFIG, Context.RESOURCE_QUERY_RESPONSE)


async def list_resource_types(at: Endpoint) -> web.Response:
    """List the kinds of resources."""
    _refuse_filter(at)
    return _list([_described(at, it) for it in RESOURCE_TYPES])


async def show_resource_type(at: Endpoint) -> web.Response:
    """Show a kind of resources."""
    return _one(at, RESOURCE_TYPES)


async def list_schemas(at: Endpoint) -> web.Response:
    """List the schemas of users and groups."""
    _refuse_filter(at)
    return _list([_described(at, it.to_schema()) for it in (User, Group)])


async def show_schema(at: Endpoint) -> web.Response:
    """Show a schema."""
    return _one(at, [it.to_schema() for it in (User, Group)])


def _one(at: Endpoint, known: Iterable[Resource[Any]]) -> web.Response:
    name = at.request.match_info["id"]
    for each in known:
        if each.id == name:
            return _json(_described(at, each))
    raise _missing("description", name)


def _described(at: Endpoint, resource: Resource[Any]) -> dict[str, Any]:
    kind = type(resource).__name__
    dumped = resource.model_dump(scim_ctx=Context.RESOURCE_QUERY_RESPONSE)
    location = f"{at.base}{ROOT}/{kind}s/{resource.id}"
    return {**dumped, "meta": {"resourceType": kind, "location": location}}


def _refuse_filter(at: Endpoint) -> None:
    """Refuse what RFC 7644 (4) wants to be refused here."""
    if any(name.lower() == "filter" for name in at.request.query):
        raise Problem(403, "forbidden", "what the service is cannot be filtered")


# Bodies, queries, answers.


def _read(kind: type[R], sent: dict[str, Any], context: Context) -> R:
    return kind.model_validate(sent, scim_ctx=context, scim_policy=POLICY)


def _patched(resource: R, sent: dict[str, Any]) -> R:
    """Return a resource with the operations of a PATCH applied to it."""
    operations: Any = PatchOp  # a checker reads its index as a type, not as a value
    patch = operations[type(resource)].model_validate(
        sent, scim_ctx=Context.RESOURCE_PATCH_REQUEST, scim_policy=POLICY
    )
    patch.patch(resource, scim_policy=POLICY)
    return resource


def _usual(sent: Any, flag: bool = False) -> Any:  # noqa: FBT001, FBT002 - of one value
    """Return a body with truth values for the texts that Entra ID sends in their place."""
    if isinstance(sent, list):
        return [_usual(it, flag) for it in sent]
    if isinstance(sent, dict):
        path = str(sent.get("path", "")).rpartition(".")[2].lower()
        return {
            key: _usual(it, key.lower() in _FLAGS or (key.lower() == "value" and path in _FLAGS))
            for key, it in sent.items()
        }
    if flag and isinstance(sent, str) and sent.lower() in {"true", "false"}:
        return sent.lower() == "true"
    return sent


def _query(request: web.Request) -> dict[str, Any]:
    """Return the parameters of a query by their names in SCIM; others are left out."""
    found: dict[str, Any] = {}
    for name, value in request.query.items():
        known = _QUERY.get(name.lower())
        if known in {"startIndex", "count"}:
            try:
                found[known] = int(value)
            except ValueError:
                raise bad_parameter(known, "must be a number") from None
        elif known is not None:
            found[known] = value
    return found


def _parameters(request: web.Request, kind: type[Resource[Any]]) -> Any:
    wanted = {key: it for key, it in _query(request).items() if "ttributes" in key}
    parameters: Any = ResponseParameters  # a checker reads its index as a type, not as a value
    return parameters[kind].model_validate(wanted)


def _equal(wanted: Any, *names: str) -> str | None:
    """Return the text that one of these attributes must equal, None if the filter says more."""
    node = None if wanted is None else wanted.ast
    if not isinstance(node, Comparison) or node.op is not CompareOperator.eq:
        return None
    path: AttrPath = node.attr_path
    known = path.attr.lower() in {it.lower() for it in names} and path.sub_attr is None
    return node.value if known and isinstance(node.value, str) else None


def _other(wanted: str | None, now: str) -> str | None:
    """Return what a field becomes, None if it stays."""
    wanted = wanted or ""
    return None if wanted == now else wanted


def _required(name: str, value: str | None) -> str:
    if not value:
        raise InvalidValueException(detail=f"{name}: must not be empty")
    return value


def _shown(at: Endpoint, resource: Resource[Any]) -> web.Response:
    """Return a resource, or 304 if the client has this version of it."""
    version = resource.meta.version if resource.meta is not None else None
    tags = at.request.headers.get("If-None-Match", "").replace("W/", "").split(",")
    if version is not None and version.removeprefix("W/") in {it.strip() for it in tags}:
        return web.Response(status=304, headers={"ETag": version})
    return at.answer(resource, Context.RESOURCE_QUERY_RESPONSE)


def _list(items: list[dict[str, Any]], total: int | None = None, start: int = 1) -> web.Response:
    shown = {
        "schemas": [str(ListResponse.__schema__)],
        "totalResults": len(items) if total is None else total,
        "startIndex": start,
        "itemsPerPage": len(items),
        "Resources": items,
    }
    return _json(shown)


def _json(
    document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps(document).encode(),
        headers={"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", **(headers or {})},
    )


def _error(found: Error) -> web.Response:
    return error(found.status or 400, found.scim_type or "", found.detail or "refused")


def _missing(what: str, name: str) -> Problem:
    return Problem(404, "not-found", f"there is no {what} {name[:100]!r}")
