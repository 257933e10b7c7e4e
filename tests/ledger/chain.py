"""Writers that number what they append, and what must be true of it afterwards."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Self

from rung.events import LedgerUnavailable, topic
from rung.ledger import Draft, Ledger
from support.ledger.conformance import read_all


class Chain:
    """Appends numbers under one key, one after the other, as an agent empties its outbox.

    A number of which the acknowledgement did not come is repeated.
    """

    def __init__(self, ledger: Ledger, key: str) -> None:
        self.key = key
        self.acknowledged: list[int] = []
        """The position of each number."""
        self.failures = 0
        self._ledger = ledger
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._turn = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        assert self._task is not None
        await self._task

    async def grown(self, more: int = 20) -> None:
        """Wait until some more were acknowledged."""
        goal = len(self.acknowledged) + more
        await self._until(lambda: len(self.acknowledged) >= goal)

    async def failed(self) -> None:
        """Wait until an append failed."""
        goal = self.failures + 1
        await self._until(lambda: self.failures >= goal)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert self._task is not None
            self._turn = asyncio.Event()
            turn = asyncio.create_task(self._turn.wait())
            await asyncio.wait({turn, self._task}, return_when=asyncio.FIRST_COMPLETED)
            turn.cancel()
            assert not self._task.done(), self._task.exception()

    async def _run(self) -> None:
        while not self._stop.is_set():
            number = b"%d" % len(self.acknowledged)
            try:
                positions = await self._ledger.append([Draft(topic.EXPERIMENTS, self.key, number)])
            except LedgerUnavailable:
                self.failures += 1
            else:
                self.acknowledged += positions
            self._turn.set()


async def hold(ledger: Ledger, chains: list[Chain]) -> None:
    """Check that every number is where it was acknowledged, and none came before the last."""
    seen: dict[str, list[int]] = defaultdict(list)
    for partition in range(ledger.partitions(topic.EXPERIMENTS)):
        records = await read_all(ledger, topic.EXPERIMENTS, partition)
        assert [record.position for record in records] == list(range(len(records)))
        by_position = {record.position: record for record in records}
        for record in records:
            seen[record.key].append(int(record.value))
        for chain in chains:
            for number, position in enumerate(chain.acknowledged):
                found = by_position.get(position)
                if found is not None and found.key == chain.key:
                    assert found.value == b"%d" % number, (chain.key, number, position)
    for chain in chains:
        first = list(dict.fromkeys(seen[chain.key]))
        assert first[: len(chain.acknowledged)] == list(range(len(chain.acknowledged)))
        assert first == sorted(first), "a number overtook an earlier one"
