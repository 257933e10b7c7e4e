"""Errors of the framework adapters."""

from rung.events import RungError


class NotResumable(RungError):
    """A framework is used in a way that cannot be resumed; the message has the fix."""


class NotJoined(RungError):
    """The ranks of a run cannot be connected in a framework; the message has the fix."""
