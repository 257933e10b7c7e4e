"""The method `random`: trials drawn independently, each trained in full.

Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13 (2012). A trial
whose hyperparameters the script refuses is replaced by a new one and does not count, up to
`max_trials` times in all, so that a search always ends. Trials are never compared.
"""

from rung.searcher.methods.full_length import Flat
from rung.searcher.search_settings import Search


class RandomSearch(Flat, tag="random"):
    """`max_trials` trials, and replacements."""


def plan_random(search: Search) -> RandomSearch:
    """Return the method as configured."""
    trials = search.need("max_trials")
    return RandomSearch(trials=trials, length=search.max_time, replaceable=trials)
