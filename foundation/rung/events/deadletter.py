"""Dead letters: messages that a component could not process, and what became of them."""

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
    """A message that a reader could not process; the reader went on with the next."""

    TYPE: ClassVar[str] = "rung.message.rejected.v1"
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    reason: str
    value: str
    """The message as text, undecodable bytes replaced."""


class MessageRetryRequested(_Message, frozen=True, kw_only=True):
    """An operator asked for another try of a rejected message.

    A processor folds the message's key again, from before the message on.
    """

    TYPE: ClassVar[str] = "rung.message.retry_requested.v1"
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")


class MessageDropped(_Message, frozen=True, kw_only=True):
    """An operator dropped a rejected message: its reader skips it from now on.

    A processor folds the message's key again, without the message; so does an audit.
    """

    TYPE: ClassVar[str] = "rung.message.dropped.v1"
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("host", "gateway")


class MessageTaken(_Message, frozen=True, kw_only=True):
    """A reader processed a message that it had rejected before, or skipped it as asked."""

    TYPE: ClassVar[str] = "rung.message.taken.v1"
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)
