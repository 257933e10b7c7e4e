"""What the runs of an agent share."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rung.agent.config import Settings
from rung.agent.depot import Depot
from rung.agent.endpoint import Endpoint
from rung.agent.isolation import Isolation
from rung.agent.meeting import Introductions
from rung.agent.slots import Device
from rung.agent.source_folder import SourceFolder
from rung.agent.spool import Spool
from rung.agent.starter import Starter
from rung.agent.supply import Supply
from rung.agent.suspension import Suspension


class Node(NamedTuple):
    """What the runs of an agent share."""

    settings: Settings
    agent_id: str
    spool: Spool
    starter: Starter
    sources: SourceFolder
    depot: Depot
    supply: Supply
    endpoint: Endpoint
    socket: Path
    slots: list[Device]
    introductions: Introductions
    suspension: Suspension
    isolation: Isolation
    clock: Callable[[], float] = time.monotonic
    """By which a run's silence is measured, in seconds from any beginning."""
