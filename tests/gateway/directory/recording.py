"""Recorded histories: a directory's requests and decisions as lines of JSON.

`python -m gateway.directory.recording` (with `tests` on the path) writes those that are missing.
They are written once per logic level and stay: today's code must decide every one of them again
as it was. A release that raises the level writes one more folder.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gateway.directory.scenario import Office
from rung.events import Payload, decision, decode, encode, fact
from rung.events.directory import ChangeRequested
from rung.events.installation import LEVEL
from rung.sim.company import Company

FOLDER: Final = Path(__file__).parent / "histories"
LEVELS: Final = range(1, LEVEL + 1)
COMPANIES: Final = {"small": 11, "busy": 12}
"""Name → the seed of what is asked."""
REQUESTS: Final = 300


def path_of(level: int, name: str) -> Path:
    """Return where the history of a company at a logic level lies."""
    return FOLDER / f"level-{level}" / f"{name}.jsonl"


def drawn(level: int, name: str) -> list[ChangeRequested]:
    """Return the requests of a company."""
    company = Company(COMPANIES[name], level=level)
    return [company.next() for _ in range(REQUESTS)]


def refold(requests: Iterable[Payload]) -> bytes:
    """Decide requests; return them with all decisions."""
    office = Office()
    return b"".join(
        line
        for position, request in enumerate(requests)
        if isinstance(request, ChangeRequested)
        for line in _lines(position, request, office.tell(request))
    )


def _lines(position: int, request: Payload, decisions: Iterable[Payload]) -> Iterator[bytes]:
    cause = fact(
        request,
        source="/rung/test",
        origin="test",
        sequence=position,
        time="2026-01-01T00:00:00Z",
    )
    yield encode(cause) + b"\n"
    for index, data in enumerate(decisions):
        event = decision(
            data, source="/rung/directory", cause=cause, position=position, index=index
        )
        yield encode(event) + b"\n"


def read(path: Path) -> list[Payload]:
    """Return the requests of a recorded history."""
    events = [decode(line) for line in path.read_bytes().splitlines()]
    return [event.data for event in events if event.causeposition is None]


def recorded(path: Path) -> bytes:
    """Return a recorded history as today's release writes it, with fields that came since."""
    return b"".join(encode(decode(line)) + b"\n" for line in path.read_bytes().splitlines())


def main() -> None:
    """Write the histories that are not there yet."""
    for level in LEVELS:
        for name in sorted(COMPANIES):
            path = path_of(level, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_bytes(refold(drawn(level, name)))


if __name__ == "__main__":
    main()
