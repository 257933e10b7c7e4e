"""Every error that Rung raises on purpose, in one tree.

    RungError
    ├── LedgerError               the ledger could not do what was asked
    │   ├── LedgerUnavailable     it may work in a moment (retriable)
    │   ├── LedgerDamaged         it will not work before a person acts
    │   ├── LedgerRefused         it does not let this process in, or not do that
    │   ├── LedgerMissing         it was not made yet, or not all of it
    │   ├── LedgerTrimmed         what was asked for is no longer kept
    │   ├── EventTooLarge         one event is more than a record may hold
    │   ├── Fenced                another writer owns the partition (start again)
    │   └── UndecodableEvent      a message that this version cannot read
    ├── ObjectError               an object store refused
    │   ├── ObjectUnavailable     it may work in a moment (retriable)
    │   ├── ObjectMissing
    │   └── ObjectDamaged         a digest or a size differs from the manifest
    ├── EffectRefused             what a sink acts on does not want it
    ├── EffectUnavailable         it may want it in a moment (retriable)
    └── InvalidConfig             an experiment file, refused with paths and fixes

A broken invariant is none of these: it is an `assert`, and the process dies.
"""

from typing import ClassVar


class RungError(Exception):
    """Whatever Rung raises on purpose; its message is written for the person who reads it."""

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later without anybody's doing."""


class LedgerError(RungError):
    """The ledger could not do what was asked."""


class LedgerUnavailable(LedgerError):
    """The ledger did not answer, or its disk is full; nothing was written."""

    retriable = True


class LedgerDamaged(LedgerError):
    """The ledger's file is truncated, corrupt, or written by a newer version."""


class LedgerRefused(LedgerError):
    """A login, a certificate or rights that are not good enough, until a person mends them.

    At its start a process ends with it; who trains by then waits as for a ledger that is away.
    """


class LedgerMissing(LedgerError):
    """There is no ledger there, or it is being made at this moment."""


class LedgerTrimmed(LedgerError):
    """A position that retention took away; reading goes on from a later one.

    Attributes:
        first: the first position that exists.
    """

    def __init__(self, message: str, *, first: int) -> None:
        self.first = first
        super().__init__(message)


class EventTooLarge(LedgerError):
    """An event is larger than the ledger takes, and is refused however often it is appended."""


class Fenced(LedgerError):
    """Another writer appended to a partition that this process believed its own.

    Whoever meets it forgets its state and folds the ledger again.
    """


class UndecodableEvent(LedgerError):
    """A message that is no event of a known type; it goes to the dead letters."""


class ObjectError(RungError):
    """The object store refused."""


class ObjectUnavailable(ObjectError):
    """The object store did not answer, or said that it is busy."""

    retriable = True


class ObjectMissing(ObjectError):
    """No object of that name."""


class ObjectDamaged(ObjectError):
    """An object's bytes are not the ones that its manifest promises."""


class EffectRefused(RungError):
    """What a sink acts on outside refuses, and will again."""


class EffectUnavailable(RungError):
    """What a sink acts on outside does not answer, or is busy."""

    retriable = True


class InvalidConfig(RungError):
    """An experiment file that cannot be run, with one line per problem.

    Attributes:
        problems: pairs of the field's path (`searcher.max_trials`) and what would be right.
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{path}: {text}" for path, text in problems))
