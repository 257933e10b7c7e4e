"""When a cluster takes a topic for gone: after a while without it, not after several starts."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rung.events import LedgerDamaged
from rung.ledger.kafka import KafkaSettings, cluster, parse_address
from rung.ledger.kafka.cluster import Cluster

NAME = "rung.experiments"


class Starting(Cluster):
    """A cluster whose broker does not know the topic yet."""

    def __init__(self) -> None:
        super().__init__(parse_address("kafka://localhost:1/rung"), KafkaSettings())

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Answer as such a broker."""
        return SimpleNamespace(brokers=[(1, "localhost", 1, None)], topics=[(3, NAME, False, [])])


async def _look(cluster: Starting) -> None:
    await cluster.look(NAME)


async def _emptied(cluster: Starting) -> None:
    cluster.emptied(NAME, 0)


async def _often(
    doubt: Callable[[Starting], Any],
    starting: Starting,
    between: Callable[[Starting, str, int], None] = lambda *_: None,
) -> None:
    for _ in range(cluster._GONE_ANSWERS + 2):
        await doubt(starting)
        between(starting, NAME, 0)


@pytest.mark.parametrize("doubt", [_look, _emptied], ids=["missing", "empty"])
async def test_doubts_of_several_starts_do_not_add_up(
    doubt: Callable[[Starting], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of which records were seen meanwhile is doubted anew."""
    monkeypatch.setattr(cluster, "_GONE_S", 0.0)
    await _often(doubt, Starting(), Starting.seen)
    with pytest.raises(LedgerDamaged, match="experiments is not on"):
        await _often(doubt, Starting())
