"""The method `single`: one trial, trained in full.

Hyperparameters that are not constants are drawn as for trial 0 of a random search, so that a
search space can be tried out by changing one word.
"""

from collections.abc import Sequence
from typing import ClassVar

from rung.methods.full_length import FullLength
from rung.methods.method import Examples, Method, SearchOptions
from rung.methods.space import Leaf


class Single(FullLength, tag="single"):
    """One trial."""


class Options(SearchOptions, tag="single", kw_only=True):
    """Train one trial, with the hyperparameters as they stand."""

    MAX_LENGTH = "any"
    SPACE = "constants"
    COMPARES = False
    NEEDS_VALUE = False
    ORDER_FREE = True
    STATES = (Single,)
    EXAMPLES: ClassVar[Examples] = {"single": {"max_time": 6}}

    def plan(self, space: Sequence[Leaf]) -> Method:  # noqa: ARG002 - one trial in any space
        """Return the one trial."""
        return Single(trials=1, length=self.max_time)

    def extension(self, trials: int | None, max_time: int | None) -> str | None:  # noqa: ARG002 - any length
        """Refuse more trials, and a length where there was none."""
        if trials is not None:
            return "it has one trial; `random` has more"
        return None if self.max_time is not None else "its trial has no length: it ends by itself"

    def trials(self, points: int) -> int:  # noqa: ARG002 - one trial in any space
        """Return one."""
        return 1
