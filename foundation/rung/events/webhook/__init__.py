"""Events of webhooks: what is to be delivered, and how attempts to deliver it ended."""

from typing import Any, ClassVar, Literal

from msgspec import Struct

from rung.events import topic

AttemptOutcome = Literal["delivered", "failed", "dead", "dropped", "gone"]
"""delivered: the receiver has it. failed: another attempt will follow. dead: it was given up; a
person may ask for another attempt. dropped: the webhook is removed or switched off. gone: the
receiver answered that it wants nothing any more: dead, as all that waits for it."""


class DeliveryFact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact about a delivery of one webhook."""

    TOPIC: ClassVar[str] = topic.DELIVERIES
    WRITER: ClassVar[str] = "webhooks"
    READERS: ClassVar[tuple[str, ...]] = ("webhooks", "gateway")

    webhook_id: str
    delivery_id: str
    """The same on every attempt, and wherever the cause is read again."""


class DeliveryRequested(DeliveryFact, frozen=True, kw_only=True, omit_defaults=True):
    """Something happened that a webhook subscribes to."""

    TYPE: ClassVar[str] = "rung.delivery.requested.v1"

    experiment_id: str
    """Deliveries of one experiment are in order; empty: of none."""
    event: dict[str, Any]
    """What the receiver gets: a CloudEvent."""


class RedeliveryRequested(DeliveryRequested, frozen=True, kw_only=True, omit_defaults=True):
    """A person asked to deliver something again, or to send a test."""

    TYPE: ClassVar[str] = "rung.delivery.again_requested.v1"
    WRITER: ClassVar[str] = "gateway"


class DeliveryAttempted(DeliveryFact, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt to deliver ended."""

    TYPE: ClassVar[str] = "rung.delivery.attempted.v1"

    attempt: int
    """Counted from 1; 0: there was none."""
    outcome: AttemptOutcome
    status: int | None = None
    """Of the answer by HTTP."""
    reason: str = ""
    took_ms: int = 0
    next_ms: int | None = None
    """When the next attempt is due, since 1970."""
