"""The logic level of an installation: what is decided how, from which fact on.

What a processor decides may change between releases, the past may not. So each experiment and each
pool has a *logic level* on record, and code that decides otherwise than a release before branches
on it. New experiments and pools get the level of the installation, which an operator raises once
all replicas run a release that knows it (`rung cluster upgrade`; `rung up` does it at its start).
"""

from typing import ClassVar, Final

from msgspec import Struct

from rung.events import topic

LEVEL: Final = 1
"""The newest level, which this release's processors know with all before it.

1: as it was decided before there were levels.
"""


class InstallationUpgraded(Struct, frozen=True, kw_only=True):
    """New experiments, and pools from their next submission on, are decided at this level."""

    TYPE: ClassVar[str] = "rung.installation.upgraded.v1"
    TOPIC: ClassVar[str] = topic.IMPORTS
    WRITER: ClassVar[str] = "upgrade"
    READERS: ClassVar[tuple[str, ...]] = ("gateway", "upgrade")

    ledger_id: str
    """The installation's ledger."""
    level: int
    release: str
    """Version of Rung that raised it; for people."""


class PoolUpgraded(Struct, frozen=True, kw_only=True):
    """What follows in the pool is decided at this level, or a higher one that it has already."""

    TYPE: ClassVar[str] = "rung.pool.upgraded.v1"
    TOPIC: ClassVar[str] = topic.POOLS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    level: int
