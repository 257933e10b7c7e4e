"""The method `grid`: every point of a grid over the search space, each trained in full.

Points are taken in the order of `space.grid_point`: parameters sorted by path, the last one
changing fastest. A point whose hyperparameters the script refuses is not replaced.
"""

from rung.searcher.methods.full_length import Flat
from rung.searcher.search_settings import Search
from rung.searcher.space import Leaf, grid_size


class Grid(Flat, tag="grid"):
    """As many trials as the grid has points."""


def plan_grid(search: Search, space: list[Leaf]) -> Grid:
    """Return the method as configured."""
    return Grid(trials=grid_size(space), length=search.max_time)
