"""Projections: read models in SQLite files, folded from the ledger; rebuildable at any time."""

from rung.runtime.projection.merge import Merge
from rung.runtime.projection.projection import Projection
from rung.runtime.projection.runner import Projections
from rung.runtime.projection.store import Store

__all__ = ["Merge", "Projection", "Projections", "Store"]
