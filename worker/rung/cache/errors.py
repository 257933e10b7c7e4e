"""Errors of data sources and of their cache."""

from rung.events import RungError


class DataError(RungError):
    """A source that cannot be used; the message says which and why."""


class DataUnavailable(DataError):
    """A source that does not answer at this moment."""

    retriable = True


class DataChanged(DataError):
    """A file is another than when the source was listed: list it again."""

    retriable = True


class NoRoom(DataError):
    """The cache is full of what live trials use."""

    retriable = True
