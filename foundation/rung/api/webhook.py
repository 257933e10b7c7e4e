"""Answers and bodies about webhooks and what was delivered to them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rung.api.directory import Recorded
from rung.api.listing import Listing
from rung.api.states import Time

Format = Literal["cloudevents", "slack", "teams", "email"]
DeliveryState = Literal["waiting", "delivered", "dead", "dropped", "gone"]

_EVENTS = Annotated[list[str], Meta(description="types of events (docs/WEBHOOKS.md)")]
_STATES = Annotated[
    list[str], Meta(description="of ends only those in these states; empty: in any")
]
_LOGS = Annotated[list[str], Meta(description="patterns (RE2) of printed lines")]
_URL = Annotated[str, Meta(description="of the receiver; it is encrypted and never shown")]
_MAIL = Annotated[list[str], Meta(description="addresses, of the format `email`")]


class MetricThreshold(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value of a metric from which on a trial is told of, once."""

    metric: str
    above: float | None = None
    below: float | None = None


class Webhook(Recorded, kw_only=True):
    """A webhook; its address and its key are never shown."""

    workspace_id: str
    workspace: Annotated[str, Meta(description="its name")]
    project_id: Annotated[str | None, Meta(description="it tells of this project alone")]
    experiment_id: Annotated[str | None, Meta(description="it tells of this experiment alone")]
    active: bool
    format: Format
    to: Annotated[str, Meta(description="where it leads: a host, or addresses of e-mail")]
    events: _EVENTS
    states: _STATES
    metrics: list[MetricThreshold]
    logs: _LOGS
    by: Annotated[str, Meta(description="id of the user who set it last")]
    key: Annotated[
        str | None,
        Meta(
            description="`whsec_…`, which signs deliveries; shown once, where it is drawn, and"
            " null elsewhere"
        ),
    ] = None


class WebhookList(Listing[Webhook], kw_only=True):
    """A page of webhooks, by id."""

    items: list[Webhook]
    next_cursor: str | None


class WebhookWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new webhook."""

    name: Annotated[str, Meta(description="unique in its workspace")]
    workspace: Annotated[str, Meta(description="id or name")] = "default"
    project: Annotated[
        str | None, Meta(description="tell of this project alone: name in the workspace, or id")
    ] = None
    experiment: Annotated[str | None, Meta(description="tell of this experiment alone")] = None
    format: Format = "cloudevents"
    url: _URL = ""
    mail_to: _MAIL = []
    events: _EVENTS = []
    states: _STATES = []
    metrics: list[MetricThreshold] = []
    logs: _LOGS = []


class WebhookChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What changes of a webhook; null: it stays as it is."""

    name: str | None = None
    format: Format | None = None
    url: _URL | None = None
    mail_to: _MAIL | None = None
    events: _EVENTS | None = None
    states: _STATES | None = None
    metrics: list[MetricThreshold] | None = None
    logs: _LOGS | None = None


class Delivery(Struct, kw_only=True):
    """Something that a webhook was to be told of, and how that went."""

    id: Annotated[str, Meta(description="the `webhook-id` of each attempt")]
    requested_at: Time
    type: Annotated[str, Meta(description="of the event")]
    subject: str
    experiment_id: str
    state: DeliveryState
    attempts: int
    attempted_at: Annotated[Time | None, Meta(description="when the last attempt ended")]
    status: Annotated[int | None, Meta(description="of the last answer by HTTP")]
    reason: Annotated[str, Meta(description="why the last attempt failed")]
    took_ms: int
    next_at: Annotated[Time | None, Meta(description="when the next attempt is due")]


class DeliveryList(Listing[Delivery], kw_only=True):
    """A page of deliveries, the newest first."""

    items: list[Delivery]
    next_cursor: str | None


class DeliveryAsked(Struct, kw_only=True):
    """A delivery that was asked for; GET …/deliveries shows how it went."""

    id: str
