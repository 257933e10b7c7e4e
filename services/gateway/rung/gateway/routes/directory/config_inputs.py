"""Secrets and templates of workspaces, policies, and what a file becomes with them."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web
from msgspec import structs

from rung import api
from rung.api import ProblemItem
from rung.config import InvalidExperimentFile
from rung.config.policy import check_policy, check_template
from rung.config.policy.layer import ScopeKind
from rung.config.problem import dotted
from rung.config.secret import hide
from rung.config.sections.secrets import NAME
from rung.config.yaml import document
from rung.events import changes
from rung.events.directory import DirectoryChanged
from rung.events.errors import SecretError
from rung.gateway.access.authorization import access_of
from rung.gateway.access.place import Place
from rung.gateway.context import context_of, reply
from rung.gateway.directory.asking import Asking
from rung.gateway.directory.processor import workspace_of_policy
from rung.gateway.directory.state import Policy, Secret, Template, Workspace
from rung.gateway.experiment_file.file_problems import refused_file
from rung.gateway.experiment_file.policies import resolved, scope_of, template_of
from rung.gateway.problem import Problem
from rung.gateway.requests.query import NoQuery, PageQuery, read_query
from rung.gateway.requests.version import is_new, version_of
from rung.gateway.requests.writes import reused
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find,
    find_project,
    find_workspace,
    listed,
    may,
    recorded,
    removed_before,
    reply_thing,
    state_of,
    wanted,
)
from rung.secrets.secret_store import SecretStore, workspace_object


def _workspace(request: web.Request, permission: str) -> Workspace:
    """Return the workspace of the path, for who may do something there.

    Args:
        request: with the path.
        permission: that it needs.

    Raises:
        Problem: there is none, or who asks may not.
    """
    found = find_workspace(request, request.match_info["workspace"])
    word = f"{permission.partition('.')[0]}s"
    access_of(request).check(permission, found.id, f"{word} of workspace {found.name}")
    return found


# Secrets.


async def list_secrets(request: web.Request) -> web.Response:
    """List the names of a workspace's secrets."""
    query = read_query(request, PageQuery)
    workspace = _workspace(request, "secret.view")
    found = [it for it in state_of(request).secrets.values() if it.workspace_id == workspace.id]
    items, cursor = listed(found, query, _secret)
    return reply(api.SecretList(items=items, next_cursor=cursor))


async def set_secret(request: web.Request) -> web.Response:
    """Encrypt a secret of a workspace, and put its name and digest on record."""
    read_query(request, NoQuery)
    workspace = _workspace(request, "secret.edit")
    body, asking = await wanted(request, api.SecretWanted), Asking.of(request)
    if not NAME.fullmatch(body.name):
        detail = "name: begins with a letter, and has letters, digits, `_`, `-` and `.`"
        raise Problem(422, "invalid", detail)
    context = context_of(request)
    store, name = context.need_secrets(), workspace_object(workspace.id, body.name)
    before = await asking.before()
    if isinstance(before, DirectoryChanged) and isinstance(before.change, changes.SetSecret):
        change = structs.replace(
            before.change, workspace_id=workspace.id, name=body.name, description=body.description
        )
        if not await asyncio.to_thread(_is_value, store, before.change, body.value.encode()):
            raise reused("was used for another value, or the secret was changed since")
    else:
        known = context.directory.id_of(f"{Secret.TABLE}/{workspace.id}", body.name)
        reference = await asyncio.to_thread(store.put, name, body.value.encode())
        change = changes.SetSecret(
            secret_id=known or asking.new_id(),
            workspace_id=workspace.id,
            name=body.name,
            digest=reference.digest,
            reference=name,
            description=body.description,
        )
    await asking.make(change, expected=version_of(request))
    found = state_of(request).secrets[change.secret_id]
    return reply_thing(_secret(found), found.version, status=201)


def _is_value(store: SecretStore, change: changes.SetSecret, value: bytes) -> bool:
    """Return whether a change has set this value, which is still there."""
    try:
        return store.get(change.reference, change.digest) == value
    except SecretError:
        return False


async def delete_secret(request: web.Request) -> web.Response:
    """Remove a secret of a workspace, and its encrypted value."""
    read_query(request, NoQuery)
    workspace, asking = _workspace(request, "secret.edit"), Asking.of(request)
    done = removed_before(await asking.before(), changes.RemoveSecret)
    if done is not None:
        return reply(api.Removed(id=done))
    found = find(
        request,
        state_of(request).secrets,
        f"{Secret.TABLE}/{workspace.id}",
        request.match_info["secret"],
        "secret",
        visible=lambda it: it.workspace_id == workspace.id,
    )
    await asking.make(changes.RemoveSecret(secret_id=found.id), expected=version_of(request))
    store = context_of(request).need_secrets()
    await asyncio.to_thread(store.delete, found.reference)
    return reply(api.Removed(id=found.id))


def _secret(secret: Secret) -> api.Secret:
    return api.Secret(
        **recorded(secret),
        workspace_id=secret.workspace_id,
        description=secret.description,
        digest=secret.digest,
    )


# Templates.


async def list_templates(request: web.Request) -> web.Response:
    """List a workspace's templates."""
    query = read_query(request, PageQuery)
    workspace = _workspace(request, "template.view")
    found = [it for it in state_of(request).templates.values() if it.workspace_id == workspace.id]
    items, cursor = listed(found, query, _template)
    return reply(api.TemplateList(items=items, next_cursor=cursor))


async def set_template(request: web.Request) -> web.Response:
    """Set a template of a workspace, once its document was checked."""
    read_query(request, NoQuery)
    workspace = _workspace(request, "template.edit")
    body, asking = await wanted(request, api.TemplateWanted), Asking.of(request)
    try:
        check_template(body.document)
    except InvalidExperimentFile as error:
        raise refused_file(error) from None
    if _has_secrets(body.document):
        raise Problem(422, "secret", _NO_SECRETS)
    known = None
    if not is_new(request):  # else the directory refuses a name that is in use
        known = context_of(request).directory.id_of(f"{Template.TABLE}/{workspace.id}", body.name)
    change = changes.SetTemplate(
        template_id=known or asking.new_id(),
        workspace_id=workspace.id,
        name=body.name,
        document=body.document,
    )
    await asking.make(change, expected=version_of(request))
    found = state_of(request).templates[change.template_id]
    return reply_thing(_template(found), found.version, status=201)


async def delete_template(request: web.Request) -> web.Response:
    """Remove a template; experiments that were merged with it stay as they are."""
    read_query(request, NoQuery)
    workspace, asking = _workspace(request, "template.edit"), Asking.of(request)
    done = removed_before(await asking.before(), changes.RemoveTemplate)
    if done is not None:
        return reply(api.Removed(id=done))
    found = find(
        request,
        state_of(request).templates,
        f"{Template.TABLE}/{workspace.id}",
        request.match_info["template"],
        "template",
        visible=lambda it: it.workspace_id == workspace.id,
    )
    await asking.make(changes.RemoveTemplate(template_id=found.id), expected=version_of(request))
    return reply(api.Removed(id=found.id))


def _template(template: Template) -> api.Template:
    return api.Template(
        **recorded(template),
        workspace_id=template.workspace_id,
        document=template.document,
        by=template.by,
    )


# Policies.


async def list_policies(request: web.Request) -> web.Response:
    """List the policies that one may see."""
    query = read_query(request, PageQuery)
    found = [it for it in state_of(request).policies.values() if _sees(request, it)]
    items, cursor = listed(found, query, lambda it: _policy(request, it))
    return reply(api.PolicyList(items=items, next_cursor=cursor))


async def set_policy(request: web.Request) -> web.Response:
    """Set a policy, once its document was checked."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.PolicyWanted), Asking.of(request)
    named = [it for it in (body.workspace, body.project, body.pool) if it is not None]
    if len(named) > 1:
        raise Problem(422, "invalid", "give one of workspace, project and pool, or none")
    workspace = project = None
    scope: ScopeKind = "pool" if body.pool else "installation"
    if body.workspace is not None:
        workspace, scope = find_workspace(request, body.workspace, "workspace").id, "workspace"
    if body.project is not None:
        project, scope = find_project(request, body.project, "project").id, "project"
    try:
        check_policy(body.kind, body.document, scope)
    except InvalidExperimentFile as error:
        raise refused_file(error) from None
    if _has_secrets(body.document):
        raise Problem(422, "secret", _NO_SECRETS)
    place = workspace, project, body.pool
    known = [
        it.id
        for it in state_of(request).policies.values()
        if it.name == body.name and (it.workspace_id, it.project_id, it.pool) == place
        if not is_new(request)  # else the directory refuses a name that is in use
    ]
    change = changes.SetPolicy(
        policy_id=known[0] if known else asking.new_id(),
        name=body.name,
        kind=body.kind,
        document=body.document,
        workspace_id=workspace,
        project_id=project,
        pool=body.pool,
    )
    await asking.make(change, expected=version_of(request))
    found = state_of(request).policies[change.policy_id]
    return reply_thing(_policy(request, found), found.version, status=201)


async def delete_policy(request: web.Request) -> web.Response:
    """Remove a policy; experiments that were submitted under it stay as they are."""
    read_query(request, NoQuery)
    asking = Asking.of(request)
    done = removed_before(await asking.before(), changes.RemovePolicy)
    if done is not None:
        return reply(api.Removed(id=done))
    reference = request.match_info["policy"]
    table = {
        key: it
        for key, it in state_of(request).policies.items()
        if reference in {it.id, it.name} and _sees(request, it)
    }
    if len(table) > 1:
        ids = ", ".join(sorted(table))
        raise Problem(409, "ambiguous", f"several policies have this name: {ids}; give the id")
    found = next(iter(table.values()), None) or find(
        request, table, Policy.TABLE, reference, "policy", visible=lambda _: True
    )
    await asking.make(changes.RemovePolicy(policy_id=found.id), expected=version_of(request))
    return reply(api.Removed(id=found.id))


def _sees(request: web.Request, policy: Policy) -> bool:
    workspace_id = workspace_of_policy(state_of(request), policy)
    return workspace_id is None or may(request, "policy.view", workspace_id)


def _policy(request: web.Request, policy: Policy) -> api.Policy:
    state = state_of(request)
    return api.Policy(
        **recorded(policy),
        kind=policy.kind,
        document=policy.document,
        scope=str(scope_of(state, policy)),
        workspace_id=workspace_of_policy(state, policy),
        project_id=policy.project_id,
        pool=policy.pool,
        by=policy.by,
    )


async def resolve_config(request: web.Request) -> web.Response:
    """Return a file as it would run in a workspace, and where each value comes from."""
    read_query(request, NoQuery)
    body, context = await wanted(request, api.ConfigWanted), context_of(request)
    workspace = find_workspace(request, body.workspace, "workspace")
    access_of(request).check(
        "policy.view", workspace.id, f"policies of workspace {workspace.name}"
    )
    reference = body.project if "/" in body.project else f"{workspace.id}/{body.project}"
    project = find_project(request, reference, "project")
    if project.workspace_id != workspace.id:
        message = f"project {project.name} is not of workspace {workspace.name}"
        items = [ProblemItem(path="project", message=message)]
        raise Problem(422, "invalid", f"project: {message}", errors=items)
    template = template_of(context, workspace.id, body.template) if body.template else None
    found, config = resolved(
        context,
        body.source,
        Place(workspace.id, project.id),
        template=template,
    )
    shown = hide(found.tree)
    values = [
        api.ResolvedValue(path=dotted(path), value=_at(shown, path), origin=str(origin))
        for path, origin in sorted(found.origins.items(), key=lambda it: dotted(it[0]))
        if path
    ]
    answer = api.ResolvedConfig(
        config=hide(config.expanded()), values=values, warnings=config.warnings
    )
    return reply(answer)


def _has_secrets(text: str) -> bool:
    """Return whether a document has secrets, which would be on record in clear."""
    tree = document.read(text).tree
    return hide(tree) is not tree


def _at(tree: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


_NO_SECRETS: Final = (
    "the document has a secret, and would be on record in clear: set it with `rung secret set`,"
    " and name it in the section `secrets`"
)

ROUTES: Final = (
    Route(
        "GET",
        "/workspaces/{workspace}/secrets",
        list_secrets,
        "The names of a workspace's secrets",
        api.SecretList,
        query=PageQuery,
        problems=READING,
        needs="secret.view",
        about="workspace",
    ),
    Route(
        "POST",
        "/workspaces/{workspace}/secrets",
        set_secret,
        "Set a secret of a workspace; it is encrypted and never shown",
        api.Secret,
        status=201,
        body=body_of(api.SecretWanted),
        idempotent=True,
        problems=CHANGING,
        needs="secret.edit",
        about="workspace",
    ),
    Route(
        "POST",
        "/workspaces/{workspace}/secrets/{secret}/delete",
        delete_secret,
        "Remove a secret of a workspace",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
        needs="secret.edit",
        about="workspace",
    ),
    Route(
        "GET",
        "/workspaces/{workspace}/templates",
        list_templates,
        "The templates of a workspace",
        api.TemplateList,
        query=PageQuery,
        problems=READING,
        needs="template.view",
        about="workspace",
    ),
    Route(
        "POST",
        "/workspaces/{workspace}/templates",
        set_template,
        "Set a template of a workspace",
        api.Template,
        status=201,
        body=body_of(api.TemplateWanted),
        idempotent=True,
        problems=CHANGING,
        needs="template.edit",
        about="workspace",
    ),
    Route(
        "POST",
        "/workspaces/{workspace}/templates/{template}/delete",
        delete_template,
        "Remove a template of a workspace",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
        needs="template.edit",
        about="workspace",
    ),
    Route(
        "GET",
        "/policies",
        list_policies,
        "The policies that one may see",
        api.PolicyList,
        query=PageQuery,
        needs="policy.view",
        about="workspace",
    ),
    Route(
        "POST",
        "/policies",
        set_policy,
        "Set a policy",
        api.Policy,
        status=201,
        body=body_of(api.PolicyWanted),
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/policies/{policy}/delete",
        delete_policy,
        "Remove a policy",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/config/resolve",
        resolve_config,
        "What a file becomes in a workspace, and where each value comes from",
        api.ResolvedConfig,
        body=body_of(api.ConfigWanted),
        problems=CREATING,
        needs="policy.view",
        about="workspace",
    ),
)
