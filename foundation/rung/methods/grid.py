"""The method `grid`: every point of a grid over the search space, each trained in full.

Points are taken in the order of `space.grid_point`: parameters sorted by path, the last one
changing fastest. A point whose hyperparameters the script refuses is not replaced.
"""

from collections.abc import Sequence
from typing import ClassVar

from rung.methods.full_length import FullLength
from rung.methods.method import Chance, Create, Examples, ManyTrials, Method
from rung.methods.space import Leaf, grid_point, grid_size


class Grid(FullLength, tag="grid"):
    """As many trials as the grid has points."""

    def create(self, chance: Chance, ahead: int) -> Create:
        """Return the trial of the grid's next point."""
        return Create(grid_point(chance.space, chance.created + ahead), self.length)


class Options(ManyTrials, tag="grid", kw_only=True):
    """Train one trial for every combination of the hyperparameters' values."""

    MAX_LENGTH = "any"
    SPACE = "counted"
    COMPARES = False
    ORDER_FREE = True
    STATES = (Grid,)
    EXAMPLES: ClassVar[Examples] = {"grid": {"max_time": 5, "max_concurrent_trials": 3}}

    def plan(self, space: Sequence[Leaf]) -> Method:
        """Return the grid over the space."""
        return Grid(trials=grid_size(space), length=self.max_time)

    def trials(self, points: int) -> int:
        """Return one for each point."""
        return points

    def extension(self, trials: int | None, max_time: int | None) -> str | None:
        """Refuse all: there are as many trials as points, and those that ended train no more."""
        if trials is not None:
            return "a grid has one trial for each of its points; change the space"
        return "trials of it may have ended, which would not train on" if max_time else None
