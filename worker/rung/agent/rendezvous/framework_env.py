"""Environment variables by which a rank's framework finds the other ranks.

torch         MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, …, as
              read by `torch.distributed.init_process_group()`, Lightning and Transformers
horovod       HOROVOD_RANK, …, and the address of a key-value server in the first agent, so that
              `hvd.init()` needs no launcher
tensorflow    TF_CONFIG: a worker for each rank
none          one process per agent, with all of its slots, that starts its own processes; the
              first agent's address and the number of agents
"""

import json
from typing import Final

from rung.agent.rendezvous.network import LOOPBACK, interface_of
from rung.agent.rendezvous.rendezvous import DistributedOptions, Launcher, RendezvousInfo
from rung.core.ipc.environment import CHIEF_VARIABLE, KEY_VARIABLE, Place
from rung.events.allocation import Share

_LOOPBACK_INTERFACE: Final = "lo"


def places(shares: list[Share], own: int, launcher: Launcher) -> list[Place]:
    """Return the ranks and sizes of the processes of one share.

    Args:
        shares: of the allocation.
        own: the index of the share.
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


def network_of(
    options: DistributedOptions,
    place: Place,
    info: RendezvousInfo | None,
    interface: str | None,
) -> dict[str, str]:
    """Return the variables by which a process finds the others of its run.

    Args:
        options: what the experiment asks for.
        place: rank and sizes of the process.
        info: addresses of all ranks; None where there is only one.
        interface: the network interface of the agent's settings.
    """
    if info is None:
        return {}
    own = interface_of(info.parts[place.cross_rank].host)
    chosen = options.interface or (interface if place.cross_size > 1 else None)
    return variables(options.launcher, place, info, chosen, own) | {
        CHIEF_VARIABLE: info.chief,
        KEY_VARIABLE: ",".join(info.keys if place.rank == 0 else info.keys[:1]),
    }


def variables(
    launcher: Launcher,
    place: Place,
    info: RendezvousInfo,
    interface: str | None,
    own: str | None = None,
) -> dict[str, str]:
    """Return the environment variables that a launcher's framework reads.

    Args:
        launcher: of the experiment.
        place: rank and sizes of the process.
        info: addresses of all ranks.
        interface: the network interface that was configured, if any.
        own: the interface at which the other agents reach this one, None where that is not known.
            Gloo uses it where none is configured: by default Gloo takes the interface of the
            machine's host name, which is often the loopback. NCCL chooses by itself.
    """
    if interface is None and info.parts[0].host == LOOPBACK:
        interface = _LOOPBACK_INTERFACE
    own = interface or own
    match launcher:
        case "torch":
            return _torch(place, info) | _interfaces(interface, own)
        case "horovod":
            return _horovod(place, info, own) | _interfaces(interface, own)
        case "tensorflow":
            return {"TF_CONFIG": _tf_config(place, info)}
        case "none":
            return _master(info) | {
                "NODE_RANK": str(place.cross_rank),
                "NNODES": str(place.cross_size),
            }


def _interfaces(interface: str | None, own: str | None) -> dict[str, str]:
    found = {"GLOO_SOCKET_IFNAME": own} if own else {}
    if interface not in {None, _LOOPBACK_INTERFACE}:
        found["NCCL_SOCKET_IFNAME"] = interface
    return found


def _master(info: RendezvousInfo) -> dict[str, str]:
    first = info.parts[0]
    return {"MASTER_ADDR": first.host, "MASTER_PORT": str(first.ports[1])}


def _torch(place: Place, info: RendezvousInfo) -> dict[str, str]:
    return _master(info) | {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.cross_rank),
        "NODE_RANK": str(place.cross_rank),
    }


def _horovod(place: Place, info: RendezvousInfo, interface: str | None) -> dict[str, str]:
    first = info.parts[0]
    found = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(first.ports[1]),
        "HOROVOD_HOSTNAME": info.parts[place.cross_rank].host,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
    }
    return found | ({"HOROVOD_GLOO_IFACE": interface} if interface else {})


def _tf_config(place: Place, info: RendezvousInfo) -> str:
    workers = [f"{part.host}:{port}" for part in info.parts for port in part.ports[1:]]
    task = {"type": "worker", "index": place.rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})
