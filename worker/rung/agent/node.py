"""Node: the parts of an agent that all its runs use."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rung.agent.forkserver.supervisor import ForkServers
from rung.agent.isolation.isolation import Isolation
from rung.agent.membership.suspension import Suspension
from rung.agent.objects.checkpoint_upload import CheckpointUpload
from rung.agent.objects.data_provisioning import DataProvisioning
from rung.agent.objects.source_folder import SourceFolder
from rung.agent.outbox.outbox import Outbox
from rung.agent.rendezvous.rendezvous import GangAddresses
from rung.agent.run.best_validations import BestValidations
from rung.agent.run.ipc_server import IpcServer
from rung.agent.settings import Settings
from rung.agent.slots import Device


class Node(NamedTuple):
    """The parts of an agent that all its runs use."""

    settings: Settings
    agent_id: str
    outbox: Outbox
    fork_servers: ForkServers
    sources: SourceFolder
    checkpoint_upload: CheckpointUpload
    provisioning: DataProvisioning
    ipc_server: IpcServer
    socket: Path
    slots: list[Device]
    gang_addresses: GangAddresses
    suspension: Suspension
    isolation: Isolation
    best_validations: BestValidations
    taken: Mapping[str, int] = MappingProxyType({})
    """For each stream of messages of resumed runs, the number of the last one that took effect."""
    clock: Callable[[], float] = time.monotonic
    """Seconds of a monotonic clock, by which hangs of runs are detected."""
