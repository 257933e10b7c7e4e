"""Every error that Rung raises on purpose, in one tree.

    RungError
    ├── LedgerError               the ledger failed or refused an operation
    │   ├── LedgerUnavailable     it may work in a moment (retriable)
    │   ├── LedgerDamaged         it will not work before a person acts
    │   ├── LedgerRefused         authentication or authorization failed
    │   ├── LedgerMissing         it does not exist yet, or not all of it
    │   ├── LedgerTrimmed         retention removed the position
    │   ├── EventTooLarge         the event is larger than a record may be
    │   ├── Fenced                another writer owns the partition (start again)
    │   └── UndecodableEvent      this version cannot read the message
    ├── ObjectError               the object store failed or refused
    │   ├── ObjectUnavailable     it may work in a moment (retriable)
    │   ├── ObjectMissing
    │   └── ObjectDamaged         a digest or a size differs from the manifest
    ├── SecretError               a secret cannot be encrypted or decrypted
    │   └── SecretsUnavailable    the service of its key may work in a moment (retriable)
    ├── EffectRefused             the target of a sink refused
    ├── EffectUnavailable         the target of a sink may work in a moment (retriable)
    └── InvalidConfig             an experiment file, refused with paths and fixes

A broken invariant is an `assert` instead, and the process dies.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec


class RungError(Exception):
    """What Rung raises on purpose; its message is for users."""

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later without intervention."""


class LedgerError(RungError):
    """The ledger failed or refused an operation."""


class LedgerUnavailable(LedgerError):
    """The ledger did not answer, or its disk is full; nothing was written."""

    retriable = True


class LedgerDamaged(LedgerError):
    """The ledger's file is truncated, corrupt, or written by a newer version."""


class LedgerRefused(LedgerError):
    """Authentication or authorization failed, until a person corrects it.

    A process that is starting ends with it; one that trains waits as for an unavailable ledger.
    """


class LedgerMissing(LedgerError):
    """The ledger does not exist, or is being created."""


class LedgerTrimmed(LedgerError):
    """Retention removed the position; reading goes on from a later one.

    Attributes:
        first: the first position that exists.
    """

    def __init__(self, message: str, *, first: int) -> None:
        self.first = first
        super().__init__(message)


class EventTooLarge(LedgerError):
    """The event is larger than the ledger accepts; appending it again fails again."""


class Fenced(LedgerError):
    """Another writer appended to this process's partition: its state must be folded again."""


class UndecodableEvent(LedgerError):
    """The message is no event of a known type; it becomes a dead letter."""


class ObjectError(RungError):
    """The object store failed or refused."""


class ObjectUnavailable(ObjectError):
    """The object store did not answer, or is busy."""

    retriable = True


class ObjectMissing(ObjectError):
    """There is no object of that name."""


class ObjectDamaged(ObjectError):
    """An object's digest or size differs from its manifest."""


class SecretError(RungError):
    """A secret cannot be encrypted or decrypted; the message holds none."""


class SecretsUnavailable(SecretError):
    """The service of a key did not answer, or is busy."""

    retriable = True


class EffectRefused(RungError):
    """The target of a sink refused, and will refuse again."""


class EffectUnavailable(RungError):
    """The target of a sink did not answer, or is busy."""

    retriable = True


class InvalidConfig(RungError):
    """The experiment file cannot be run; one line per problem.

    Attributes:
        problems: pairs of the field's path (`searcher.max_trials`) and what would be right.
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{path}: {text}" for path, text in problems))


def invalid_field(error: msgspec.ValidationError, kind: Any = None) -> tuple[str, str]:
    """Return the path of an invalid field (empty for the whole value) and its error.

    Args:
        error: of a value that was decoded.
        kind: what it was decoded as, so that the error of a field of few values says which.
    """
    text, _, found = str(error).partition(" - at ")
    path = found.strip("`").removeprefix("$").removeprefix(".")
    if kind is not None and text.startswith("Invalid enum value"):
        values = _values(msgspec.inspect.type_info(kind), path.split("."))
        if values:
            text += f"; choose one of {', '.join(map(str, values))}"
    return path, text


def _values(kind: msgspec.inspect.Type, path: Sequence[str]) -> Sequence[object]:
    """Return the values that a field may have; none where its type is not a list of them."""
    match kind:
        case msgspec.inspect.Metadata():
            return _values(kind.type, path)
        case msgspec.inspect.UnionType():
            found = [_values(each, path) for each in kind.types]
            return next((values for values in found if values), ())
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return _values(kind.item_type, path)
        case msgspec.inspect.LiteralType():
            return kind.values
        case msgspec.inspect.StructType() if path:
            name = path[0].partition("[")[0]
            types = [each.type for each in kind.fields if each.encode_name == name]
            return _values(types[0], path[1:]) if types else ()
        case _:
            return ()
