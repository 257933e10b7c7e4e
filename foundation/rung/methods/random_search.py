"""The method `random`: trials drawn independently, each trained in full.

Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13 (2012). A trial
whose hyperparameters the script refuses is replaced by a new one and does not count, up to
`max_trials` times in all, so that a search always ends.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from rung.methods.full_length import FullLength
from rung.methods.method import Examples, ManyTrials, MaxTrials, Method
from rung.methods.space import Leaf


class RandomSearch(FullLength, tag="random"):
    """`max_trials` trials, and replacements."""


class Options(ManyTrials, tag="random", kw_only=True):
    """Train a number of trials with hyperparameters drawn at random."""

    MAX_LENGTH = "any"
    COMPARES = False
    ORDER_FREE = True
    STATES = (RandomSearch,)
    EXAMPLES: ClassVar[Examples] = {
        "random": {"max_time": 5, "max_trials": 8, "max_concurrent_trials": 3}
    }

    max_trials: Annotated[MaxTrials, Meta(description="How many trials to train.")]

    def plan(self, space: Sequence[Leaf]) -> Method:  # noqa: ARG002 - any space can be drawn from
        """Return the trials."""
        trials = self.max_trials
        return RandomSearch(trials=trials, length=self.max_time, replaceable=trials)

    def extension(self, trials: int | None, max_time: int | None) -> str | None:  # noqa: ARG002 - any number
        """Refuse more length, which trials that have ended would not train."""
        if max_time is None:
            return None
        return "trials of it may have ended, which would not train on; give it more trials"

    def trials(self, points: int) -> int:  # noqa: ARG002 - drawn, not enumerated
        """Return `max_trials`."""
        return self.max_trials
