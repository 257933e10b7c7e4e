"""The searcher: which trials exist, how far each trains, when it stops, when a search ends."""

from rung.searcher.processor import Searcher
from rung.searcher.simulate import Simulated, simulate

__all__ = ["Searcher", "Simulated", "simulate"]
