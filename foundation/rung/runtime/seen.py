"""Remembers the newest cause of each key, for a reader that acts on decisions.

A reader that folds keeps that with the state of the key, and one that only forwards leaves it to
its destination. One that does what a decision asks (deletes files) must not do what no reader
takes: a decision that a replica wrote late, perhaps with older code, about a fact that was decided
otherwise meanwhile. Repeating what was done is harmless; this is not.

It also remembers what could not be done, and was postponed.
"""

from typing import Final

import msgspec
import structlog
from msgspec import Struct, field

from rung.events import Event, LedgerError, UndecodableEvent, decode_from
from rung.ledger import Ledger

_READ_MAX: Final = 2_000
_SAVE_EVERY: Final = 1_000

_log = structlog.get_logger()


class _Image(Struct):
    position: int = 0
    """Behind the last decision that was seen."""
    causes: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    postponed: list[int] = field(default_factory=list[int])
    """Positions of decisions that were not acted on yet."""


class Seen:
    """What was seen of one partition of a topic of decisions."""

    def __init__(self, ledger: Ledger, name: str, topic: str, partition: int) -> None:
        self._ledger = ledger
        self._name = f"seen/{name}"
        self._topic = topic
        self._partition = partition
        self._image = _Image()
        self._saved = 0
        self._urgent = False

    @property
    def postponed(self) -> tuple[int, ...]:
        """Where decisions lie that are still to be acted on."""
        return tuple(self._image.postponed)

    def postpone(self, position: int) -> None:
        """Take note that the decision at a position is still to be acted on."""
        if position not in self._image.postponed:
            self._image.postponed.append(position)
            self._urgent = True

    def settle(self, position: int) -> None:
        """Take note that what was postponed is done."""
        self._image.postponed.remove(position)
        self._urgent = True

    async def open(self, position: int) -> int:
        """Learn of what lies before a position; return where to go on, there or later.

        Raises:
            LedgerError: the ledger does not answer.
        """
        self._image = await self._load()
        self._saved = self._image.position
        while self._image.position < position:
            count = min(position - self._image.position, _READ_MAX)
            place = (self._topic, self._partition, self._image.position)
            records = await self._ledger.read(*place, count)
            if not records:  # the ledger ends before: whoever follows it from there says so
                return position
            for record in records:
                try:
                    self.is_new(record.position, decode_from(self._topic, record.value))
                except UndecodableEvent:
                    self._image.position = record.position + 1
        return self._image.position

    def is_new(self, position: int, event: Event) -> bool:
        """Take note of the decision at a position; return whether readers take it."""
        self._image.position = position + 1
        assert event.causeposition is not None, event
        assert event.causeindex is not None, event
        cause = (event.causeposition, event.causeindex)
        if cause <= self._image.causes.get(event.key, (-1, -1)):
            return False
        self._image.causes[event.key] = cause
        return True

    async def save(self) -> None:
        """Save what was seen, now and then; what was seen must have been acted on.

        What was postponed, or is no longer, is saved at once.
        """
        if self._image.position - self._saved < _SAVE_EVERY and not self._urgent:
            return
        value = msgspec.json.encode(self._image)
        try:
            await self._ledger.save_snapshot(self._name, self._partition, value)
            self._urgent = False
        except LedgerError as error:
            _log.warning("no snapshot saved", name=self._name, reason=str(error))
        self._saved = self._image.position

    async def _load(self) -> _Image:
        try:
            value = await self._ledger.snapshot(self._name, self._partition)
            return _Image() if value is None else msgspec.json.decode(value, type=_Image)
        except (LedgerError, msgspec.DecodeError) as error:
            _log.warning("snapshot ignored", name=self._name, reason=str(error))
            return _Image()
