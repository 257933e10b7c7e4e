"""Pins: a checkpoint that an experiment starts from stays, or the experiment is not accepted.

A retirement may be decided at any moment, also while a submission is checked. So the gateway
appends the pin, awaits the decision of checkpoint-gc on it, and has folded by then all that was
decided before: either the pin is older than any retirement, or that is seen.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

from rung.events import UndecodableEvent, partition_of, topic
from rung.events.checkpoint import CheckpointPinned, PinAnswered
from rung.events.codec import decode_handled
from rung.gateway.context import Context
from rung.gateway.problem import unavailable
from rung.gateway.requests.writes import stamp, write
from rung.ledger import Record

_TYPES: Final = frozenset({PinAnswered.TYPE})


async def pin(context: Context, key: str | None, data: CheckpointPinned) -> str:
    """Pin a checkpoint; return why it does not stay, as far as it is decided; empty: it does.

    The read models have folded then what was decided before.

    Args:
        context: of the request.
        key: the origin that its Idempotency-Key stands for; None: there is none.
        data: the pin.

    Raises:
        LedgerUnavailable: the pin may not have been written.
        Problem: it is not decided in time.
    """
    partition = partition_of(data.experiment_id, context.ledger.partitions(topic.RETIREMENTS))
    position = await context.ledger.end(topic.RETIREMENTS, partition)
    # Each attempt is a fact of its own, also of a request that is repeated, and is answered.
    await write(context, [stamp(context, key, data, number=time.time_ns() // 1_000)])
    wait_s = context.settings.seen_timeout
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            async for records in context.ledger.follow(topic.RETIREMENTS, partition, position):
                answer = _answer(records, data)
                if answer is None:
                    continue
                seen = {(topic.RETIREMENTS, partition): records[-1].position}
                if await context.models.reached(seen, wait_s=wait_s):
                    return answer.refused
                break
    raise unavailable(
        f"it is not decided yet whether checkpoint {data.checkpoint_id} stays, from which the"
        " experiment starts: is the service checkpoint-gc running? Send the request again"
    )


def _answer(records: Sequence[Record], pinned: CheckpointPinned) -> PinAnswered | None:
    """Return the answer to a pin, None where it is not among the records."""
    for record in records:
        if record.key != pinned.experiment_id:
            continue
        with contextlib.suppress(UndecodableEvent):
            event = decode_handled(record.value, _TYPES)
            data = None if event is None else event.data
            wanted = pinned.checkpoint_id, pinned.by
            if isinstance(data, PinAnswered) and (data.checkpoint_id, data.by) == wanted:
                return data
    return None
