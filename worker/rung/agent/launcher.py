"""What a rank's environment says so that its framework finds the other ranks.

torch         MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, …: what
`torch.distributed.init_process_group()` reads, and Lightning and Transformers
horovod       HOROVOD_RANK, … and the address of a key-value server that this agent is:
`hvd.init()` needs no launcher then
tensorflow    TF_CONFIG: a worker for each rank
none          one process per agent, with all of its slots, that starts what it likes; told
where the first agent is and how many there are
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

from msgspec import Struct

from rung.agent.meeting import Meeting
from rung.agent.network import LOOPBACK
from rung.core.distributed import Place
from rung.events.allocation import Share

Launcher = Literal["torch", "horovod", "tensorflow", "none"]
_LOOPBACK_INTERFACE: Final = "lo"


class Wanted(Struct, frozen=True):
    """What an experiment says about its ranks."""

    launcher: Launcher = "torch"
    interface: str | None = None
    explicit: bool = False
    """Whether the file has a section `distributed`: then a single rank is told its place too."""


def wanted(config: Mapping[str, Any]) -> Wanted:
    """Return what the configuration of an experiment wants."""
    section = config.get("distributed")
    if not isinstance(section, Mapping):
        return Wanted()
    launcher = section.get("launcher") or "torch"
    if launcher not in get_args(Launcher):
        return Wanted(explicit=True)
    return Wanted(cast("Launcher", launcher), section.get("interface"), explicit=True)


def places(shares: list[Share], own: int, launcher: Launcher) -> list[Place]:
    """Return the places of the processes of one share.

    Args:
        shares: of the allocation.
        own: which of them.
        launcher: `none` has one process for each share, the others one for each slot.
    """
    sizes = [1 if launcher == "none" else max(1, len(share.slots)) for share in shares]
    first = sum(sizes[:own])
    return [
        Place(
            rank=first + local,
            size=sum(sizes),
            local_rank=local,
            local_size=sizes[own],
            cross_rank=own,
            cross_size=len(sizes),
        )
        for local in range(sizes[own])
    ]


def variables(
    launcher: Launcher,
    place: Place,
    meeting: Meeting,
    interface: str | None,
    own: str | None = None,
) -> dict[str, str]:
    """Return the environment variables that a launcher's framework reads.

    Args:
        launcher: of the experiment.
        place: of the process.
        meeting: where the ranks meet.
        interface: the network interface to use, as somebody wants it.
        own: the one at which the other agents reach this one, None where that is not known. Gloo
            uses it where nobody wants another: left alone, it takes the one that bears the
            machine's name, which is often the loopback. NCCL sees for itself.
    """
    if interface is None and meeting.parts[0].host == LOOPBACK:
        interface = _LOOPBACK_INTERFACE
    own = interface or own
    match launcher:
        case "torch":
            return _torch(place, meeting) | _interfaces(interface, own)
        case "horovod":
            return _horovod(place, meeting, own) | _interfaces(interface, own)
        case "tensorflow":
            return {"TF_CONFIG": _tf_config(place, meeting)}
        case "none":
            return _master(meeting) | {
                "NODE_RANK": str(place.cross_rank),
                "NNODES": str(place.cross_size),
            }


def _interfaces(interface: str | None, own: str | None) -> dict[str, str]:
    found = {"GLOO_SOCKET_IFNAME": own} if own else {}
    if interface not in {None, _LOOPBACK_INTERFACE}:
        found["NCCL_SOCKET_IFNAME"] = interface
    return found


def _master(meeting: Meeting) -> dict[str, str]:
    first = meeting.parts[0]
    return {"MASTER_ADDR": first.host, "MASTER_PORT": str(first.ports[1])}


def _torch(place: Place, meeting: Meeting) -> dict[str, str]:
    return _master(meeting) | {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.cross_rank),
        "NODE_RANK": str(place.cross_rank),
    }


def _horovod(place: Place, meeting: Meeting, interface: str | None) -> dict[str, str]:
    first = meeting.parts[0]
    found = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(first.ports[1]),
        "HOROVOD_HOSTNAME": meeting.parts[place.cross_rank].host,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
    }
    return found | ({"HOROVOD_GLOO_IFACE": interface} if interface else {})


def _tf_config(place: Place, meeting: Meeting) -> str:
    workers = [f"{part.host}:{port}" for part in meeting.parts for port in part.ports[1:]]
    task = {"type": "worker", "index": place.rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})
