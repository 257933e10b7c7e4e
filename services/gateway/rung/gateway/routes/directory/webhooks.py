"""Webhooks: create, change, switch on and off, remove; test them; what was delivered.

The directory decides on changes. What leads to a receiver is encrypted before that, for who may
change webhooks there; what a refused or replaced document referred to is deleted afterwards.
"""

import asyncio
import base64
import contextlib
import hashlib
import secrets
from typing import Annotated, Final, NamedTuple, TypeVar

import structlog
from aiohttp import web
from msgspec import Meta, structs

from rung import api
from rung.api import ProblemItem
from rung.api.webhook import DeliveryState
from rung.events import changes
from rung.events.directory import DirectoryChanged
from rung.events.errors import InvalidConfig, ObjectError, SecretError
from rung.events.webhook import RedeliveryRequested
from rung.gateway.access.authorization import access_of
from rung.gateway.context import Context, context_of, find_id, missing, reply
from rung.gateway.directory.asking import Asking
from rung.gateway.directory.state import Webhook, Workspace
from rung.gateway.problem import Problem, not_found
from rung.gateway.projections.deliveries import (
    Delivered,
    DeliveryProjection,
    read_deliveries,
    read_delivery,
    request_of,
    request_text,
)
from rung.gateway.requests.query import (
    NoQuery,
    PageQuery,
    read_cursor,
    read_query,
    write_cursor,
)
from rung.gateway.requests.version import version_of
from rung.gateway.requests.writes import is_repeated, key_of, once, reused, stamp, write
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find_project,
    find_workspace,
    listed,
    may,
    recorded,
    reply_thing,
    state_of,
    wanted,
)
from rung.gateway.timestamp import timestamp
from rung.runtime.fact_writer import now
from rung.subscription.address import AddressRefused, target_of
from rung.subscription.cloud_event import TEST, cloud_event
from rung.subscription.document import Format, Receiver, Subscription, Threshold, read, written
from rung.subscription.sealed import Seal

C = TypeVar("C", changes.SetWebhook, changes.RemoveWebhook)

_KEY_BYTES: Final = 32
_MAILS_MAX: Final = 20
_MAIL_LENGTH_MAX: Final = 254
_HINT: Final = "`rung webhook list` and GET /api/v1/webhooks list those that you see"

_log = structlog.get_logger()


class WebhookQuery(PageQuery, forbid_unknown_fields=True):
    """Which webhooks."""

    workspace: Annotated[
        str | None, Meta(description="only those of the workspace of this id or name")
    ] = None


async def list_webhooks(request: web.Request) -> web.Response:
    """List the webhooks that one may see, by id."""
    query = read_query(request, WebhookQuery)
    only = None if query.workspace is None else find_workspace(request, query.workspace)
    found = [
        it
        for it in state_of(request).webhooks.values()
        if (only is None or it.workspace_id == only.id)
        and may(request, "webhook.view", it.workspace_id)
    ]
    items, cursor = listed(found, query, lambda it: _shown(request, it))
    return reply(api.WebhookList(items=items, next_cursor=cursor))


async def show_webhook(request: web.Request) -> web.Response:
    """Show a webhook."""
    read_query(request, NoQuery)
    return _reply(request, _of_path(request, "webhook.view"))


async def create_webhook(request: web.Request) -> web.Response:
    """Create a webhook; answer with the key that signs its deliveries."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.WebhookWanted), Asking.of(request)
    workspace = find_workspace(request, body.workspace, "workspace")
    _check_edit(request, workspace)
    project = experiment = None
    if body.project is not None:
        name = body.project if "/" in body.project else f"{workspace.id}/{body.project}"
        project = find_project(request, name, "project").id
    if body.experiment is not None:
        experiment = await _experiment(request, body.experiment, workspace)
    change = changes.SetWebhook(
        webhook_id=asking.new_id(),
        workspace_id=workspace.id,
        name=body.name,
        document="",
        project_id=project,
        experiment_id=experiment,
    )
    subscription = Subscription(
        format=body.format,
        events=body.events,
        states=body.states,
        metrics=_thresholds(body.metrics),
        logs=body.logs,
    )
    new = Receiver(url=body.url, mail_to=body.mail_to, key=_drawn(body.format))
    key = await _set(request, asking, change, _Wanted(subscription, new))
    return _reply(request, _known(request, change), key=key, status=201)


async def change_webhook(request: web.Request) -> web.Response:
    """Change what a webhook is told, its name, or its address."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.WebhookChange), Asking.of(request)
    found = _of_path(request, "webhook.edit")
    before = _subscription(found)
    subscription = structs.replace(
        before,
        **{
            name: value
            for name in ("format", "events", "states", "logs")
            if (value := getattr(body, name)) is not None
        },
    )
    if body.metrics is not None:
        subscription = structs.replace(subscription, metrics=_thresholds(body.metrics))
    new = None
    if (body.url, body.mail_to, body.format) != (None, None, None):
        old, mail = await _opened(request, found), subscription.format == "email"
        new = Receiver(
            url=body.url if body.url is not None else "" if mail else old.url,
            mail_to=body.mail_to if body.mail_to is not None else old.mail_to if mail else [],
            key="" if subscription.format != "cloudevents" else old.key or _drawn("cloudevents"),
        )
    change = _change_of(found, name=body.name or found.name)
    key = await _set(request, asking, change, _Wanted(subscription, new), found)
    is_first = before.format != "cloudevents" and subscription.format == "cloudevents"
    return _reply(request, _known(request, change), key=key if is_first else None)


async def rotate_webhook_key(request: web.Request) -> web.Response:
    """Draw another key that signs deliveries, from the next attempt on; answer with it."""
    read_query(request, NoQuery)
    asking, found = Asking.of(request), _of_path(request, "webhook.edit")
    subscription = _subscription(found)
    if subscription.format != "cloudevents":
        raise Problem(
            409, "unsigned", f"deliveries of the format {subscription.format} are not signed"
        )
    new = structs.replace(await _opened(request, found), key=_drawn("cloudevents"))
    key = await _set(request, asking, _change_of(found), _Wanted(subscription, new), found)
    return _reply(request, _known(request, _change_of(found)), key=key)


async def activate_webhook(request: web.Request) -> web.Response:
    """Switch a webhook on, also one whose receiver answered 410."""
    return await _switch(request, active=True)


async def deactivate_webhook(request: web.Request) -> web.Response:
    """Switch a webhook off; what waits for it is dropped."""
    return await _switch(request, active=False)


async def _switch(request: web.Request, *, active: bool) -> web.Response:
    read_query(request, NoQuery)
    asking, found = Asking.of(request), _of_path(request, "webhook.edit")
    change = structs.replace(_change_of(found), active=active)
    await asking.make(change, expected=version_of(request))
    return _reply(request, _known(request, change))


async def delete_webhook(request: web.Request) -> web.Response:
    """Remove a webhook; what waits for it is dropped."""
    read_query(request, NoQuery)
    asking = Asking.of(request)
    done = await _before(asking, changes.RemoveWebhook)
    if done is not None:
        return reply(api.Removed(id=done.webhook_id))
    found = _of_path(request, "webhook.edit")
    change = changes.RemoveWebhook(webhook_id=found.id)
    await asking.make(change, expected=version_of(request))
    await _forget(context_of(request), found.id)
    return reply(api.Removed(id=found.id))


# Deliveries.


async def list_deliveries(request: web.Request) -> web.Response:
    """List what a webhook was told, the newest first."""
    query = read_query(request, PageQuery)
    found = _of_path(request, "webhook.view")
    rows = await context_of(request).models.read(
        DeliveryProjection,
        read_deliveries,
        found.id,
        before=read_cursor(query.cursor, (int,)),
        limit=query.limit + 1,
    )
    shown, more = rows[: query.limit], len(rows) > query.limit
    cursor = write_cursor(shown[-1].number) if more else None
    return reply(api.DeliveryList(items=[_delivery(row) for row in shown], next_cursor=cursor))


async def test_webhook(request: web.Request) -> web.Response:
    """Deliver an event that tells nothing but that the webhook works."""
    read_query(request, NoQuery)
    found, key = _of_path(request, "webhook.edit"), key_of(request)
    drawn = secrets.token_hex(16) if key is None else key
    digest = hashlib.sha256(f"{found.id}\n{drawn}".encode()).hexdigest()
    delivery_id = f"dlv_{digest[:32]}"
    data = {"webhook_id": found.id, "workspace_id": found.workspace_id, "name": found.name}
    source = f"/rung/{context_of(request).ledger.id}"
    event = cloud_event(delivery_id, source, TEST, found.name, now(), data)
    fact = RedeliveryRequested(
        webhook_id=found.id, delivery_id=delivery_id, experiment_id="", event=event
    )
    return await _deliver(request, found, fact)


async def redeliver(request: web.Request) -> web.Response:
    """Deliver something again, or now where it waits for its next attempt."""
    read_query(request, NoQuery)
    found, name = _of_path(request, "webhook.edit"), request.match_info["delivery"]
    row = await context_of(request).models.read(DeliveryProjection, read_delivery, found.id, name)
    if row is None:
        hint = (
            f"`rung webhook deliveries {found.name}` and GET"
            f" /api/v1/webhooks/{found.id}/deliveries list the newest"
        )
        raise missing(request, "delivery", name, hint)
    fact = RedeliveryRequested(
        webhook_id=found.id,
        delivery_id=row.id,
        experiment_id=row.experiment_id,
        event=row.cloud_event,
    )
    return await _deliver(request, found, fact)


async def _deliver(
    request: web.Request, found: Webhook, fact: RedeliveryRequested
) -> web.Response:
    context, key = context_of(request), key_of(request)
    async with once(context, key):
        before = await context.models.read(DeliveryProjection, request_of, key)
        if not await is_repeated(
            context, request_text(fact), before, DeliveryProjection, fact.webhook_id
        ):
            if not found.active:
                detail = f"webhook {found.name} is switched off; activate it first"
                raise Problem(409, "inactive", detail)
            await write(context, [stamp(context, key, fact)])
    return reply(api.DeliveryAsked(id=fact.delivery_id), status=202)


def _delivery(row: Delivered) -> api.Delivery:
    event = row.cloud_event
    state: DeliveryState = row.state  # type: ignore[assignment]
    return api.Delivery(
        id=row.id,
        requested_at=row.requested_at,
        type=event["type"],
        subject=event["subject"],
        experiment_id=row.experiment_id,
        state=state,
        attempts=row.attempts,
        attempted_at=row.attempted_at,
        status=row.status,
        reason=row.reason,
        took_ms=row.took_ms,
        next_at=None if row.next_ms is None else timestamp(row.next_ms),
    )


# Webhooks, and what leads to their receivers.


class _Wanted(NamedTuple):
    """What a document is to say."""

    subscription: Subscription
    receiver: Receiver | None
    """None: that of before."""


async def _set(
    request: web.Request,
    asking: Asking,
    change: changes.SetWebhook,
    asked: _Wanted,
    found: Webhook | None = None,
) -> str:
    """Seal a receiver and ask for the change; return the key that signs deliveries.

    Args:
        request: of the client.
        asking: the same as a request for a change.
        change: without its document.
        asked: of which the document is made.
        found: the webhook as it is now; None for a new one.

    Raises:
        Problem: a field is wrong, or the change is refused.
    """
    _check(request, asked)
    expected = version_of(request)
    if expected is None and found is not None:
        expected = found.version  # what does not change is as it was then
    if asked.receiver is None:
        change = structs.replace(change, document=written(asked.subscription))
        await asking.make(change, expected=expected)
        return ""
    seal, receiver = _seal_of(request), asked.receiver
    before = await _before(asking, changes.SetWebhook)
    sealed = ""
    if before is not None:
        sealed = read(before.document).sealed
        with contextlib.suppress(SecretError, ObjectError):
            known = await asyncio.to_thread(seal.open, before.webhook_id, sealed)
            if (known.url, known.mail_to) != (receiver.url, receiver.mail_to):
                raise reused("was used for another address; draw a new key for another request")
            receiver = known
    else:
        sealed = await asyncio.to_thread(seal.seal, change.webhook_id, receiver)
    subscription = structs.replace(asked.subscription, sealed=sealed, to=_to(asked))
    change = structs.replace(change, document=written(subscription))
    try:
        await asking.make(change, expected=expected)
    except Problem:
        if before is None:
            await _forget(context_of(request), change.webhook_id, sealed)
        raise
    if found is not None and before is None:
        await _forget(context_of(request), found.id, _subscription(found).sealed)
    return receiver.key


def _check(request: web.Request, asked: _Wanted) -> None:
    """Check what a document is to say, and where deliveries are to go.

    Raises:
        Problem: a field is wrong.
    """
    subscription, receiver = asked
    try:
        read(written(subscription))
    except InvalidConfig as error:
        raise _invalid(*error.problems) from None
    if receiver is None:
        return
    if subscription.format == "email":
        _check_mail(receiver)
        return
    if receiver.mail_to:
        raise _invalid(("mail_to", "is of the format `email` alone"))
    if not receiver.url:
        raise _invalid(("url", f"is required of the format `{subscription.format}`"))
    try:
        context_of(request).settings.webhooks.check(receiver.url)
    except AddressRefused as error:
        raise _invalid(("url", str(error))) from None


def _check_mail(receiver: Receiver) -> None:
    if receiver.url:
        raise _invalid(("url", "is of other formats than `email`"))
    if not 1 <= len(receiver.mail_to) <= _MAILS_MAX:
        raise _invalid(("mail_to", f"must be 1 to {_MAILS_MAX} addresses of e-mail"))
    for address in receiver.mail_to:
        name, at, host = address.partition("@")
        plain = address.isascii() and address.isprintable() and not set(address) & set(' ,;<>"()')
        if not (name and at and host and plain and "@" not in host):
            raise _invalid(("mail_to", f"{address[:100]!r} is no address such as ann@example.org"))
        if len(address) > _MAIL_LENGTH_MAX:
            raise _invalid(("mail_to", f"must have at most {_MAIL_LENGTH_MAX} characters each"))


def _invalid(*problems: tuple[str, str]) -> Problem:
    items = [ProblemItem(path=path, message=text) for path, text in problems]
    detail = "; ".join(f"{path}: {text}" for path, text in problems)
    return Problem(422, "invalid", detail, errors=items)


def _thresholds(given: list[api.MetricThreshold]) -> list[Threshold]:
    return [Threshold(metric=it.metric, above=it.above, below=it.below) for it in given]


def _drawn(format_: Format) -> str:
    """Return a new key of the Standard Webhooks specification; empty for who verifies none."""
    if format_ != "cloudevents":
        return ""
    return f"whsec_{base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}"


def _to(asked: _Wanted) -> str:
    """Return where a webhook leads, for people: nothing that unlocks it."""
    receiver = asked.receiver
    assert receiver is not None
    if asked.subscription.format == "email":
        return ", ".join(receiver.mail_to)
    return target_of(receiver.url, plain=True).host


def _seal_of(request: web.Request) -> Seal:
    context = context_of(request)
    if context.secrets is None:
        raise Problem(
            422,
            "no-secrets-key",
            "addresses of webhooks are encrypted, and this installation has no key for that: its"
            " operator sets RUNG_SECRETS_KEY for gateways, agents and webhooks (docs/SECRETS.md)",
        )
    return Seal(context.secrets)


async def _opened(request: web.Request, webhook: Webhook) -> Receiver:
    """Return what leads to the receiver of a webhook; nothing where that is lost."""
    seal, sealed = _seal_of(request), _subscription(webhook).sealed
    try:
        return await asyncio.to_thread(seal.open, webhook.id, sealed)
    except SecretError as error:
        _log.warning("receiver not opened", webhook=webhook.id, reason=str(error))
        return Receiver()


async def _forget(context: Context, webhook_id: str, sealed: str = "") -> None:
    """Delete what nothing refers to any more; what is left behind is encrypted."""
    if context.secrets is None:
        return
    try:
        await asyncio.to_thread(Seal(context.secrets).forget, webhook_id, sealed)
    except ObjectError as error:
        _log.warning("receiver not deleted", webhook=webhook_id, reason=str(error))


async def _before(asking: Asking, kind: type[C]) -> C | None:
    """Return the change that this request made when it was sent before."""
    found = await asking.before()
    if isinstance(found, DirectoryChanged) and isinstance(found.change, kind):
        return found.change
    return None


def _subscription(webhook: Webhook) -> Subscription:
    """Return what a webhook is told; nothing where a newer release set it."""
    try:
        return read(webhook.document)
    except InvalidConfig:
        return Subscription(to="set by a newer release")


def _change_of(webhook: Webhook, *, name: str | None = None) -> changes.SetWebhook:
    """Return the change that sets a webhook as it is."""
    return changes.SetWebhook(
        webhook_id=webhook.id,
        workspace_id=webhook.workspace_id,
        name=name or webhook.name,
        document=webhook.document,
        secret_id=webhook.secret_id,
        project_id=webhook.project_id,
        experiment_id=webhook.experiment_id,
        active=webhook.active,
    )


def _of_path(request: web.Request, permission: str) -> Webhook:
    """Return the webhook of the path, by id, name, or WORKSPACE/NAME, for who may do something.

    Raises:
        Problem: there is none that one sees, or several, or one may not.
    """
    reference, state = request.match_info["webhook"], state_of(request)
    place, slash, name = reference.partition("/")
    seen = [
        it
        for it in state.webhooks.values()
        if any(
            may(request, each, it.workspace_id)
            for each in ("workspace.view", "webhook.view", permission)
        )
    ]
    found = [it for it in seen if it.id == reference]
    if not found:
        found = [
            it
            for it in seen
            if it.name.lower() == (name if slash else reference).lower()
            and (not slash or place in {it.workspace_id, state.workspaces[it.workspace_id].name})
        ]
    if not found:
        raise not_found("webhook", reference, _HINT)
    if len(found) > 1:
        ids = ", ".join(sorted(it.id for it in found))
        detail = f"several webhooks have this name: {ids}; give the id, or WORKSPACE/NAME"
        raise Problem(409, "ambiguous", detail)
    access_of(request).check(permission, found[0].workspace_id, f"webhook {found[0].name}")
    return found[0]


def _check_edit(request: web.Request, workspace: Workspace) -> None:
    access_of(request).check(
        "webhook.edit", workspace.id, f"webhooks of workspace {workspace.name}"
    )


async def _experiment(request: web.Request, reference: str, workspace: Workspace) -> str:
    """Return the id of an experiment of a workspace.

    Raises:
        Problem: it is not there.
    """
    try:
        found = await find_id(request, reference, needs="experiment.view")
    except Problem as problem:
        raise _invalid(("experiment", problem.detail)) from None
    projects = await context_of(request).models.projects_of([found])
    if access_of(request).workspace_of(projects.get(found, "")) != workspace.id:
        raise _invalid(("experiment", f"{found} is not in the workspace {workspace.name}"))
    return found


def _known(request: web.Request, change: changes.SetWebhook) -> Webhook:
    return state_of(request).webhooks[change.webhook_id]


def _shown(request: web.Request, webhook: Webhook, key: str | None = None) -> api.Webhook:
    it = _subscription(webhook)
    return api.Webhook(
        **recorded(webhook),
        workspace_id=webhook.workspace_id,
        workspace=state_of(request).workspaces[webhook.workspace_id].name,
        project_id=webhook.project_id,
        experiment_id=webhook.experiment_id,
        active=webhook.active,
        format=it.format,
        to=it.to,
        events=it.events,
        states=it.states,
        metrics=[
            api.MetricThreshold(metric=each.metric, above=each.above, below=each.below)
            for each in it.metrics
        ],
        logs=it.logs,
        by=webhook.by,
        key=key or None,
    )


def _reply(
    request: web.Request, webhook: Webhook, *, key: str | None = None, status: int = 200
) -> web.Response:
    return reply_thing(_shown(request, webhook, key), webhook.version, status=status)


ROUTES: Final = (
    Route(
        "GET",
        "/webhooks",
        list_webhooks,
        "The webhooks that one may see, by id",
        api.WebhookList,
        query=WebhookQuery,
        problems=(404,),
        needs="webhook.view",
        about="workspace",
    ),
    Route(
        "POST",
        "/webhooks",
        create_webhook,
        "Create a webhook; the answer has the key that signs its deliveries, once",
        api.Webhook,
        status=201,
        body=body_of(api.WebhookWanted),
        idempotent=True,
        problems=CREATING,
        about="directory",
    ),
    Route(
        "GET",
        "/webhooks/{webhook}",
        show_webhook,
        "A webhook",
        api.Webhook,
        problems=(*READING, 409),
        needs="webhook.view",
        about="workspace",
    ),
    Route(
        "POST",
        "/webhooks/{webhook}",
        change_webhook,
        "Change what a webhook is told, its name, or its address",
        api.Webhook,
        body=body_of(api.WebhookChange),
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/webhooks/{webhook}/rotate",
        rotate_webhook_key,
        "Draw another key that signs deliveries; it is shown once",
        api.Webhook,
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/webhooks/{webhook}/activate",
        activate_webhook,
        "Switch a webhook on",
        api.Webhook,
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/webhooks/{webhook}/deactivate",
        deactivate_webhook,
        "Switch a webhook off",
        api.Webhook,
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/webhooks/{webhook}/delete",
        delete_webhook,
        "Remove a webhook",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
        about="directory",
    ),
    Route(
        "POST",
        "/webhooks/{webhook}/test",
        test_webhook,
        "Deliver a test event",
        api.DeliveryAsked,
        status=202,
        idempotent=True,
        problems=(*READING, 409, 422),
        needs="webhook.edit",
        about="workspace",
    ),
    Route(
        "GET",
        "/webhooks/{webhook}/deliveries",
        list_deliveries,
        "What a webhook was told, and how that went; the newest first",
        api.DeliveryList,
        query=PageQuery,
        problems=(*READING, 409),
        needs="webhook.view",
        about="workspace",
        complete=True,
    ),
    Route(
        "POST",
        "/webhooks/{webhook}/deliveries/{delivery}/redeliver",
        redeliver,
        "Deliver something again, or now where it waits for its next attempt",
        api.DeliveryAsked,
        status=202,
        idempotent=True,
        problems=(*READING, 409, 422),
        needs="webhook.edit",
        about="workspace",
    ),
)
