"""The port of a search method: a small pure machine. Seven methods fold, two read."""

from typing import Protocol

from rung.events.experiment import BracketPlan
from rung.searcher.methods.actions import Leaving, Move, Stop
from rung.searcher.trial import Trial


class Method(Protocol):
    """What the searcher tells a method, and asks it."""

    def brackets(self) -> list[BracketPlan]:
        """Return what the search will be."""

    def opened(self, trial: Trial) -> None:
        """Fold that a trial was created, to be trained."""

    def promoted(self, trial: Trial) -> None:
        """Fold that a resting trial trains on, for `trial.rung`."""

    def stopped(self, trial: Trial) -> None:
        """Fold that a trial was given up."""

    def reported(self, trial: Trial, first: int) -> None:
        """Fold a report, which reached the rungs from `first` to the end of `trial.results`."""

    def trained(self, trial: Trial) -> None:
        """Fold that a run is over and reached its length."""

    def left(self, trial: Trial, why: Leaving) -> None:
        """Fold that a trial's runs are over before it reached its length."""

    def stops(self) -> list[Stop]:
        """Return the trials to be given up now."""

    def moves(self, free: int) -> list[Move]:
        """Return what to train next, at most `free` moves, the most wanted first."""
