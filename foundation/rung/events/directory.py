"""Events of the directory: users, groups, roles, workspaces and what lies in them."""

from typing import ClassVar, Final, Literal

from msgspec import Struct

from rung.events import topic
from rung.events.changes import Change
from rung.events.topic import Relayed

DIRECTORY: Final = "directory"
"""The one key: unique names, and rights over all workspaces, need one order."""
SYSTEM: Final = "system"
"""`by` of what the gateway does of itself, such as a sign-in by an identity provider."""
ROOT: Final = "root"
"""`via` of the token that the server was started with."""
ADMIN: Final = "admin"
"""Id of the user who is there from the beginning, a cluster administrator."""
DEFAULT: Final = "default"
"""Id of the workspace that is there from the beginning, and of its project."""

Refusal = Literal[
    "forbidden",
    "beyond",
    "revoked",
    "missing",
    "taken",
    "invalid",
    "changed",
    "archived",
    "built-in",
    "last-administrator",
    "gone",
]
"""Why a change is refused.

forbidden: who asked lacks a permission. beyond: it would give a right that who asked does not
have. revoked: the token, or its user, is no longer valid. missing: what it is about is not there.
taken: the name, id or identity is another's. invalid: a field cannot be so. changed: another
change came first. archived: the workspace or project is closed. built-in: it stays for ever.
last-administrator: no active cluster administrator would be left. gone: the
checkpoint is deleted, or about to be.
"""


class ChangeRequested(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody asked for a change of the directory."""

    TYPE: ClassVar[str] = "rung.directory.change_requested.v1"
    TOPIC: ClassVar[str] = topic.REQUESTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("directory",)

    directory: str = DIRECTORY
    request_id: str
    """By which the answer is found; drawn, or made of an Idempotency-Key and who sent it."""
    by: str
    """Id of the user who asked, or `SYSTEM`."""
    via: str = ROOT
    """Id of the token or session that was sent, or `ROOT`."""
    on_behalf_of: str | None = None
    """Id of the user for whom it was asked: only what both may is done."""
    at_ms: int
    """Since 1970, by the clock of the gateway."""
    change: Change
    expected: int | None = None
    """The version of what is changed that its author had seen; None: any."""
    level: int = 1
    """The logic level of the installation."""


class DirectoryDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision of the directory on a request."""

    TOPIC: ClassVar[str] = topic.DIRECTORY
    WRITER: ClassVar[str] = "directory"
    READERS: ClassVar[tuple[str, ...]] = ("directory", "gateway")

    directory: str = DIRECTORY
    request_id: str
    by: str
    on_behalf_of: str | None = None


class DirectoryChanged(DirectoryDecision, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the directory is in force."""

    TYPE: ClassVar[str] = "rung.directory.changed.v1"

    version: int
    """How many changes there are, with this one."""
    at_ms: int
    """Since 1970; never before that of the change before."""
    change: Change


class ChangeRefused(DirectoryDecision, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the directory was asked for and is not made."""

    TYPE: ClassVar[str] = "rung.directory.change_refused.v1"

    code: Refusal
    reason: str
    """What is wrong and what would be right, for a person."""
    field: str = ""
    """Of the change, that is at fault; empty: none."""


class HoldRequested(DirectoryDecision, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a model may be registered, if its checkpoint is there to stay."""

    TYPE: ClassVar[str] = "rung.checkpoint.hold_requested.v1"
    READERS: ClassVar[tuple[str, ...]] = ("directory", "checkpoint-gc")
    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "checkpoint-gc")

    experiment_id: str
    checkpoint_id: str
    model_version_id: str
    """The version that holds it."""
    area: str = ""
    """The storage area that it lies in, which is forgotten once its experiment has ended."""
    request: ChangeRequested


class HoldReleased(DirectoryDecision, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a model is deleted, or not registered: it needs its checkpoint no more."""

    TYPE: ClassVar[str] = "rung.checkpoint.hold_released.v1"
    READERS: ClassVar[tuple[str, ...]] = ("directory", "checkpoint-gc")
    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "checkpoint-gc")

    experiment_id: str
    checkpoint_id: str
    model_version_id: str


class HoldAnswered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the checkpoint of a version that is to be registered is there to stay."""

    TYPE: ClassVar[str] = "rung.directory.hold_answered.v1"
    TOPIC: ClassVar[str] = topic.REQUESTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("directory",)

    directory: str = DIRECTORY
    request: ChangeRequested
    refused: str = ""
    """Why it is not; empty: it stays."""
