"""An operator in a simulation: restarts services in other releases, retries and drops rejections.

Until some moment the services run releases with faults, forwards and back; then one that has none.
From then on every rejection is retried, or dropped where that is harmless. Requests that are in
vain, about an older rejection or a fact that is over, are made, too.
"""

from collections.abc import Sequence
from typing import Final

from rung.cli.operations.components import PROCESSORS
from rung.events import Event, partition_of
from rung.events.deadletter import FactDropped, FactRejected, FactRetried, KeyResumed
from rung.events.topic import FACTS_OF
from rung.ledger.effective import answers_request
from rung.sim.poison import droppable_fact, is_droppable
from rung.sim.process import Process
from rung.sim.world import Counted, Reader, World

_ORIGIN: Final = "gateway/operator"
_ACTS_MS_MAX: Final = 1_000
_MENDED_MS_MAX: Final = 15_000
_RESTARTS: Final = 0.3
_DROPPABLE: Final = 0.2
_ASKS: Final = 0.4
_DROPS: Final = 0.5
_ASKS_OF_OLDER: Final = 0.1


class Operator:
    """Acts at random moments, until cancelled."""

    def __init__(self, world: World, services: Sequence[Process], experiment_id: str) -> None:
        """Take what it operates.

        Args:
            world: where it acts.
            services: which it restarts.
            experiment_id: about which requests are made that change nothing.
        """
        self._world = world
        self._services = services
        self._experiment_id = experiment_id
        self._effective = Counted()
        names = dict.fromkeys(it.decisions for it in PROCESSORS)
        self._readers = {name: Reader(world.ledger, name) for name in names}
        self._open: dict[tuple[str, str], Event] = {}
        self._all: list[Event] = []

    async def run(self) -> None:
        """Act until cancelled."""
        chance = self._world.random
        self._world.after(chance.randint(1, _MENDED_MS_MAX), self._mend)
        while True:
            await self._world.latency(_ACTS_MS_MAX)
            await self._read()
            mended = self._world.mended
            if not mended and self._world.happens(_RESTARTS):
                chance.choice(self._services).kill()
            if self._world.faults.poison and self._world.happens(_DROPPABLE):
                data = droppable_fact(self._experiment_id, chance)
                self._world.write(data, _ORIGIN)
            for rejection in list(self._open.values()):
                if mended or self._world.happens(_ASKS):
                    await self._ask(rejection)
            if self._all and self._world.faults.poison and self._world.happens(_ASKS_OF_OLDER):
                await self._ask(chance.choice(self._all))

    def _mend(self) -> None:
        self._world.mended = True
        for it in self._services:
            it.kill()

    async def _read(self) -> None:
        """Take note of what is rejected, and of what goes on."""
        for name, reader in self._readers.items():
            for event in self._effective(await reader.new()):
                match event.data:
                    case FactRejected():
                        if (name, event.key) in self._open and not answers_request(event):
                            continue
                        self._open[name, event.key] = event
                        self._all.append(event)
                    case KeyResumed():
                        self._open.pop((name, event.key), None)
                    case _:
                        pass

    async def _ask(self, rejection: Event) -> None:
        """Have a rejected fact retried, or dropped where that is harmless."""
        assert isinstance(rejection.data, FactRejected)
        name, position = FACTS_OF[rejection.data.topic], rejection.data.position
        ledger = self._world.ledger
        partition = partition_of(rejection.key, ledger.partitions(name))
        (record,) = await ledger.read(name, partition, position, 1)
        drops = is_droppable(record) and self._world.happens(_DROPS)
        request = (FactDropped if drops else FactRetried)(
            topic=name,
            key=rejection.key,
            reader=rejection.data.reader,
            partition=partition,
            position=position,
            rejection=rejection.id,
        )
        self._world.write(request, _ORIGIN)
