"""Recorded histories: a search's facts and decisions as lines of JSON.

`python -m searcher.recording` (with `tests` on the path) writes those that are missing. They are
written once per method and logic level, and stay: today's code must decide every one of them again
as it was. A release that raises the level writes one more folder.
With paths as arguments it folds them instead and prints what it decided.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec

from rung.events import Event, Payload, decision, decode, encode, fact
from rung.events.installation import LEVEL
from rung.searcher.processor import Searcher
from searcher.world import AND_RESOURCES, World
from support.runtime.bare import Bare
from support.searcher.scenario import EXPERIMENT, config

FOLDER: Final = Path(__file__).parent / "histories"
LEVELS: Final = range(1, LEVEL + 1)

_GRID: Final = {"a": {"type": "int", "minval": 1, "maxval": 9, "count": 3}, "b": {"c": [1]}}

SEARCHES: Final[dict[str, dict[str, Any]]] = {
    "single": config("single"),
    "grid": config("grid", space=_GRID, max_concurrent_trials=2),
    "random": config("random", max_trials=6, max_concurrent_trials=3),
    "asha-stopping": config("async_halving", max_trials=12, num_rungs=3, divisor=2.0),
    "asha-promotion": config(
        "async_halving", max_trials=12, num_rungs=3, divisor=2.0, stop_once=False
    ),
    "adaptive-asha": config("adaptive_asha", max_trials=16, mode="conservative", divisor=2.0),
    "hyperband": config("hyperband", max_time=9, divisor=3.0, max_concurrent_trials=5),
}
ALL: Final = SEARCHES | {
    "random-unlimited": config("random", max_trials=120, max_time=1, max_concurrent_trials=0)
}
"""With one that decides in several steps."""

History = list[tuple[Payload, list[Payload]]]


def path_of(level: int, name: str) -> Path:
    """Return where the history of a search at a logic level lies."""
    return FOLDER / f"level-{level}" / f"{name}.jsonl"


def record(level: int, name: str) -> History:
    """Return the history of a search under faults."""
    world = World(ALL[name], len(name), AND_RESOURCES, 20, level=level)
    return world.run().scenario.history


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
                data, source="/rung/searcher", cause=cause, position=position, index=index
            )
            yield encode(event) + b"\n"


def read(path: Path) -> History:
    """Return a recorded history."""
    history: History = []
    for line in path.read_bytes().splitlines():
        event: Event = decode(line)
        if event.causeposition is None:
            history.append((event.data, []))
        else:
            history[-1][1].append(event.data)
    return history


def recorded(path: Path) -> bytes:
    """Return a recorded history."""
    return path.read_bytes()


def refold(history: History) -> bytes:
    """Decide every fact of a history again; return all decisions and the last state."""
    searcher = Bare(Searcher())
    state = searcher.initial(EXPERIMENT)
    again: list[tuple[Payload, list[Payload]]] = []
    states = b""
    for payload, _ in history:
        searcher.evolve(state, payload)
        decisions = searcher.decide(state, payload)
        for data in decisions:
            searcher.evolve(state, data)
        again.append((payload, decisions))
        states = msgspec.json.encode(state)
    return b"".join(lines(again)) + states


def main() -> None:
    """Write the histories that are not there yet."""
    for level, name in product(LEVELS, ALL):
        path = path_of(level, name)
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(b"".join(lines(record(level, name))))


if __name__ == "__main__":
    if sys.argv[1:]:
        for argument in sys.argv[1:]:
            sys.stdout.buffer.write(refold(read(Path(argument))))
    else:
        main()
