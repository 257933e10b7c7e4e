"""The dead letters: messages that some reader could not fold."""

from typing import Final

from msgspec import Struct, field

from rung.events import Event, topic
from rung.events.deadletter import MessageRejected

KEPT: Final = 1_000
"""How many letters of a topic are kept at hand; the ledger has them all."""
_VALUE_LENGTH: Final = 4_096


class Letter(Struct):
    """One rejected message; `number` counts those of its topic from 0."""

    number: int
    at: str
    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str


class Letters(Struct):
    """The newest dead letters of one topic, the oldest first."""

    topic: str
    count: int = 0
    newest: list[Letter] = field(default_factory=list[Letter])


class LetterView:
    """The fold of the topic `deadletter`."""

    name: Final = "deadletter"
    facts: Final = topic.DEADLETTER
    decisions: Final[tuple[str, ...]] = ()
    version: Final = 1
    state_type: Final = Letters

    def initial(self, key: str) -> Letters:
        """Return a topic without dead letters."""
        return Letters(key)

    def evolve(self, state: Letters, event: Event) -> None:
        """Fold a dead letter."""
        data = event.data
        if not isinstance(data, MessageRejected):
            return
        letter = Letter(
            number=state.count,
            at=event.time,
            topic=data.topic,
            partition=data.partition,
            position=data.position,
            key=data.key,
            reader=data.reader,
            reason=data.reason,
            value=data.value[:_VALUE_LENGTH],
        )
        state.count += 1
        state.newest.append(letter)
        if len(state.newest) > 2 * KEPT:
            del state.newest[:-KEPT]
