"""The method `single`: one trial, trained in full.

Decides nothing beyond that. Hyperparameters that are not constants are drawn as for trial 0 of a
random search, so that a search space can be tried out by changing one word.
"""

from rung.searcher.methods.full_length import Flat
from rung.searcher.search_settings import Search


class Single(Flat, tag="single"):
    """One trial."""


def plan_single(search: Search) -> Single:
    """Return the method as configured."""
    return Single(trials=1, length=search.max_time)
