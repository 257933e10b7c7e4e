"""The deciders of this version, and the audit of them all."""

from typing import Any, Final

from rung.checkpoint_gc.machine import CheckpointGC
from rung.host import Process, Verdict, audit
from rung.ledger import Ledger
from rung.scheduler.machine import Scheduler
from rung.searcher.machine import Searcher

DECIDERS: Final[tuple[Process[Any], ...]] = (Searcher(), Scheduler(), CheckpointGC())


async def audit_all(ledger: Ledger, experiment_id: str | None = None) -> list[Verdict]:
    """Decide again whatever is on record, or what concerns one experiment; a verdict a decider.

    The scheduler's decisions are about a whole pool, so they are all decided again even for one
    experiment.
    """
    return [
        await audit(
            ledger,
            process,
            key=experiment_id if process.facts == "experiments" else None,
        )
        for process in DECIDERS
    ]
