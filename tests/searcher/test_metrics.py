"""What the searcher tells of restarts."""

import msgspec

from rung.events import Event, Payload, encode, fact
from rung.events.docs.examples import EXAMPLES
from rung.events.trial import RunRequested, TrialExited
from rung.ledger import Record
from rung.runtime.metrics import catalog
from rung.searcher.metrics import Restarts

_RUN = next(example for example in EXAMPLES if isinstance(example, RunRequested))
_EXIT = next(example for example in EXAMPLES if isinstance(example, TrialExited))


def _count() -> float:
    for line in catalog.METER.expose().decode().splitlines():
        if line.startswith("rung_trial_restarts_total "):
            return float(line.split()[1])
    raise AssertionError


def _fact(data: Payload) -> Event:
    return fact(data, source="/x", origin="x", sequence=7, time="t")


def _seen(cause: Payload, run: int) -> float:
    """Return by how much the count grows by a run that follows from a fact."""
    before = _count()
    event = _fact(cause)
    asked = msgspec.structs.replace(
        _RUN, spec=msgspec.structs.replace(_RUN.spec, run=run, trial_id=_EXIT.trial_id)
    )
    decision = msgspec.structs.replace(_fact(asked), causeposition=5, causeindex=0)
    Restarts().see([Record(event.topic, 0, 5, event.key, encode(event))], [decision])
    return _count() - before


def test_a_run_after_a_failure_is_a_restart() -> None:
    """Of the same trial, and not its first one."""
    failed = msgspec.structs.replace(_EXIT, outcome="failed")

    assert _seen(failed, run=2) == 1
    assert _seen(failed, run=1) == 0
    assert _seen(msgspec.structs.replace(failed, trial_id="k3f9x2ma.999"), run=2) == 0


def test_a_cause_that_cannot_be_read_is_no_restart() -> None:
    """Nor does it end the searcher."""
    asked = msgspec.structs.replace(_RUN, spec=msgspec.structs.replace(_RUN.spec, run=2))
    decision = msgspec.structs.replace(_fact(asked), causeposition=5, causeindex=0)
    before = _count()

    Restarts().see([Record("experiments", 0, 5, "k", b"{")], [decision])

    assert _count() == before


def test_a_promotion_is_no_restart() -> None:
    """Nor is what follows a preemption."""
    assert _seen(msgspec.structs.replace(_EXIT, outcome="finished"), run=2) == 0
    assert _seen(msgspec.structs.replace(_EXIT, outcome="preempted"), run=2) == 0
