"""What can be set about an agent."""

import math
from pathlib import Path
from typing import Final

from msgspec import Struct

from rung.agent import isolation as isolated
from rung.agent.isolation import UserIds
from rung.agent.log_quota import MAX_BYTES, MIN_BYTES
from rung.agent.spot import EVERY_S, Choice

EXIT_REFUSED: Final = 78
"""The exit code of an agent that would be refused at every start until a person acts."""


class Settings(Struct, frozen=True, kw_only=True):
    """How an agent runs.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    folder: Path
    """Its own folder: spool, socket, code, work folders of runs. One agent per folder."""
    objects_url: str
    """The object store, for code archives and checkpoints."""
    cache: Path | None = None
    """The node's cache of data; None: `data` in its own folder. Agents of a node may share one."""
    cache_bytes: int | None = None
    """How much the cache may hold; None: half of what it has and what is free."""
    pool: str = "default"
    slots: int | None = None
    """So many slots of the CPU; None: a slot per CUDA device, or, without any, per core."""
    agent_id: str | None = None
    """None: the name that the folder's spool has, at first the host's."""
    beat_s: float = 5.0
    grace_s_max: float = math.inf
    """The longest grace period of a preemption, whatever an experiment asks for."""
    leave_s: float = 5.0
    """How long trials may take to checkpoint when the agent itself is asked to stop."""
    address: str | None = None
    """How other agents reach this machine; None: at the address of `interface`."""
    interface: str | None = None
    """The network interface of trials that span machines; None: the one that leads outside."""
    spot: Choice = "off"
    """Which cloud's metadata to ask whether this machine will be taken away; `auto`: the one that
    the firmware names."""
    metadata_url: str | None = None
    """Where they are, if not where they always are."""
    spot_every_s: float = EVERY_S
    vitals_s: float = 5.0
    """Seconds between two readings of what a run takes of the machine; 0: none are taken."""
    trial_umask: int | None = None
    """Which permissions files of trials are created without; None: as the agent's."""
    logs_max_bytes: int = MAX_BYTES
    """How much of a run's log is stored, whatever an experiment asks for."""
    isolation: isolated.Choice = "auto"
    """What keeps trials from acting as the agent and as each other; see `rung.agent.isolation`."""
    trial_uids: UserIds = UserIds(60000, 60999)
    """The user ids of trials, where each has its own. Agents of one machine need ranges apart."""
    trial_groups: tuple[int, ...] = ()
    """The ids of the groups that such trials are in besides their own: whose devices and data they
    may use. Root's and the agent's own are refused."""
    hide: tuple[Path, ...] = ()
    """Folders that trials do not see, besides the agent's own, where they have namespaces."""
    cold: bool = False
    """Whether the warm parent imports no frameworks: for tests, and scripts that need none."""

    def __post_init__(self) -> None:
        if not self.pool:
            raise ValueError("pool is empty: name the resource pool, such as `default`")
        if self.slots is not None and self.slots < 1:
            raise ValueError(f"slots is {self.slots}: an agent offers at least one")
        if self.agent_id is not None and (not self.agent_id or "/" in self.agent_id):
            raise ValueError(f"agent_id is {self.agent_id!r}: give a name without `/`")
        if self.cache_bytes is not None and self.cache_bytes < 1:
            raise ValueError(f"cache_bytes is {self.cache_bytes}: give bytes, such as 500GB")
        if self.logs_max_bytes < MIN_BYTES:
            raise ValueError(
                f"logs_max_bytes is {self.logs_max_bytes}: give at least {MIN_BYTES} bytes for "
                "the log of a run, such as 64MiB"
            )
        if not self.beat_s > 0:
            raise ValueError(f"beat_s is {self.beat_s}: give the seconds between two beats")
        if self.vitals_s < 0:
            raise ValueError(f"vitals_s is {self.vitals_s}: give seconds, or 0 for none")
        isolated.check_groups(self.trial_groups, self.trial_uids)
        if self.leave_s < 0 or self.grace_s_max < 0:
            raise ValueError("a period of grace is negative: give seconds from 0 on")
