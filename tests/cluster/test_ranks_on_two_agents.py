"""One trial over two agents, of which ranks, agents and the network fail, ends on its curve."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cluster.conftest import NewCluster, user_of
from e2e import ranks
from e2e.ranks import Ranks
from e2e.user import User, wait_for
from servers import kafka
from servers.cluster import LocalCluster
from servers.network import Network

ONE_OF_EACH = {"searcher": 1, "scheduler": 1, "checkpoint-gc": 1, "metrics": 1, "gateway": 1}
SILENT_S = 8
"""After so much silence an agent is lost: a beat and a half."""

pytestmark = [
    pytest.mark.cluster,
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

    def __init__(self, cluster: LocalCluster, user: User, experiment: str) -> None:
        self._cluster = cluster
        self._user = user
        self._experiment = experiment

    def kill(self, number: int) -> None:
        """Kill an agent, and start it again."""
        agent = self._cluster.agents[number]
        agent.kill()
        agent.start()

    def cut(self, number: int) -> None:
        """Take an agent that trains off the network until it is lost; put it back; it joins."""
        agent = self._cluster.agents[number]
        wanted = self._user.validations(self._experiment) + 3
        wait_for(lambda: self._user.validations(self._experiment) >= wanted, "it trains")
        self._cluster.cut(agent)
        wait_for(lambda: self._state(number) == "lost", "the agent was lost")
        self._cluster.mend(agent)
        wait_for(lambda: self._state(number) == "joined", "the agent joined again")

    def _state(self, number: int) -> str:
        items = self._user.get("/agents")["items"]
        found = {item["id"]: item["state"] for item in items}
        return str(found[f"agent-{number + 1}"])


def test_two_ranks_on_two_agents_end_on_the_unbroken_curve(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Whichever rank, agent or cable fails, all metrics and the best weights are the same bits."""
    user = user_of(cluster)
    found = Ranks(tmp_path / "ranks", cluster.folder)
    code = found.shared(tmp_path / "code")
    calm = user.submit(ranks.experiment("calm"), code)
    expected = ranks.outcome(user, calm)
    stormy = user.submit(ranks.experiment("storm", slow=0.15), code)
    faults = Faults(cluster, user, stormy)
    chance = random.Random(12)  # noqa: S311 - repeatable, not secret
    plan: list[Callable[[], None]] = []
    for number in (0, 1):
        plan += [partial(found.kill, number), partial(faults.kill, number)]
    plan.append(partial(faults.cut, chance.randrange(2)))
    ranks.storm(user, stormy, plan, chance)
    assert ranks.outcome(user, stormy) == expected
    ranks.audited(user, calm, stormy)
