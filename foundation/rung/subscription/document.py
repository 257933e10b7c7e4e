"""The document of a webhook in the directory: what is subscribed to, and how it is told.

What leads to the receiver (its address, which may hold a token, and the key that signs) lies in
an encrypted object, to which `sealed` refers; all else is readable.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from rung.config import log_pattern
from rung.events.errors import InvalidConfig, invalid_field

Format = Literal["cloudevents", "slack", "teams", "email"]

KINDS: Final[Mapping[str, str]] = {
    "rung.search.planned.v1": "an experiment has started",
    "rung.experiment.paused.v1": "an experiment was paused",
    "rung.experiment.resumed.v1": "an experiment was resumed",
    "rung.experiment.ended.v1": "an experiment has ended",
    "rung.trial.requested.v1": "a trial was created",
    "rung.trial.closed.v1": "a trial has ended",
    "rung.trial.exited.v1": "a run of a trial has ended",
    "rung.log.matched.v1": "a line matched a log policy of the experiment file",
}
"""The types of events that `events` may name, and what each tells."""
STATES: Final = ("completed", "errored", "canceled", "stopped")
THRESHOLDS_MAX: Final = 16
PATTERNS_MAX: Final = 16


class Threshold(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value of a metric from which on a trial is told of, once."""

    metric: str
    above: float | None = None
    below: float | None = None

    def passed(self, value: float) -> bool:
        """Return whether a value is past it."""
        return (self.above is not None and value > self.above) or (
            self.below is not None and value < self.below
        )

    def __str__(self) -> str:
        limits = [f"above {self.above:g}"] if self.above is not None else []
        limits += [f"below {self.below:g}"] if self.below is not None else []
        return f"{self.metric} {' or '.join(limits)}"


class Subscription(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What one webhook is told, and in which form."""

    format: Format = "cloudevents"
    to: str = ""
    """Where it leads, for people: a host, or addresses of e-mail."""
    sealed: str = ""
    """Refers to the receiver, which is encrypted (`rung.subscription.sealed`)."""
    events: list[str] = field(default_factory=list[str])
    """Types of events, of `KINDS`."""
    states: list[str] = field(default_factory=list[str])
    """Of ends of experiments and trials only those in these states; empty: in any."""
    metrics: list[Threshold] = field(default_factory=list[Threshold])
    logs: list[str] = field(default_factory=list[str])
    """Patterns (RE2) of printed lines; each run is told of once for each pattern."""


class Receiver(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What leads to a receiver; never in clear in the ledger."""

    url: str = ""
    key: str = ""
    """`whsec_…`: signs deliveries after the Standard Webhooks specification; empty: unsigned."""
    mail_to: list[str] = field(default_factory=list[str])


def read(document: str) -> Subscription:
    """Return what a document says.

    Raises:
        InvalidConfig: a field is wrong; says which, and what would be right.
    """
    try:
        found = msgspec.json.decode(document, type=Subscription)
    except msgspec.ValidationError as error:
        path, text = invalid_field(error)
        raise InvalidConfig([(path or "webhook", text)]) from error
    except msgspec.DecodeError as error:
        raise InvalidConfig([("webhook", f"must be JSON: {error}")]) from error
    problems = list(_problems(found))
    if problems:
        raise InvalidConfig(problems)
    return found


def written(subscription: Subscription) -> str:
    """Return the document that says it."""
    return msgspec.json.encode(subscription).decode()


def _problems(it: Subscription) -> Iterator[tuple[str, str]]:
    if not (it.events or it.metrics or it.logs):
        yield "events", "must name what to tell of, unless `metrics` or `logs` do"
    for field_, given, known in (("events", it.events, KINDS), ("states", it.states, STATES)):
        for name in given:
            if name not in known:
                yield field_, f"has no {name!r}; known are {', '.join(known)}"
    for field_, count, most in (
        ("metrics", len(it.metrics), THRESHOLDS_MAX),
        ("logs", len(it.logs), PATTERNS_MAX),
    ):
        if count > most:
            yield field_, f"must be at most {most}"
    for threshold in it.metrics:
        if threshold.above is None and threshold.below is None:
            yield "metrics", f"{threshold.metric!r} must have `above` or `below`"
    yield from (("logs", why) for pattern in it.logs if (why := _refusal(pattern)))


def _refusal(pattern: str) -> str:
    try:
        log_pattern.check(pattern)
    except log_pattern.PatternRefused as error:
        return str(error)
    return ""
