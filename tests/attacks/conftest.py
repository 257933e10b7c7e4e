"""Generated attacks: their seed, their time, and the repetition of one round.

Each test of this folder asks for `attack` and takes its rounds from it. Environment variables:

    RUNG_ATTACK_SEED     fixes what is generated; another one each time if not set
    RUNG_ATTACK_SECONDS  time of each module, 30 if not set; tests share it
    RUNG_ATTACK_ROUND    runs this round alone, to repeat a failure

A failing test prints the seed and the round that failed.
"""

import os
import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SECONDS: Final = "RUNG_ATTACK_SECONDS"
SEED: Final = "RUNG_ATTACK_SEED"
ROUND: Final = "RUNG_ATTACK_ROUND"
_TIMEOUT_S: Final = 120.0
"""What a test may take besides its time for rounds."""

_drawn: Final = secrets.randbelow(1 << 32)


class Attack:
    """One test's source of rounds.

    Attributes:
        seed: fixes every draw of every round.
        seconds: the time of the whole module.
        round: number of the round that runs or ran last.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.seed: Final = int(os.environ.get(SEED) or _drawn)
        self.seconds: Final = float(os.environ.get(SECONDS) or 30.0)
        self.round = 0

    def chance(self, number: int) -> random.Random:
        """Return the random numbers of one round of this test."""
        return random.Random(f"{self.seed}/{self._name}/{number}")  # noqa: S311 - repeatable

    def rounds(self, share: float = 1.0, *, least: int = 1) -> Iterator[random.Random]:
        """Yield the random numbers of round 0, 1, … until the time is over.

        Args:
            share: of the module's time, above 0 and at most 1.
            least: rounds that run whatever they take.
        """
        if ROUND in os.environ:
            self.round = int(os.environ[ROUND])
            yield self.chance(self.round)
            return
        end = time.monotonic() + share * self.seconds
        while self.round < least or time.monotonic() < end:
            yield self.chance(self.round)
            self.round += 1

    def __str__(self) -> str:
        return f"{SEED}={self.seed} {ROUND}={self.round} repeats the last round"


@pytest.fixture
def attack(request: pytest.FixtureRequest) -> Iterator[Attack]:
    """Give a test its rounds; pytest shows what is printed here if the test fails."""
    found = Attack(request.node.name)
    print(f"{SEED}={found.seed}")  # noqa: T201 - shown where the test fails
    yield found
    print(found)  # noqa: T201 - as above


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of this folder take the time that was asked for."""
    seconds = float(os.environ.get(SECONDS) or 30.0)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(seconds + _TIMEOUT_S))
