"""What a process is launched with: its command, its environment, its threads."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rung.agent.command import command_of, search_path, variables_of
from rung.agent.launcher import Wanted, variables
from rung.agent.meeting import Meeting
from rung.agent.network import interface_of
from rung.agent.slots import Device
from rung.agent.threads import threads_of
from rung.agent.wire import Launch, View
from rung.core import protocol
from rung.core.distributed import Place
from rung.core.told import told
from rung.events.trial import RunSpec


class Identity(NamedTuple):
    """What tells a process which one of which run it is."""

    process: str
    """As the warm parent knows it."""
    allocation_id: str
    token: str
    place: Place
    socket: Path


def launch_of(  # noqa: PLR0913, PLR0917 - all that a process depends on
    spec: RunSpec,
    identity: Identity,
    held: list[int],
    slots: list[Device],
    folder: Path,
    network: Mapping[str, str],
    view: View | None = None,
    user: int | None = None,
) -> Launch:
    """Return what to ask the warm parent for.

    Args:
        spec: the run.
        identity: who the process will be.
        held: ids of the slots that the run holds on this agent.
        slots: all slots of the agent.
        folder: the run's working folder.
        network: the variables by which its framework finds the other ranks.
        view: what it sees in namespaces of its own.
        user: the user id that it has of its own.

    Raises:
        InvalidEntrypoint: the experiment's entrypoint cannot be run.
    """
    place = identity.place
    devices = [slot for slot in slots if slot.id in held]
    kind = devices[0].kind if devices else "cpu"
    own = variables_of(spec.config, kind)
    share = len(held) // place.local_size
    threads = threads_of(held=share, slots=len(slots), variables=own)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **_home_of(user, folder),
        **{name: value for name, value in network.items() if name not in own},
        **own,
        "PATH": search_path(own.get("PATH")),
        **told(spec),
        protocol.SOCKET_VARIABLE: str(identity.socket),
        protocol.ALLOCATION_VARIABLE: identity.allocation_id,
        protocol.TOKEN_VARIABLE: identity.token,
        **place.variables(),
    }
    if any(slot.kind == "cuda" for slot in slots):  # a run without slots sees none of them
        visible = devices if "TF_CONFIG" not in network else devices[place.local_rank :][:1]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.visible_as for device in visible)
    command = command_of(spec.config.get("entrypoint"), own)
    return Launch(identity.process, command, environment, str(folder), threads, view, user)


def _home_of(user: int | None, folder: Path) -> dict[str, str]:
    """Return the variables of a user that is in no list of users and has no folder but the run's.

    Libraries keep their caches in the home folder, or name them for the user.
    """
    if user is None:
        return {}
    name = f"trial-{user}"
    return {"HOME": str(folder), "USER": name, "LOGNAME": name}


def network_of(
    wanted: Wanted, place: Place, meeting: Meeting | None, interface: str | None
) -> dict[str, str]:
    """Return the variables by which a process finds the others of its run.

    Args:
        wanted: what the experiment says.
        place: of the process.
        meeting: where the ranks meet; None where there is nobody to meet.
        interface: that the agent was told to use.
    """
    if meeting is None:
        return {}
    own = interface_of(meeting.parts[place.cross_rank].host)
    chosen = wanted.interface or (interface if place.cross_size > 1 else None)
    return variables(wanted.launcher, place, meeting, chosen, own) | {
        protocol.CHIEF_VARIABLE: meeting.chief,
        protocol.KEY_VARIABLE: meeting.key,
    }
