"""The deciders of this version, and the audit of them all."""

from typing import Any, Final

import msgspec

from rung import answer
from rung.checkpoint_gc.machine import CheckpointGC
from rung.host import Difference, Process, Verdict, audit
from rung.host.import_audit import audit_imports
from rung.ledger import Ledger
from rung.scheduler.machine import Scheduler
from rung.searcher.machine import Searcher

DECIDERS: Final[tuple[Process[Any], ...]] = (Searcher(), Scheduler(), CheckpointGC())


async def audit_all(ledger: Ledger, experiment_id: str | None = None) -> answer.Audit:
    """Decide again whatever is on record, or what concerns one experiment.

    The scheduler's decisions are about a whole pool, so they are all decided again even for one
    experiment.
    """
    verdicts = [
        await audit(
            ledger,
            process,
            key=experiment_id if process.facts == "experiments" else None,
        )
        for process in DECIDERS
    ]
    imports = await audit_imports(ledger, experiment_id)
    return answer.Audit(
        same=all(verdict.same for verdict in verdicts) and not imports,
        decisions=sum(verdict.decisions for verdict in verdicts),
        differences=[
            _difference(verdict.process, item)
            for verdict in verdicts
            for item in verdict.differences
        ],
        verdicts=[_verdict(verdict) for verdict in verdicts],
        imports=imports,
    )


def _difference(process: str, item: Difference) -> answer.Difference:
    return answer.Difference(process=process, **msgspec.structs.asdict(item))


def _verdict(verdict: Verdict) -> answer.Verdict:
    return answer.Verdict(
        process=verdict.process,
        facts=verdict.facts,
        decisions=verdict.decisions,
        pending=verdict.pending,
        differences=len(verdict.differences),
        unreadable=verdict.unreadable,
    )
