"""A sink service of one module: posts the end of each experiment to an URL."""

import asyncio
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Final

import msgspec

from rung.backoff import Backoff
from rung.events import Event, Payload, topic
from rung.events.errors import EffectRefused, EffectUnavailable
from rung.events.experiment import ExperimentEnded
from rung.runtime.service import Service
from rung.runtime.sink.sink import Sink


async def deliver(event: Event, key: str) -> Sequence[Payload]:
    """Post an event.

    Raises:
        EffectUnavailable: the receiver is away, or busy.
        EffectRefused: it does not want it.
    """
    request = urllib.request.Request(  # noqa: S310 - the test's own URL
        os.environ["TOY_WEBHOOK_URL"],
        msgspec.json.encode(event.data),
        {"Content-Type": "application/json", "Idempotency-Key": key},
    )
    try:
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=10).close())  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        with error:
            kind = EffectUnavailable if error.code >= 500 else EffectRefused
            raise kind(f"the receiver answered {error.code}") from error
    except OSError as error:
        raise EffectUnavailable(f"the receiver does not answer: {error}") from error
    return []


SERVICE: Final = Service(
    "webhook",
    lambda _: (
        Sink(
            "webhook",
            topic.SEARCHES,
            "/rung/webhook",
            ExperimentEnded,
            deliver,
            backoff=Backoff(0.05, 0.5),
        ),
    ),
)
