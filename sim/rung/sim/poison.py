"""Poison: records that are no events, and releases of processors that raise on some events.

A fact on which a faulty release raises is decided by another release after a retry. It must not be
dropped, for what it reports would be missing. What may be dropped as well is *droppable*: records
that no release can decode, and requests about trials that never exist.
"""

import copy
import hashlib
import random
from typing import Any, Final

import msgspec

from rung.events import Event, Payload, UndecodableEvent, decode, encode
from rung.events.trial import TrialKillRequested, trial_id_of
from rung.ledger import Record
from rung.runtime import Processor
from rung.runtime.processor.processor import S

MENDED: Final = 0
"""The release that raises on nothing."""
FAULTY: Final = (1, 2)
"""Releases that raise, each on other events."""
_UNUSED: Final = 10_000
"""Above the indices of trials."""
_RANGE: Final = 1 << 32
_WAYS: Final = 3
"""Before an event is folded, behind it, or when it is decided."""


def damaged(event: Event, chance: random.Random) -> bytes:
    """Return the bytes of an event such that no release can decode them.

    They are cut off, of an unknown type, or have fields of other types.
    """
    value = encode(event)
    wire = msgspec.json.decode(value)
    match chance.randrange(3):
        case 0:
            return value[: chance.randrange(len(value))]
        case 1:
            wire["type"] = "rung.trial.frozen.v1"
        case _:
            wire["data"] = {name: [{}] for name in wire["data"]}
    return msgspec.json.encode(wire)


def is_junk(record: Record) -> bool:
    """Return whether no release can decode a record."""
    try:
        decode(record.value)
    except UndecodableEvent:
        return True
    return False


def droppable_fact(experiment_id: str, chance: random.Random) -> Payload:
    """Return a fact that changes nothing, on which one of the faulty releases raises."""
    trial_id = trial_id_of(experiment_id, _UNUSED + chance.randrange(_UNUSED))
    return TrialKillRequested(experiment_id=experiment_id, trial_id=trial_id)


def is_droppable(record: Record) -> bool:
    """Return whether a search ends in the same way without a fact."""
    return is_junk(record) or _changes_nothing(decode(record.value).data)


def _changes_nothing(data: Payload) -> bool:
    if not isinstance(data, TrialKillRequested):
        return False
    return int(data.trial_id.rpartition(".")[2]) >= _UNUSED


def as_released(processor: Processor[S], release: int, rate: float, seed: int) -> Processor[S]:
    """Return a processor as a release has it.

    Args:
        processor: of the mended release.
        release: its number.
        rate: the share of events on which some faulty release raises.
        seed: with it the choice of these events changes.
    """
    if release == MENDED:
        return processor

    def way(event: Payload) -> int:
        """Return in which way it raises on an event; `_WAYS`: in none."""
        value = msgspec.json.encode([seed, event.TYPE, event])
        drawn = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest())
        drawn, share = divmod(drawn, _RANGE)
        drawn, found = divmod(drawn, _WAYS)
        breaks = share < rate * _RANGE or _changes_nothing(event)
        return found if breaks and FAULTY[drawn % len(FAULTY)] == release else _WAYS

    def evolve(state: S, event: Any) -> None:
        if (found := way(event)) == 0:
            raise KeyError(release)
        processor.evolve(state, event)
        if found == 1:
            raise ValueError(release)

    def decide(state: S, fact: Any) -> list[Payload]:
        if way(fact) == 2:
            raise AssertionError(release)
        return processor.decide(state, fact)

    it = copy.copy(processor)
    vars(it).update(evolve=evolve, decide=decide)
    return it
