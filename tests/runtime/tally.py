"""A small decider for the tests of its host: counts, decides once, twice or never, and breaks."""

from msgspec import Struct

from rung.events import Event, Payload, fact
from rung.events.allocation import AllocationLost
from rung.events.experiment import (
    CancelRequested,
    ExperimentEnded,
    ExperimentPaused,
    ExperimentResumed,
    KillRequested,
    PauseRequested,
    ResumeRequested,
)


class Count(Struct):
    """How many pauses were asked for, and how many decisions were folded."""

    pauses: int = 0
    decisions: int = 0
    ended: int = 0
    """How many allocations were lost."""
    level: int = 1


Handles = (
    PauseRequested
    | ResumeRequested
    | KillRequested
    | AllocationLost
    | ExperimentPaused
    | ExperimentResumed
    | ExperimentEnded
)


class Tally:
    """Decides nothing on a resumption, `generosity` events on a pause, and breaks on a kill.

    A key ends at its pause number `last`.
    """

    name = "searcher"
    facts = "experiments"
    decisions = "searches"
    handles = Handles
    level = 1
    version = 1
    state_type = Count

    def __init__(self, generosity: int = 2, *, last: int = 1 << 30, breaks: bool = True) -> None:
        self.generosity = generosity
        self.last = last
        self.breaks = breaks

    def initial(self, key: str) -> Count:
        """Nothing is counted yet."""
        return Count()

    def evolve(self, state: Count, event: Payload) -> None:
        """Count."""
        match event:
            case PauseRequested():
                state.pauses += 1
            case ExperimentPaused() | ExperimentResumed() | ExperimentEnded():
                state.decisions += 1
            case AllocationLost():
                state.ended += 1
            case KillRequested() if self.breaks:
                state.pauses = -1_000
                raise ValueError("cannot fold a kill")
            case _:
                pass

    def decide(self, state: Count, fact: Payload) -> list[Payload]:
        """Answer each pause with the number of pauses so far."""
        if not isinstance(fact, PauseRequested):
            return []
        key = fact.experiment_id
        ended = ExperimentEnded(experiment_id=key, state="completed", reason=f"{state.pauses}")
        both: list[Payload] = [ExperimentPaused(experiment_id=key), ended]
        return both[: self.generosity]

    def ended(self, state: Count) -> bool:
        """Return whether the last pause was counted."""
        return state.pauses >= self.last


def pause(number: int, key: str = "a") -> Event:
    """Return the fact that a pause was asked for, with its origin's number."""
    return _asked(PauseRequested(experiment_id=key), number)


def resume(number: int, key: str = "a") -> Event:
    """Return a fact from which nothing follows."""
    return _asked(ResumeRequested(experiment_id=key), number)


def canceled(number: int, key: str = "a") -> Event:
    """Return a fact that the process does not handle."""
    return _asked(CancelRequested(experiment_id=key), number)


def kill(number: int, key: str = "a") -> Event:
    """Return the fact that breaks the process."""
    return _asked(KillRequested(experiment_id=key), number)


def _asked(
    data: PauseRequested | ResumeRequested | CancelRequested | KillRequested, number: int
) -> Event:
    origin = f"gateway/{data.experiment_id}"
    return fact(data, source="/rung/gateway", origin=origin, sequence=number, time="t")
