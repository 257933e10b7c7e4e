"""Settings of an agent."""

import math
from pathlib import Path
from typing import Final

from msgspec import Struct

from rung.agent.isolation import isolation as isolated
from rung.agent.isolation.isolation import UserIds
from rung.agent.logs.quota import MAX_BYTES, MIN_BYTES
from rung.agent.membership.spot_notice import EVERY_S, Choice

EXIT_REFUSED: Final = 78
"""The exit code of an agent that would be refused at every start until a person acts."""


class Settings(Struct, frozen=True, kw_only=True):
    """How an agent runs.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    folder: Path
    """Its own folder: outbox, socket, code, working folders of trials. One agent per folder."""
    objects_url: str
    """The object store, for code archives and checkpoints."""
    cache: Path | None = None
    """The node's cache of data; None: `data` in its own folder. Agents of a node may share one."""
    cache_bytes: int | None = None
    """The size limit of the cache; None: half of what it holds and what is free on its disk."""
    pool: str = "default"
    slots: int | None = None
    """The number of CPU slots; None: one slot per CUDA device, or, without any, per core."""
    agent_id: str | None = None
    """None: the name that the folder's outbox has, at first the host's."""
    heartbeat_s: float = 5.0
    """Seconds between two heartbeats."""
    grace_s_max: float = math.inf
    """The longest grace period of a preemption, whatever an experiment asks for."""
    leave_s: float = 5.0
    """How long trials may take to checkpoint when the agent itself is asked to stop."""
    unattended_s: float = 0.0
    """How long trials go on training when the agent is gone, before they checkpoint and exit;
    0: they end with the agent."""
    keep_trials: bool = False
    """Whether trials go on training, for the next agent, also when this one is stopped."""
    address: str | None = None
    """The address at which other agents reach this machine; None: that of `interface`."""
    interface: str | None = None
    """The network interface of trials that span machines; None: that of the default route."""
    spot: Choice = "off"
    """Which cloud's metadata to ask whether this machine will be taken away; `auto`: the one that
    the firmware names."""
    metadata_url: str | None = None
    """The URL of the metadata service; None: the cloud's usual one."""
    spot_every_s: float = EVERY_S
    sample_s: float = 5.0
    """Seconds between two samples of a run's resource usage; 0: none are taken."""
    trial_umask: int | None = None
    """The umask of trials; None: the agent's."""
    logs_max_bytes: int = MAX_BYTES
    """The limit of a run's stored log; an experiment may ask for less."""
    isolation: isolated.Choice = "auto"
    """How trials are separated from the agent and each other; see `rung.agent.isolation`."""
    trial_uids: UserIds = UserIds(60000, 60999)
    """The user ids of trials, where each has its own. Agents of one machine need disjoint
    ranges."""
    trial_groups: tuple[int, ...] = ()
    """The supplementary groups of such trials, whose devices and data they may use. Root's group
    and the agent's own are refused."""
    hide: tuple[Path, ...] = ()
    """Folders hidden from trials in namespaces, besides the agent's own."""
    cold: bool = False
    """Whether the fork server imports no frameworks: for tests, and for scripts without any."""
    frameworks_idle_s: float = math.inf
    """How long the fork server with the frameworks is kept while no run uses it."""

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
        if not self.heartbeat_s > 0:
            raise ValueError(
                f"heartbeat_s is {self.heartbeat_s}: give the seconds between two heartbeats"
            )
        isolated.check_groups(self.trial_groups, self.trial_uids)
        if not 0 <= self.unattended_s < math.inf:
            raise ValueError(f"unattended_s is {self.unattended_s}: give seconds, or 0 for none")
        seconds = {
            "sample_s": self.sample_s,
            "leave_s": self.leave_s,
            "grace_s_max": self.grace_s_max,
            "frameworks_idle_s": self.frameworks_idle_s,
        }
        for name, value in seconds.items():
            if not value >= 0:
                raise ValueError(f"{name} is {value}: give seconds, 0 or more")
