"""What the front doors to other frameworks refuse."""

from rung.events import RungError


class CannotFollow(RungError):
    """A framework is used in a way that could not be resumed; the message says what would do."""


class NotJoined(RungError):
    """The ranks of a run cannot find each other in a framework; the message says what to do."""
