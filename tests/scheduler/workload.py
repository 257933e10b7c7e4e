"""A long, mixed, reproducible life of a pool; prints the digest of its history when run.

Run as a program under different `PYTHONHASHSEED`, it shows that no decision depends on hashing.
"""

import hashlib
import random
import sys

import msgspec

from rung.events import Payload
from support.scheduler.scenario import Pool, joined, left, released, requested, withdrawn


class Workload:
    """Draws what happens next in a pool, from a seed."""

    def __init__(self, seed: int, agents: int) -> None:
        self.pool = Pool()
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._lives = {f"agent-{number}": 1 for number in range(agents)}
        self._count = 0
        self.pool.tell(*(joined(agent, 8) for agent in self._lives))

    def next(self) -> Payload:
        """Return the next fact, most often a request or a release."""
        draw = self._random.random()
        running = self.pool.state.allocations
        if draw < 0.45 or not running:
            return self._request()
        name = self._random.choice(list(running)) if draw < 0.99 else ""
        if draw < 0.9:
            agent = next(iter(running[name].parts))
            return released(name, agent, self._lives[agent])
        if name:
            return withdrawn(name, self._random.choice(["preempt", "kill"]))
        agent = self._random.choice(list(self._lives))
        if self._random.random() < 0.5:
            return left(agent, self._lives[agent])
        self._lives[agent] += 1
        return joined(agent, 8, self._lives[agent])

    def _request(self) -> Payload:
        self._count += 1
        experiment = self._random.choice(["alpha", "beta", "gamma", "delta"])
        return requested(
            f"{experiment}.{self._count}.1",
            self._random.choice([0, 1, 1, 1, 2, 4, 8, 16, 12]),
            self._random.choice([1, 42, 42, 42, 99]),
            self._random.choice([None, None, 32]),
        )


def main() -> None:
    """Print the digest of 3,000 facts and their decisions."""
    workload = Workload(seed=int(sys.argv[1]), agents=12)
    for _ in range(3_000):
        workload.pool.tell(workload.next())
    history = msgspec.json.encode([(e.TYPE, e) for e in workload.pool.history])
    state = msgspec.json.encode(workload.pool.state)
    sys.stdout.write(hashlib.sha256(history + state).hexdigest())


if __name__ == "__main__":
    main()
