"""What a run is launched with: its command, its environment, its threads."""

from pathlib import Path
from typing import NamedTuple

from rung.agent.command import command_of, search_path, variables_of
from rung.agent.slots import Device
from rung.agent.threads import threads_of
from rung.agent.wire import Launch
from rung.core import protocol
from rung.core.told import told
from rung.events.trial import RunSpec


class Identity(NamedTuple):
    """What tells a process which run it is."""

    allocation_id: str
    token: str
    rank: int
    socket: Path


def launch_of(
    spec: RunSpec, identity: Identity, held: list[int], slots: list[Device], folder: Path
) -> Launch:
    """Return what to ask the warm parent for.

    Args:
        spec: the run.
        identity: who the process will be.
        held: ids of the slots that the run holds.
        slots: all slots of the agent.
        folder: the run's working folder.

    Raises:
        InvalidEntrypoint: the experiment's entrypoint cannot be run.
    """
    devices = [slot for slot in slots if slot.id in held]
    kind = devices[0].kind if devices else "cpu"
    variables = variables_of(spec.config, kind)
    threads = threads_of(held=len(held), slots=len(slots), variables=variables)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **variables,
        "PATH": search_path(variables.get("PATH")),
        **told(spec),
        protocol.SOCKET_VARIABLE: str(identity.socket),
        protocol.ALLOCATION_VARIABLE: identity.allocation_id,
        protocol.TOKEN_VARIABLE: identity.token,
        protocol.RANK_VARIABLE: str(identity.rank),
    }
    if kind == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.visible_as for device in devices)
    command = command_of(spec.config.get("entrypoint"), variables)
    return Launch(identity.allocation_id, command, environment, str(folder), threads)
