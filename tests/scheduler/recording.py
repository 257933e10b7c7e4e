"""Recorded histories: a pool's facts and decisions as lines of JSON.

`python -m scheduler.recording` (with `tests` on the path) writes those that are missing. They are
written once per logic level and stay: today's code must decide every one of them again as it was.
A release that raises the level writes one more folder.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Final

from rung.events import Event, Payload, decision, decode, encode, fact
from rung.events.installation import LEVEL, PoolUpgraded
from support.scheduler.scenario import (
    POOL,
    Pool,
    drain,
    joined,
    left,
    move,
    released,
    requested,
    resources,
    resumed,
    suspended,
    withdrawn,
)

FOLDER: Final = Path(__file__).parent / "histories"
LEVELS: Final = range(1, LEVEL + 1)
POOLS: Final = {"priority-one-agent": (1, 8), "priority-gangs": (4, 2), "priority-many": (6, 4)}
"""Name → how many agents, and how many slots each has."""
FACTS: Final = 250

History = list[tuple[Payload, list[Payload]]]


class Life:
    """Draws what happens in a pool: more is wanted than there is room for."""

    def __init__(self, seed: int, agents: int, slots: int, level: int) -> None:
        self.pool = Pool()
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._lives = {f"agent-{number}": 1 for number in range(agents)}
        self._slots = slots
        self._level = level
        self._asked = 0

    def facts(self) -> Iterator[Payload]:
        """Yield facts that fit what was decided on those before."""
        if self._level > 1:
            yield PoolUpgraded(pool=POOL, level=self._level)
        yield from (joined(agent, self._slots) for agent in self._lives)
        for _ in range(FACTS):
            running = list(self.pool.state.allocations)
            draw = self._random.random()
            if self._random.random() < 0.1:
                yield self._resources()
            elif draw < 0.5 or not running:
                yield self._request()
            elif draw < 0.93:
                yield self._of_allocation(self._random.choice(running), draw)
            else:
                yield self._of_agent(self._random.choice(list(self._lives)), draw)

    def _request(self) -> Payload:
        """Return a request, often for the next run of a trial that was there before."""
        self._asked += 1
        trial = (
            self._asked if self._random.random() < 0.7 else self._random.randint(1, self._asked)
        )
        return requested(
            f"{self._random.choice('abcd')}.{trial}.{self._asked}",
            self._random.choice([0, 1, 1, 1, 2, 4, 8]),
            self._random.choice([1, 20, 42, 42, 42, 60, 99]),
            self._random.choice([None, None, 8, 4]),
        )

    def _resources(self) -> Payload:
        return resources(
            self._random.choice("abcd"),
            self._random.choice([1, 20, 42, 60, 99]),
            self._random.choice([None, 8, 4, 2]),
            self._random.choice([1.0, 1.0, 3.0]),
        )

    def _of_allocation(self, name: str, draw: float) -> Payload:
        agents = list(self.pool.state.allocations[name].parts)
        if draw < 0.84:
            failed = self._random.choice(["", "", "", "rank 1: no memory"])
            return released(name, agents[0], self._lives[agents[0]], failed)
        if draw < 0.89:
            return withdrawn(name, self._random.choice(["preempt", "kill"]))
        return move(name.rpartition(".")[0], self._random.choice([None, *self._lives]))

    def _of_agent(self, agent: str, draw: float) -> Payload:
        life = self._lives[agent]
        if draw < 0.94:
            return drain(agent, life)
        if draw < 0.96:
            return suspended(agent, life)
        if draw < 0.98:
            return resumed(agent, life)
        if draw < 0.985:
            return left(agent, life)
        self._lives[agent] += 1
        return joined(agent, self._slots, life + 1)


def path_of(level: int, name: str) -> Path:
    """Return where the history of a pool at a logic level lies."""
    return FOLDER / f"level-{level}" / f"{name}.jsonl"


def record(level: int, name: str) -> History:
    """Return the history of a pool."""
    life = Life(len(name), *POOLS[name], level)
    return [(event, life.pool.tell(event)) for event in life.facts()]


def lines(history: Iterable[tuple[Payload, list[Payload]]]) -> Iterator[bytes]:
    """Yield every fact and its decisions in order, each as a line of JSON."""
    for position, (payload, decisions) in enumerate(history):
        cause = fact(
            payload,
            source="/rung/test",
            origin="test",
            sequence=position,
            time="2026-01-01T00:00:00Z",
        )
        yield encode(cause) + b"\n"
        for index, data in enumerate(decisions):
            event = decision(
                data, source="/rung/scheduler", cause=cause, position=position, index=index
            )
            yield encode(event) + b"\n"


def read(path: Path) -> list[Payload]:
    """Return the facts of a recorded history."""
    events: list[Event] = [decode(line) for line in path.read_bytes().splitlines()]
    return [event.data for event in events if event.causeposition is None]


def recorded(path: Path) -> bytes:
    """Return a recorded history as today's release writes it, with fields that came since."""
    return b"".join(encode(decode(line)) + b"\n" for line in path.read_bytes().splitlines())


def refold(facts: Iterable[Payload]) -> bytes:
    """Decide facts again; return them with all decisions."""
    pool = Pool()
    return b"".join(lines((event, pool.tell(event)) for event in facts))


def main() -> None:
    """Write the histories that are not there yet."""
    for level, name in product(LEVELS, sorted(POOLS)):
        path = path_of(level, name)
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(b"".join(lines(record(level, name))))


if __name__ == "__main__":
    main()
