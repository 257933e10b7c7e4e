"""Dead letters: messages that a component could not take, and what became of them."""

from typing import ClassVar

from msgspec import Struct

from rung.events import topic


class MessageRejected(Struct, frozen=True, kw_only=True):
    """A message that a reader could not take; it stopped nothing else."""

    TYPE: ClassVar[str] = "rung.message.rejected.v1"
    TOPIC: ClassVar[str] = topic.DEADLETTER
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str
    """The message as text, undecodable bytes replaced."""


class MessageRetryRequested(Struct, frozen=True, kw_only=True):
    """An operator asks a reader to take a message again that it rejected.

    A processor folds the message's key again, from before the message on.
    """

    TYPE: ClassVar[str] = "rung.message.retry_requested.v1"
    TOPIC: ClassVar[str] = topic.DEADLETTER
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")

    topic: str
    partition: int
    position: int
    key: str
    reader: str


class MessageDropped(Struct, frozen=True, kw_only=True):
    """An operator gave a rejected message up: its reader passes over it from now on.

    A processor folds the message's key again, without the message; so does an audit.
    """

    TYPE: ClassVar[str] = "rung.message.dropped.v1"
    TOPIC: ClassVar[str] = topic.DEADLETTER
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")

    topic: str
    partition: int
    position: int
    key: str
    reader: str


class MessageTaken(Struct, frozen=True, kw_only=True):
    """A reader took a message that it had rejected before, or went on without it."""

    TYPE: ClassVar[str] = "rung.message.taken.v1"
    TOPIC: ClassVar[str] = topic.DEADLETTER
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    topic: str
    partition: int
    position: int
    key: str
    reader: str
