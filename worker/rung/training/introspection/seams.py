"""Seams: private interfaces of a framework that exact resuming uses, checked at import.

An add-on for exact resuming lists them in one module, and checks them when it is imported, before
anything is trained. In another version of the framework a private name may be missing, or exist
without effect; code that assigns to it would then train differently without an error.
"""

import importlib
import inspect
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rung import core
from rung.events import RungError
from rung.training.introspection.library_code import codes_of

_RELEASE: Final = 2
"""How many parts of a version are compared: patch releases keep private names."""


class SeamMissing(RungError):
    """A framework lacks a private interface; the message has the consequence and the fix."""


class Kind(Enum):
    """How a private interface is used, and so what is checked."""

    ATTRIBUTE = "attribute"
    """Read, called without arguments, or subclassed: it must exist."""
    CALL = "call"
    """Called or overridden: it must take the parameters `expected`, and require no others."""
    NAMES = "names"
    """A function that must use attributes of the names `expected`, which Rung sets or reads."""
    LOCALS = "locals"
    """A function that must have the local variables `expected`, which Rung reads in its frame."""
    FIELDS = "fields"
    """A protobuf message that must have the fields `expected`."""


@dataclass(frozen=True, slots=True)
class Seam:
    """One private interface of a framework."""

    path: str
    """`module:Class.name`; a method is named in the class that defines it."""
    kind: Kind
    cost: str
    """The consequence of its absence, as the end of a sentence."""
    expected: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Return what is missing, for a message; None: nothing."""
        module, _, name = self.path.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            return self.path
        lacking = [each for each in self.expected if each not in self._offered(found)]
        if lacking:
            return f"{', '.join(lacking)} in {self.path}"
        more = _required(found) - set(self.expected) if self.kind is Kind.CALL else set()
        return f"{self.path} without {', '.join(sorted(more))}" if more else None

    def _offered(self, found: Any) -> set[str]:
        match self.kind:
            case Kind.ATTRIBUTE:
                return set()
            case Kind.CALL:
                return set(inspect.signature(found).parameters)
            case Kind.NAMES:
                return {name for code in codes_of(found) for name in code.co_names}
            case Kind.LOCALS:
                code = next(codes_of(found))
                return {*code.co_varnames, *code.co_cellvars}
            case Kind.FIELDS:
                return set(found.DESCRIPTOR.fields_by_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOn:
    """The add-on for exact resuming in a framework: tested versions and seams."""

    framework: str
    """Its name in messages."""
    module: str
    """The module with `__version__`."""
    package: str
    """The package to install."""
    lowest: str
    """The lowest version that is tested, such as `3.8`."""
    newest: str
    """The newest tested version; later patch releases of it are accepted."""
    without: str
    """What a run does without the add-on, as a clause."""
    seams: tuple[Seam, ...]

    @property
    def requirement(self) -> str:
        """The requirement to install."""
        *major, minor = self.newest.split(".")
        return f"{self.package}>={self.lowest},<{'.'.join([*major, str(int(minor) + 1)])}"

    def check(self) -> None:
        """Check that the framework has a tested version and all of the seams.

        Raises:
            SeamMissing: it has not.
        """
        version = importlib.import_module(self.module).__version__
        if not _release(self.lowest) <= _release(version) <= _release(self.newest):
            raise SeamMissing(
                f"exact resuming is tested with {self.framework} {self.lowest} to {self.newest}, "
                f"and this is {version}, where a resumed run could train differently unnoticed: "
                f"{self._way_out}"
            )
        for seam in self.seams:
            missing = seam.missing()
            if missing is not None:
                raise SeamMissing(
                    f"{self.framework} {version} does not have {missing}, and without that "
                    f"{seam.cost}: {self._way_out}"
                )

    @property
    def _way_out(self) -> str:
        return (
            f"install {self.requirement!r}, or set reproducibility: {{exact: false}} in the "
            f"experiment file, with which {self.without}"
        )


def exact(run: core.Context) -> bool:
    """Return whether a run is to resume exactly, as the experiment file says; it is by default."""
    section = run.info.trial.config.get("reproducibility") or {}
    return bool(section.get("exact", True))


def _required(function: Any) -> set[str]:
    """Return the required parameters of a call, except `self`."""
    parameters = inspect.signature(function).parameters.values()
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return {
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in variadic and each.name != "self"
    }


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:_RELEASE])
