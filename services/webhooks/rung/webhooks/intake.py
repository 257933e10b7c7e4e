"""Intake: what happens, and who is to be told; a request on the ledger for each of them.

Nothing here waits for a receiver. What happened before a webhook was set, or more than
`AGE_MAX` ago (in an imported ledger, say), is not told.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never

import msgspec

from rung.events import Event, Payload
from rung.events.errors import EffectUnavailable
from rung.events.experiment import (
    ExperimentEnded,
    ExperimentPaused,
    ExperimentResumed,
    SearchPlanned,
)
from rung.events.metric import LogsPrinted
from rung.events.trial import (
    LogMatched,
    TrialClosed,
    TrialExited,
    TrialRequested,
    TrialValidated,
    comparable,
)
from rung.events.webhook import DeliveryRequested
from rung.subscription.cloud_event import cloud_event
from rung.webhooks.directory import Directory, Hook, Place
from rung.webhooks.message import LINE, METRIC

AGE_MAX: Final = timedelta(days=1)
_ONCE_MAX: Final = 100_000
"""So many thresholds and patterns are known to have been told of."""
_LINE_CHARACTERS: Final = 1024

OfSearches = (
    SearchPlanned
    | ExperimentPaused
    | ExperimentResumed
    | ExperimentEnded
    | TrialRequested
    | TrialClosed
)
OfExperiments = TrialExited | TrialValidated | LogMatched
OfLogs = LogsPrinted
_Told = OfSearches | OfExperiments | OfLogs

Found = tuple[str, str, dict[str, Any], str]
"""What is told: type, subject, data, and what makes it one of several of its event."""


class Intake:
    """Requests deliveries for events."""

    def __init__(self, directory: Directory, ledger_id: str | None = None) -> None:
        self._directory = directory
        self._source = f"/rung/{ledger_id}" if ledger_id else "/rung"
        self._once: OrderedDict[str, None] = OrderedDict()

    async def take(self, event: Event, key: str) -> Sequence[Payload]:
        """Return the deliveries that an event is to cause.

        Raises:
            EffectUnavailable: it is not known yet where the experiment belongs.
        """
        await self._directory.until_known(event.time)
        data = event.data
        hooks = [hook for hook in self._directory.hooks.values() if _may(hook, data)]
        if not hooks or _old(event.time):
            return []
        assert isinstance(data, _Told)
        place = self._directory.place_of(data.experiment_id)
        if place is None:
            raise EffectUnavailable(f"experiment {data.experiment_id} is not known yet")
        return [
            self._request(hook, event, key, found, place)
            for hook in hooks
            if event.time >= hook.created and hook.concerns(data.experiment_id, place)
            for found in self._found(hook, data)
        ]

    def _request(
        self, hook: Hook, event: Event, key: str, found: Found, place: Place
    ) -> DeliveryRequested:
        kind, subject, data, part = found
        # Of what is told once the id does not depend on the event: receivers drop a repetition.
        name = part or f"{key}"
        digest = hashlib.sha256(f"{hook.webhook_id}\n{name}".encode()).hexdigest()
        delivery_id = f"dlv_{digest[:32]}"
        about = {
            "workspace_id": place.workspace_id,
            "project_id": place.project_id,
            "experiment_name": place.name,
        }
        return DeliveryRequested(
            webhook_id=hook.webhook_id,
            delivery_id=delivery_id,
            experiment_id=data["experiment_id"],
            event=cloud_event(delivery_id, self._source, kind, subject, event.time, data | about),
        )

    def _found(self, hook: Hook, data: "_Told") -> Iterator[Found]:
        match data:
            case TrialValidated():
                yield from self._passed(hook, data)
            case LogsPrinted():
                yield from self._printed(hook, data)
            case (
                SearchPlanned()
                | ExperimentPaused()
                | ExperimentResumed()
                | ExperimentEnded()
                | TrialRequested()
                | TrialClosed()
                | TrialExited()
                | LogMatched()
            ):
                yield data.TYPE, subject_of(data), msgspec.to_builtins(data), ""
            case _:
                assert_never(data)

    def _passed(self, hook: Hook, data: TrialValidated) -> Iterator[Found]:
        for threshold in hook.subscription.metrics:
            value = comparable(data.metrics.get(threshold.metric))
            if value is None:
                continue
            part = f"{data.trial_id}\n{threshold}"
            if threshold.passed(value) and self._first(f"{hook.webhook_id}\n{part}"):
                about = {
                    "experiment_id": data.experiment_id,
                    "trial_id": data.trial_id,
                    "steps_completed": data.steps_completed,
                    "metric": threshold.metric,
                    "value": value,
                    "threshold": str(threshold),
                }
                yield METRIC, data.trial_id, about, part

    def _printed(self, hook: Hook, data: LogsPrinted) -> Iterator[Found]:
        for line in data.lines:
            for index in hook.patterns.found(line.text):
                part = f"{data.trial_id}.{data.run}\n{hook.subscription.logs[index]}"
                if self._first(f"{hook.webhook_id}\n{part}"):
                    about = {
                        "experiment_id": data.experiment_id,
                        "trial_id": data.trial_id,
                        "run": data.run,
                        "rank": line.rank,
                        "pattern": hook.subscription.logs[index],
                        "line": line.text[:_LINE_CHARACTERS],
                    }
                    yield LINE, data.trial_id, about, part

    def _first(self, name: str) -> bool:
        """Return whether something is told for the first time, as far as this process knows."""
        if name in self._once:
            return False
        self._once[name] = None
        if len(self._once) > _ONCE_MAX:
            self._once.popitem(last=False)
        return True


def subject_of(data: Payload) -> str:
    """Return what an event is about."""
    return str(getattr(data, "trial_id", None) or getattr(data, "experiment_id", ""))


def _may(hook: Hook, data: Payload) -> bool:
    """Return whether a webhook may be told of an event, wherever its experiment belongs."""
    it = hook.subscription
    if not hook.active:
        return False
    match data:
        case TrialValidated():
            return any(each.metric in data.metrics for each in it.metrics)
        case LogsPrinted():
            return bool(it.logs)
        case ExperimentEnded() | TrialClosed():
            return data.TYPE in it.events and (not it.states or data.state in it.states)
        case _:
            return data.TYPE in it.events


def _old(time: str) -> bool:
    try:
        return datetime.now(UTC) - datetime.fromisoformat(time) > AGE_MAX
    except ValueError:
        return True
