"""What `single`, `grid` and `random` share: trials that are trained in full and never compared.

Not a method by itself: those three say how many trials there are and what is drawn anew.
"""

from collections.abc import Collection

from msgspec import Struct

from rung.events.experiment import BracketPlan
from rung.methods.method import Chance, Create, Leaving, Move, Stop, Trial


class FullLength(Struct):
    """A number of trials, each trained to the same length.

    Attributes:
        trials: how many to train.
        length: how far, None: until they end by themselves.
        replaceable: how many trials with refused hyperparameters may be replaced.
        started: how many were created.
        replaced: how many of these make up for others.
    """

    trials: int
    length: int | None
    replaceable: int = 0
    started: int = 0
    replaced: int = 0

    def brackets(self) -> list[BracketPlan]:
        """Return one bracket that holds all trials."""
        lengths = [] if self.length is None else [self.length]
        return [BracketPlan(bracket=0, lengths=lengths, trials=self.trials)]

    def created(self, trial: Trial) -> None:  # noqa: ARG002 - all trials are alike
        """Count a trial."""
        self.started += 1

    def continued(self, trial: Trial) -> None:
        """Never happens: trials do not rest."""

    def stopped(self, trial: Trial) -> None:
        """Never happens: nothing is stopped."""

    def reported(self, trial: Trial, first: int) -> None:
        """Change nothing: nothing is compared."""

    def trained(self, trial: Trial) -> None:
        """Change nothing: the trial is done."""

    def left(self, trial: Trial, why: Leaving) -> None:  # noqa: ARG002 - all trials are alike
        """Have a trial replaced whose hyperparameters were refused."""
        if why == "invalid_hp" and self.replaced < self.replaceable:
            self.replaced += 1

    def stops(self) -> list[Stop]:
        """Return nothing: every trial is trained in full."""
        return []

    def moves(self, chance: Chance, free: int) -> list[Move]:
        """Return new trials."""
        wanted = self.trials + self.replaced - self.started
        return [self.create(chance, ahead) for ahead in range(max(min(free, wanted), 0))]

    def create(self, chance: Chance, ahead: int) -> Create:
        """Return a new trial, drawn independently."""
        return Create(chance.sample(ahead), self.length)

    def holds(self) -> Collection[str]:
        """Return nothing: trials start from scratch."""
        return ()
