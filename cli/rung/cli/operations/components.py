"""Processors, relays and sinks of all services; the audit that decides by all processors."""

import contextlib
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from rung import api
from rung.cli.operations.service import tables
from rung.events import UndecodableEvent, topic
from rung.events.codec import decode_handled
from rung.events.experiment import ExperimentRetired
from rung.gateway.projections.read_models import PROJECTIONS
from rung.gateway.projections.read_models import READER as GATEWAY
from rung.ledger import Ledger
from rung.ledger.seals.verify import Known, verify
from rung.metrics.service import NAME as METRICS
from rung.metrics.service import TOPICS as METRICS_TOPICS
from rung.runtime import Difference, Processor, Verdict, audit
from rung.runtime.audit.imports import audit_imports
from rung.runtime.relay import Relay
from rung.runtime.service import Component, Decider
from rung.runtime.sink.sink import Sink

_READ_MAX: Final = 2_000
_RETIRED: Final = frozenset({ExperimentRetired.TYPE})
_COMPONENTS: Final[tuple[Component, ...]] = tuple(chain.from_iterable(tables().values()))

PROCESSORS: Final[tuple[Processor[Any], ...]] = tuple(
    it.processor for it in _COMPONENTS if isinstance(it, Decider)
)
RELAYS: Final = tuple(it for it in _COMPONENTS if isinstance(it, Relay))
SINKS: Final = tuple(it for it in _COMPONENTS if isinstance(it, Sink))
CONSUMERS: Final = tuple((it.name, it.topic) for it in _COMPONENTS if isinstance(it, Relay | Sink))
"""Name and topic of each consumer that commits positions. An import commits the positions behind
its records, since these were processed where they come from."""
READERS: Final[Mapping[tuple[str, str], api.ReaderKind]] = {
    **{(it.name, it.facts): "processor" for it in PROCESSORS},
    **{(it.name, it.topic): "relay" for it in RELAYS},
    **{(it.name, it.topic): "sink" for it in SINKS},
    **{(METRICS, name): "sink" for name in METRICS_TOPICS},
    **{(GATEWAY, name): "projection" for make in PROJECTIONS for name in make().topics},
}
"""Readers that accept requests about dead letters: name and topic → kind."""


async def audit_all(
    ledger: Ledger,
    experiment_id: str | None = None,
    *,
    seals: api.SealReport | None = None,
    keys: frozenset[str] = frozenset(),
) -> api.Audit:
    """Check a ledger against its seals, and decide again what is on record.

    Seals cover ranges of records, and the scheduler decides about whole pools, so both are checked
    entirely even for one experiment.

    Args:
        ledger: what to read.
        experiment_id: decide again only what concerns this experiment.
        seals: the report on the seals, if they were checked already.
        keys: the trusted public keys; those that signed the heads if none are given.
    """
    report = seals or await verify(ledger, Known(keys=keys))
    verdicts = [
        await audit(
            ledger,
            process,
            key=experiment_id if process.facts == "experiments" else None,
        )
        for process in PROCESSORS
    ]
    imports = await audit_imports(ledger, experiment_id)
    return api.Audit(
        same=report.whole and all(verdict.same for verdict in verdicts) and not imports,
        decisions=sum(verdict.decisions for verdict in verdicts),
        differences=[
            _difference(verdict.process, item)
            for verdict in verdicts
            for item in verdict.differences
        ],
        verdicts=[_verdict(verdict) for verdict in verdicts],
        imports=imports,
        deleted=await _deleted(ledger, experiment_id),
        seals=report,
    )


async def _deleted(ledger: Ledger, experiment_id: str | None) -> dict[str, str]:
    """Return when experiments, or the one, were deleted."""
    found: dict[str, str] = {}
    for partition in range(ledger.partitions(topic.RETIREMENTS)):
        position = await ledger.start(topic.RETIREMENTS, partition)
        while records := await ledger.read(topic.RETIREMENTS, partition, position, _READ_MAX):
            position = records[-1].position + 1
            for record in records:
                if experiment_id not in {None, record.key}:
                    continue
                with contextlib.suppress(UndecodableEvent):
                    event = decode_handled(record.value, _RETIRED)
                    if event is not None:
                        found.setdefault(record.key, event.time)
    return found


def _difference(process: str, item: Difference) -> api.Difference:
    return api.Difference(process=process, **msgspec.structs.asdict(item))


def _verdict(verdict: Verdict) -> api.Verdict:
    return api.Verdict(
        process=verdict.process,
        facts=verdict.facts,
        decisions=verdict.decisions,
        pending=verdict.pending,
        differences=len(verdict.differences),
        unreadable=verdict.unreadable,
    )
