"""Logic levels: the version of the rules by which an experiment or a pool is decided.

A release may change what processors decide, but not what they have decided. So each experiment and
each pool has a *logic level* on record, and code whose decisions changed branches on it. New
experiments and pools get the level of the installation, which an operator raises once all replicas
run a release that supports it (`rung cluster upgrade`; `rung up` does it at its start).
"""

from typing import ClassVar, Final

from msgspec import Struct

from rung.events import topic

LEVEL: Final = 4
"""The newest level; this release's processors support all levels up to it.

1: the rules from before there were levels.
2: trials and searches without a usable result are errored, with the cause; a fault that lies in
   the code itself is not tried again (see the searcher's theory of operation); users end single
   trials, and extend searches; a run is given the metadata that its trial's script set before; a
   run that the search stops is withdrawn with `final`, and leaves without one more checkpoint.
   From it on, users delete experiments and checkpoints, and change what is kept, of experiments of
   any level: a replica that does not know such a request would pass over it.
3: log policies take effect: a trial whose log matched `cancel_retries` is not tried again once it
   fails, and one whose log matched `exclude_node` goes to other agents from its next run on.
3: users change priority, weight, `max_slots` and pool of experiments that have not ended.
3: an experiment ends once it has used its `max_slot_hours`.
3: users take the deletion of an experiment back for a while: a replica that does not know of it
   would delete at once. It is the installation's level that counts, not the experiment's.
3: the checkpoints of experiments may lie in storage areas, from that level of the installation on.
3: models and their versions: a directory that does not know them cannot read its requests, and a
   checkpoint-gc would retire what they hold. Here, too, the installation's level counts.
4: a search decides at most so much at once, and the rest in further steps (see the searcher's
   theory of operation).
4: where no checkpoint of a trial has a value, the one nearest to its best validation is kept as
   its best.
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
