"""What each framework is told about the other ranks."""

import json

import pytest

from rung.agent.rendezvous.framework_env import network_of, places, variables
from rung.agent.rendezvous.rendezvous import DistributedOptions, Part, RendezvousInfo, options_of
from rung.core.ipc.environment import Place
from rung.events.allocation import Share

SHARES = [
    Share(agent_id="a", incarnation=1, slots=[0, 1]),
    Share(agent_id="b", incarnation=1, slots=[4, 5]),
]
MEETING = RendezvousInfo(
    [Part("10.0.0.1", [5000, 5001, 5002]), Part("10.0.0.2", [6000, 6001, 6002])], ["k", "l"]
)


def test_ranks_are_counted_over_all_agents() -> None:
    """Rank follows the order of shares; local rank and cross rank say where in it."""
    found = [place for own in (0, 1) for place in places(SHARES, own, "torch")]
    assert [place.rank for place in found] == [0, 1, 2, 3]
    assert [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in found] == [
        (0, 2, 0, 2),
        (1, 2, 0, 2),
        (0, 2, 1, 2),
        (1, 2, 1, 2),
    ]


def test_without_slots_or_launcher_there_is_one_process_per_agent() -> None:
    """An allocation of no slots has one process; so has each agent with the launcher `none`."""
    none = [Share(agent_id="a", incarnation=1, slots=[])]
    assert places(none, 0, "torch") == [Place()]
    assert places(SHARES, 1, "none") == [Place(rank=1, size=2, cross_rank=1, cross_size=2)]


def test_torch() -> None:
    """What `torch.distributed.init_process_group()` reads; the master is the first agent."""
    found = variables("torch", places(SHARES, 1, "torch")[1], MEETING, "eth1")
    assert found == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "5001",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "eth1",
    }


def test_on_one_machine_the_loopback_is_used() -> None:
    """Gloo needs no name service there, so that a laptop without a network trains too."""
    rendezvous_info = RendezvousInfo([Part("127.0.0.1", [5000, 5001, 5002])], ["k"])
    found = variables("torch", places(SHARES[:1], 0, "torch")[0], rendezvous_info, None)
    assert found["GLOO_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in found


def test_gloo_takes_the_interface_that_the_others_know() -> None:
    """What is asked for counts; else gloo, and it alone, is told where this agent is met."""
    place = places(SHARES, 1, "torch")[1]
    asked = variables("torch", place, MEETING, "eth1", "eth0")
    assert (asked["GLOO_SOCKET_IFNAME"], asked["NCCL_SOCKET_IFNAME"]) == ("eth1", "eth1")
    known = variables("torch", place, MEETING, None, "eth0")
    assert known["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_SOCKET_IFNAME" not in known
    horovod = variables("horovod", place, MEETING, None, "eth0")
    assert horovod["HOROVOD_GLOO_IFACE"] == horovod["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "GLOO_SOCKET_IFNAME" not in variables("torch", place, MEETING, None)


def test_tensorflow() -> None:
    """TF_CONFIG lists a worker for each rank, each with a port of its own."""
    found = variables("tensorflow", places(SHARES, 1, "tensorflow")[0], MEETING, None)
    assert json.loads(found["TF_CONFIG"]) == {
        "cluster": {
            "worker": ["10.0.0.1:5001", "10.0.0.1:5002", "10.0.0.2:6001", "10.0.0.2:6002"]
        },
        "task": {"type": "worker", "index": 2},
    }


def test_horovod() -> None:
    """What `hvd.init()` reads where no horovodrun started it."""
    found = variables("horovod", places(SHARES, 1, "horovod")[0], MEETING, None)
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
    assert found["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "5001"
    assert found["HOROVOD_CONTROLLER"] == found["HOROVOD_CPU_OPERATIONS"] == "gloo"
    assert found["HOROVOD_HOSTNAME"] == "10.0.0.2"
    ranks = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [found[f"HOROVOD_{name}"] for name in ranks] == ["2", "4", "0", "2", "1", "2"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, DistributedOptions()),
        ({"distributed": None}, DistributedOptions()),
        ({"distributed": {}}, DistributedOptions(explicit=True)),
        (
            {"distributed": {"launcher": "horovod", "interface": "eth0"}},
            DistributedOptions("horovod", "eth0", explicit=True),
        ),
        ({"distributed": {"launcher": "mpi"}}, DistributedOptions(explicit=True)),
    ],
)
def test_options_of_a_configuration(
    config: dict[str, object], expected: DistributedOptions
) -> None:
    """Torch is the default; a launcher that an older agent does not know is taken for it."""
    assert options_of(config) == expected


def test_the_chief_has_the_key_of_each_agent() -> None:
    """All others have their agent's alone."""
    options = DistributedOptions()
    second = RendezvousInfo(MEETING.parts, ["l"])
    found = [
        network_of(options, place, info, None)["RUNG_KEY"]
        for own, info in ((0, MEETING), (1, second))
        for place in places(SHARES, own, "torch")
    ]
    assert found == ["k,l", "k", "l", "l"]
