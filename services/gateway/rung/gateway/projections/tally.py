"""Tally of an experiment: its trials and checkpoints, counted as they change.

What is shown of an experiment beside its trials, and what its progress and its time left follow
from, are sums over its trials. Each trial has a share in them (`Share`); where a trial changed,
its old share is taken away and its new one added. So an answer costs the same with ten trials and
with ten thousand. A new plan, a pause and a resumption change the shares of all trials: these are
counted anew.

Invariant: a tally equals that of the same trials and checkpoints counted anew. Hence units are
counted in whole millionths: then their sum does not depend on the order.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec import Struct, field

from rung import api
from rung.events.experiment import BracketPlan

if TYPE_CHECKING:
    from rung.gateway.projections.experiment import Experiment, Trial

N = TypeVar("N", int, float)

_PARTS: Final = 1e6
_UNITS_MAX: Final = 1e18


class Share(NamedTuple):
    """The share of a trial."""

    phase: api.TrialPhase
    bracket: int
    rungs: int = 0
    """How many rungs it reached."""
    passed: int = 0
    """The same, without those that it passed after it was stopped, and with one where it left
    without being stopped: as results that the search has."""
    went_on: tuple[int, ...] = ()
    """By rung that it passed: whether it trains on, or did, beyond it."""
    trained: tuple[float, ...] = ()
    """Between each two rungs, in millionths of a unit."""
    overrun: float | None = None
    """Trained beyond the rung at which it was stopped, in millionths of a unit."""
    closed: bool = False
    open: bool = False
    """Its run was requested and is not over."""

    @classmethod
    def of(cls, experiment: "Experiment", trial: "Trial", phase: api.TrialPhase) -> "Share":
        """Return the share of a trial that is in this phase."""
        closed, opened = trial.closed is not None, trial.run > trial.over
        lengths = lengths_of(experiment.plan, trial.bracket)
        if not lengths:
            left = closed and trial.stopped is None
            return cls(phase, trial.bracket, passed=int(left), closed=closed, open=opened)
        time, last = trial.time, len(lengths) - 1
        rungs = passed = sum(1 for length in lengths if time >= length)
        overrun = None
        if trial.stopped_rung is not None:
            passed = min(passed, trial.stopped_rung + 1)
            if trial.stopped_rung <= last:
                overrun = _parts(max(time - lengths[trial.stopped_rung], 0.0))
        goes_on = not closed and trial.stopped is None
        length = float("inf") if trial.length is None else trial.length
        went_on = tuple(
            int(rung < passed - 1 or (goes_on and length > lengths[rung]))
            for rung in range(min(passed, last))
        )
        left = closed and trial.stopped is None and passed <= last
        begins = (0, *lengths[:-1])
        trained = tuple(
            _parts(max(min(time, end) - begin, 0.0))
            for begin, end in zip(begins, lengths, strict=True)
        )
        return cls(
            phase, trial.bracket, rungs, passed + left, went_on, trained, overrun, closed, opened
        )


class BracketTally(Struct, array_like=True):
    """The trials of a bracket.

    Attributes:
        trials: all of them.
        closed: those that will not train on.
        open: those that have a run.
        reached: by rung, those that reached it.
        passed: by rung, the results that the search has of it.
        went_on: by rung but the last, those of them that trained on.
        trained: between each two rungs, in millionths of a unit.
        stopped: those that were stopped at a rung.
        overrun: what these trained beyond it, in millionths of a unit.
    """

    trials: int = 0
    closed: int = 0
    open: int = 0
    reached: list[int] = field(default_factory=list[int])
    passed: list[int] = field(default_factory=list[int])
    went_on: list[int] = field(default_factory=list[int])
    trained: list[float] = field(default_factory=list[float])
    stopped: int = 0
    overrun: float = 0.0

    def add(self, share: Share, sign: int) -> None:
        """Add the share of a trial, or take it away."""
        self.trials += sign
        self.closed += sign * share.closed
        self.open += sign * share.open
        _add(self.reached, (1,) * share.rungs, sign)
        _add(self.passed, (1,) * share.passed, sign)
        _add(self.went_on, share.went_on, sign)
        _add(self.trained, share.trained, sign)
        if share.overrun is not None:
            self.stopped += sign
            self.overrun += sign * share.overrun

    def units(self, stretch: int) -> float:
        """Return what its trials trained between two rungs, in units."""
        return self.trained[stretch] / _PARTS if stretch < len(self.trained) else 0.0

    @property
    def overrun_units(self) -> float:
        """What stopped trials trained beyond their rung, in units."""
        return self.overrun / _PARTS


class TopTrial(Struct, array_like=True, gc=False):
    """The trial with the best value of the searcher's metric; of equal ones the first."""

    index: int
    value: float
    steps: int


class Tally(Struct, array_like=True):
    """The trials and checkpoints of an experiment.

    Attributes:
        phases: of trials → how many are in it.
        brackets: by number.
        best: None before the first finite value.
        checkpoints: phase of checkpoints → how many are in it.
        kept_bytes: size of the checkpoints in the object store.
    """

    phases: dict[str, int] = field(default_factory=dict[str, int])
    brackets: dict[int, BracketTally] = field(default_factory=dict[int, BracketTally])
    best: TopTrial | None = None
    checkpoints: dict[str, int] = field(default_factory=dict[str, int])
    kept_bytes: int = 0

    @property
    def trials(self) -> int:
        """How many there are."""
        return sum(self.phases.values())

    def bracket(self, number: int) -> BracketTally:
        """Return the trials of a bracket, none where it has none."""
        return self.brackets.get(number) or BracketTally()

    def recount(self, shares: Iterable[Share]) -> None:
        """Count the shares of all trials anew."""
        self.phases, self.brackets = {}, {}
        for share in shares:
            self.add(share, 1)

    def add(self, share: Share, sign: int) -> None:
        """Add the share of a trial, or take it away."""
        _count(self.phases, share.phase, sign)
        if share.bracket not in self.brackets:
            self.brackets[share.bracket] = BracketTally()
            self.brackets = dict(sorted(self.brackets.items()))
        self.brackets[share.bracket].add(share, sign)

    def count_checkpoint(
        self, size_bytes: int, before: api.CheckpointPhase | None, now: api.CheckpointPhase
    ) -> None:
        """Count a checkpoint that is new, or in another phase."""
        if before is not None:
            _count(self.checkpoints, before, -1)
        _count(self.checkpoints, now, 1)
        if now == "deleted" and before is not None:
            self.kept_bytes -= size_bytes
        elif before is None and now != "deleted":
            self.kept_bytes += size_bytes

    @property
    def kept(self) -> int:
        """How many checkpoints are in the object store."""
        return sum(count for phase, count in self.checkpoints.items() if phase != "deleted")


def lengths_of(plan: Iterable[BracketPlan], bracket: int) -> list[int]:
    """Return the lengths of a bracket's rungs."""
    return next((each.lengths for each in plan if each.bracket == bracket), [])


def at(counts: list[int], place: int) -> int:
    """Return a count of a list, 0 beyond its end."""
    return counts[place] if place < len(counts) else 0


def _parts(units: float) -> float:
    return float(round(min(units, _UNITS_MAX) * _PARTS))


def _count(counts: dict[str, int], name: str, sign: int) -> None:
    """Add to a count; names are in order, and none has the count 0, however they came."""
    known = name in counts
    counts[name] = counts.get(name, 0) + sign
    if not counts[name]:
        del counts[name]
    elif not known:
        names = sorted(counts.items())
        counts.clear()
        counts.update(names)


def _add(counts: list[N], more: Sequence[N], sign: int) -> None:
    """Add to the first counts of a list; zeros at its end are left out."""
    counts.extend([more[0] * 0] * (len(more) - len(counts)) if more else ())
    for place, count in enumerate(more):
        counts[place] += sign * count
    while counts and not counts[-1]:
        counts.pop()
