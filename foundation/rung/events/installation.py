"""Logic levels: the version of the rules by which an experiment or a pool is decided.

A release may change what processors decide, but not what they have decided. So each experiment and
each pool has a *logic level* on record, and code whose decisions changed branches on it. New
experiments and pools get the level of the installation, which an operator raises once all replicas
run a release that supports it (`rung cluster upgrade`; `rung up` does it at its start).
"""

from typing import ClassVar, Final

from msgspec import Struct

from rung.events import topic

LEVEL: Final = 1
"""The newest level; this release's processors support all levels up to it.

1: the rules of the first release.
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
    """The pool is decided at this level from here on, unless it has a higher one already."""

    TYPE: ClassVar[str] = "rung.pool.upgraded.v1"
    TOPIC: ClassVar[str] = topic.POOLS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    level: int
