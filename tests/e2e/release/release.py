"""`rung up` of a release whose searcher raises where an experiment is paused: BROKEN names it."""

import os
import sys
from typing import Any

from rung.cli.__main__ import main
from rung.events.experiment import PauseRequested
from rung.searcher.processor import Searcher

evolve = Searcher.evolve


def broken(self: Searcher, state: Any, event: Any) -> None:
    """Fold an event, or raise."""
    if isinstance(event, PauseRequested) and event.experiment_id == os.environ["BROKEN"]:
        raise ValueError("a fault of this release")
    evolve(self, state, event)


Searcher.evolve = broken  # type: ignore[method-assign]  # so that whoever makes one has the fault
sys.argv[0] = "rung"
main()
