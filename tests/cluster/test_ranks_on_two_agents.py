"""One trial over two agents, of which ranks, agents and the network fail, ends on its curve."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import NewCluster, user_of
from servers import kafka
from servers.cluster import LocalCluster
from servers.network import Network
from support import horovod_example, rank_processes
from support.rank_processes import Ranks
from support.user import User, wait_for

ONE_OF_EACH = {"searcher": 1, "scheduler": 1, "checkpoint-gc": 1, "metrics": 1, "gateway": 1}
SILENT_S = 8
"""After so much silence an agent is lost: a beat and a half."""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not kafka.available(), reason=kafka.missing() or ""),
]


@pytest.fixture
def cluster(new_cluster: NewCluster, network: Network | None) -> LocalCluster:
    """Return a cluster on Kafka that runs, whose two agents have one slot each."""
    item = new_cluster(
        replicas=ONE_OF_EACH,
        agents=2,
        slots=1,
        partitions=2,
        network=network,
        options={"scheduler": ("--agent-timeout", str(SILENT_S))},
    )
    item.start()
    return item


class Faults:
    """What befalls the two agents of a cluster."""

    def __init__(self, cluster: LocalCluster, user: User, experiment: str, found: Ranks) -> None:
        self._cluster = cluster
        self._user = user
        self._experiment = experiment
        self._found = found

    def befall(self, chance: random.Random) -> None:
        """Kill either rank and either agent and cut one agent off, in a random order."""
        plan: list[Callable[[], None]] = [partial(self.cut, chance.randrange(2))]
        for number in (0, 1):
            plan += [partial(self._found.kill, number), partial(self.kill, number)]
        rank_processes.storm(self._user, self._found, self._experiment, plan, chance)

    def kill(self, number: int) -> None:
        """Kill an agent, and start it again."""
        agent = self._cluster.agents[number]
        agent.kill()
        agent.start()

    def cut(self, number: int) -> None:
        """Take an agent that trains off the network until it is lost; put it back; it joins."""
        agent = self._cluster.agents[number]
        rank_processes.go_on(self._user, self._found, self._experiment, 3)
        self._cluster.cut(agent)
        wait_for(lambda: self._state(number) == "lost", "the agent was lost")
        self._cluster.mend(agent)
        wait_for(lambda: self._state(number) == "joined", "the agent joined again")

    def _state(self, number: int) -> str:
        items = self._user.get("/agents")["items"]
        found = {item["id"]: item["state"] for item in items}
        return str(found[f"agent-{number + 1}"])


def ends_on_its_curve(
    cluster: LocalCluster, found: Ranks, code: Path, calm: dict[str, Any], storm: dict[str, Any]
) -> None:
    """Check that faults leave no trace: all metrics and the best weights are the same bits."""
    user = user_of(cluster)
    undisturbed = user.submit(calm, code)
    expected = rank_processes.outcome(user, undisturbed)
    disturbed = user.submit(storm, code)
    chance = random.Random(12)  # noqa: S311 - repeatable, not secret
    Faults(cluster, user, disturbed, found).befall(chance)
    assert rank_processes.outcome(user, disturbed) == expected
    rank_processes.audited(user, undisturbed, disturbed)


@pytest.mark.cluster
def test_two_ranks_of_ddp_end_on_the_unbroken_curve(cluster: LocalCluster, tmp_path: Path) -> None:
    """Whichever rank, agent or cable fails."""
    found = Ranks(tmp_path / "ranks", cluster.folder)
    code = found.shared(tmp_path / "code")
    storm = rank_processes.experiment("storm", slow=0.15, hold=str(found.hold))
    ends_on_its_curve(cluster, found, code, rank_processes.experiment("calm"), storm)


@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
def test_two_ranks_of_horovod_end_on_the_unbroken_curve(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The same: two numbers have one sum, whichever way round a ring brings them."""
    found = Ranks(tmp_path / "ranks", cluster.folder)
    code = horovod_example.copied(tmp_path / "code")
    calm = horovod_example.short(code, "calm")
    ends_on_its_curve(cluster, found, code, calm, horovod_example.stormy(code, found))
