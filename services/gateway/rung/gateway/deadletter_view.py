"""The dead letters: messages that some reader could not take, and what became of them.

A dead letter is *open* until an operator asks for something. One that is to be tried again is
*retrying* until its reader answers: then it is *taken*, or open again, with the newer reason. A
reader's first rejection of a message is repeated whenever the reader meets it, under one number,
and counts once; a rejection that answers a request has a number of its own. A letter becomes taken
without a request as well, where a newer release folds its message. One that is *dropped* stays so.
"""

from typing import Final, Literal, assert_never

from msgspec import Struct, field

from rung.events import Event, topic
from rung.events.deadletter import (
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)

KEPT: Final = 1_000
"""How many letters of a topic are kept at hand; the ledger has them all."""
_VALUE_LENGTH: Final = 4_096

Request = MessageRetryRequested | MessageDropped
LetterState = Literal["open", "retrying", "dropped", "taken"]
_SETTLED: Final = frozenset({"dropped", "taken"})


class Letter(Struct):
    """One rejected message; `number` counts the rejections of its topic from 0."""

    number: int
    at: str
    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str
    state: LetterState = "open"

    @property
    def id(self) -> str:
        """Its reader and its place, as `id_of` writes them."""
        return id_of(self)

    @property
    def settled(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in _SETTLED


class Letters(Struct):
    """The newest dead letters of one topic, the oldest first."""

    topic: str
    count: int = 0
    """Of rejections, so far."""
    letters: dict[str, Letter] = field(default_factory=dict[str, Letter])
    """By id."""
    forgotten: int = 0
    """How many open ones are no longer at hand."""
    requests: dict[str, str] = field(default_factory=dict[str, str])
    """Origin of a client's request (`client/<key>`) → what it asked for."""

    @property
    def open(self) -> int:
        """How many are open, at hand or not."""
        return self.forgotten + sum(it.state == "open" for it in self.letters.values())


class LetterView:
    """The fold of the topic `deadletter`."""

    name: Final = "deadletter"
    facts: Final = topic.DEADLETTER
    decisions: Final[tuple[str, ...]] = ()
    version: Final = 2
    state_type: Final = Letters

    def initial(self, key: str) -> Letters:
        """Return a topic without dead letters."""
        return Letters(key)

    def evolve(self, state: Letters, event: Event) -> None:
        """Fold a rejection, a request, or its answer."""
        data = event.data
        match data:
            case MessageRejected():
                _reject(state, event, data)
            case MessageRetryRequested() | MessageDropped():
                _ask(state, event, data)
            case MessageTaken():
                known = state.letters.get(id_of(data))
                if known is None:
                    state.forgotten = max(state.forgotten - 1, 0)
                elif not known.settled:
                    known.state = "taken"
            case _:
                pass


def id_of(message: Letter | MessageRejected | Request | MessageTaken) -> str:
    """Return the id of a dead letter: who could not take a message, and where it lies."""
    return f"{message.reader}/{message.topic}/{message.partition}/{message.position}"


def wish_of(data: Request) -> str:
    """Return in words what a client asked for."""
    match data:
        case MessageRetryRequested():
            return f"retry {id_of(data)}"
        case MessageDropped():
            return f"drop {id_of(data)}"
        case _:
            assert_never(data)


def _reject(state: Letters, event: Event, data: MessageRejected) -> None:
    name = id_of(data)
    known = state.letters.pop(name, None)
    state.letters[name] = Letter(
        number=state.count,
        at=event.time,
        topic=data.topic,
        partition=data.partition,
        position=data.position,
        key=data.key,
        reader=data.reader,
        reason=data.reason,
        value=data.value[:_VALUE_LENGTH],
        state="dropped" if known is not None and known.state == "dropped" else "open",
    )
    state.count += 1
    if len(state.letters) > 2 * KEPT:
        _forget(state)


def _ask(state: Letters, event: Event, data: Request) -> None:
    if event.origin is not None and event.origin.startswith("client/"):
        state.requests.setdefault(event.origin, wish_of(data))
    known = state.letters.get(id_of(data))
    if known is not None and not known.settled:
        known.state = "dropped" if isinstance(data, MessageDropped) else "retrying"


def _forget(state: Letters) -> None:
    """Keep so many letters, those that are settled the least."""
    least = sorted(state.letters.values(), key=lambda it: (not it.settled, it.number))
    for letter in least[:-KEPT]:
        state.forgotten += letter.state == "open"
        del state.letters[letter.id]
