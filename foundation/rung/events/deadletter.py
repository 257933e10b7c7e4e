"""Dead letters: messages that a component could not process, and what became of them.

Where it is a processor, its rejection of a fact is a decision, and what operators ask are facts:
types that lie on any topic of decisions or of facts, which the event names. What a projection
could not fold is in its file alone.
"""

from typing import ClassVar

from msgspec import Struct

from rung.events import topic


class _Message(Struct, frozen=True, kw_only=True):
    """The message and the reader that an event is about."""

    TOPIC: ClassVar[str] = topic.DEADLETTER

    topic: str
    partition: int
    position: int
    key: str
    reader: str


class MessageRejected(_Message, frozen=True, kw_only=True):
    """A message that a relay or sink could not process; it went on with the next."""

    TYPE: ClassVar[str] = "rung.message.rejected.v1"
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    reason: str
    value: str
    """The message as text, undecodable bytes replaced."""


class MessageRetryRequested(_Message, frozen=True, kw_only=True):
    """An operator asked a relay or sink for another try of a rejected message."""

    TYPE: ClassVar[str] = "rung.message.retry_requested.v1"
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")


class MessageDropped(_Message, frozen=True, kw_only=True):
    """An operator dropped a rejected message: its relay or sink never processes it.

    Of what a gateway cannot show it says that it is not listed as open any more.
    """

    TYPE: ClassVar[str] = "rung.message.dropped.v1"
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")


class MessageTaken(_Message, frozen=True, kw_only=True):
    """A relay or sink processed a message that it had rejected before, or skipped it as asked."""

    TYPE: ClassVar[str] = "rung.message.taken.v1"
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)


class FactRejected(Struct, frozen=True, kw_only=True):
    """A processor could not decode or fold a fact; the fact's key stands still before it.

    Where its cause is not an operator's request but the fact itself, and the key stands still
    already, it has no effect: a replica wrote it that did not know of that earlier rejection.
    """

    TYPE: ClassVar[str] = "rung.fact.rejected.v1"
    TOPIC: ClassVar[str] = topic.ANY_DECISIONS
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")

    topic: str
    """On which this decision lies."""
    key: str
    partition: int
    position: int
    """Of the fact."""
    reader: str
    """The processor."""
    reason: str
    value: str
    """The beginning of the fact's record as text, undecodable bytes replaced."""


class KeyResumed(Struct, frozen=True, kw_only=True):
    """A key went on: a retry or drop was carried out, and all facts that waited are decided."""

    TYPE: ClassVar[str] = "rung.key.resumed.v1"
    TOPIC: ClassVar[str] = topic.ANY_DECISIONS
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")

    topic: str
    """On which this decision lies."""
    key: str
    reader: str
    """The processor."""


class _Request(Struct, frozen=True, kw_only=True):
    """What an operator asks of a rejection.

    It has an effect only while the key stands still because of this very rejection.
    """

    TOPIC: ClassVar[str] = topic.ANY_FACTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")

    topic: str
    """On which this fact lies."""
    key: str
    reader: str
    """The processor that rejected the fact."""
    partition: int
    position: int
    """Of the rejected fact when this was asked, for people."""
    rejection: str
    """Id of the decision that the fact was rejected, by which it is meant."""


class FactRetried(_Request, frozen=True, kw_only=True):
    """An operator had a rejected fact decided again, and then all facts that waited after it."""

    TYPE: ClassVar[str] = "rung.fact.retried.v1"


class FactDropped(_Request, frozen=True, kw_only=True):
    """An operator dropped a rejected fact: the facts that waited after it are decided."""

    TYPE: ClassVar[str] = "rung.fact.dropped.v1"
