"""Sealed ledgers, and whatever can be altered in what they hold."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from rung.events.codec import PAYLOADS
from rung.events.docs.asyncapi import example_of
from rung.ledger import Draft, Ledger
from rung.ledger.seals import SEALED, SealKey
from rung.runtime.sealing import sealer as sealing
from rung.runtime.sealing.sealer import Sealer, SealSettings

KINDS = sorted(kind for kind, record in PAYLOADS.items() if record.TOPIC in SEALED)
"""Every type of event that is sealed."""
RARELY = SealSettings(heads_every_s=3600)


def example(kind: str) -> Draft:
    """Return an example of a type, ready to be appended."""
    event = example_of(kind)
    return Draft.of(event)


def altered(value: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield an event with each of its fields altered, or removed, and the field's path."""
    event = json.loads(value)
    for path in list(_paths(event)):
        for change in (_other, None):
            made = copy.deepcopy(event)
            *parents, name = path
            place: Any = made
            for step in parents:
                place = place[step]
            if change is None:
                del place[name]
            else:
                place[name] = change(place[name])
            yield ".".join(map(str, path)), json.dumps(made).encode()


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    elif path:
        yield path
    for name, item in items:
        yield from _paths(item, (*path, name))


def _other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[:-1] + ("b" if value[-1:] == "a" else "a")
        case _:
            return "something"


async def seal(ledger: Ledger, key: SealKey, *, records: int | None = None) -> None:
    """Seal all that a ledger holds.

    Args:
        ledger: which.
        key: of the installation.
        records: so many in a range, in place of what is usual.
    """
    usual = sealing.RANGE_RECORDS_MAX, sealing.READ
    if records is not None:
        sealing.RANGE_RECORDS_MAX = sealing.READ = records
    try:
        sealer = Sealer(ledger, key, settings=RARELY)
        await sealer.start()
        await sealer.finish()
    finally:
        sealing.RANGE_RECORDS_MAX, sealing.READ = usual
