"""Layers of a configuration: the file, a template, policies; and where a value comes from."""

from typing import Any, Final, Literal, NamedTuple

PolicyKind = Literal["defaults", "constraints", "invariants"]
ScopeKind = Literal["installation", "pool", "workspace", "project"]

SCOPES: Final[tuple[ScopeKind, ...]] = ("installation", "pool", "workspace", "project")
"""From the widest to the narrowest: of defaults the narrowest wins, of invariants the widest."""


class Scope(NamedTuple):
    """Where a policy holds."""

    kind: ScopeKind = "installation"
    name: str = ""
    """Empty for the installation."""

    def __str__(self) -> str:
        """Return it for a message."""
        return f"{self.kind} {self.name}" if self.name else f"the {self.kind}"


class Policy(NamedTuple):
    """A policy in force."""

    name: str
    kind: PolicyKind
    scope: Scope
    document: str
    """YAML, as its author wrote it."""
    author: str = ""
    """Who set it."""

    def __str__(self) -> str:
        """Return it for a message."""
        by = f", set by {self.author}" if self.author else ""
        return f"policy {self.name} of {self.scope}{by}"


class Template(NamedTuple):
    """A template of experiment files."""

    name: str
    document: str
    """YAML, as its author wrote it."""
    author: str = ""


class DefaultPool(NamedTuple):
    """The pool of what is submitted to a workspace and names none."""

    pool: str
    workspace: str
    """By name."""


class Origin(NamedTuple):
    """Where a value comes from."""

    kind: Literal[
        "file", "template", "default", "default pool", "constraint", "invariant", "built-in"
    ]
    name: str = ""
    """Of the template or the policy."""
    scope: str = ""
    """Of the policy, or whose default pool it is."""
    author: str = ""
    line: int | None = None
    """In the file or the document."""

    def __str__(self) -> str:
        """Return it for a person."""
        line = f" line {self.line}" if self.line else ""
        match self.kind:
            case "file":
                return f"file{line}"
            case "built-in":
                return "built-in default"
            case "template":
                return f"template {self.name}{line}"
            case "default pool":
                return f"default pool of {self.scope}"
            case _:
                by = f", set by {self.author}" if self.author else ""
                return f"{self.kind} of policy {self.name} of {self.scope}{by}"


Path = tuple[str | int, ...]


class Layer(NamedTuple):
    """A tree, and the origin of each of its leaves."""

    tree: dict[str, Any]
    origins: dict[Path, Origin]
