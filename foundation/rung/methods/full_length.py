"""What `single`, `grid` and `random` share: trials that are trained in full and never compared."""

from collections.abc import Iterator

from rung.events.experiment import BracketPlan
from rung.methods.method import Chance, Create, Leaving, Method, Move, Trial


class FullLength(Method):
    """A number of trials, each trained to the same length.

    Attributes:
        trials: how many to train.
        length: how far; None: until they end by themselves.
        replaceable: how many trials with refused hyperparameters may be replaced.
        started: how many were created.
        replaced: how many of these are replacements.
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

    def left(self, trial: Trial, why: Leaving) -> None:  # noqa: ARG002 - all trials are alike
        """Replace a trial whose hyperparameters were refused."""
        if why == "invalid_hp" and self.replaced < self.replaceable:
            self.replaced += 1

    def extend(self, trials: int | None, max_time: int | None) -> None:
        """Train more trials, or longer."""
        self.trials = trials or self.trials
        self.length = max_time or self.length
        self.replaceable = self.replaceable and self.trials

    def moves(self, chance: Chance, free: int) -> Iterator[Move]:
        """Yield new trials."""
        wanted = self.trials + self.replaced - self.started
        return (self.create(chance, ahead) for ahead in range(min(free, wanted)))

    def create(self, chance: Chance, ahead: int) -> Create:  # noqa: ARG002 - all are drawn alike
        """Return a new trial, drawn independently."""
        return Create(None, self.length)
