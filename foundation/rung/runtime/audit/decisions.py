"""Audits decisions: decides every fact again and compares with the decisions on record.

A decision on record whose fact is missing differs, too. That a fact was rejected is taken from the
record: it is no decision of the processor's.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from rung.events import Payload
from rung.ledger import Ledger
from rung.runtime.processor.fold import PartitionFold, Rejected, is_own
from rung.runtime.processor.processor import Processor
from rung.runtime.processor.replay import refold, scan_decisions, take_decisions


class Difference(Struct, frozen=True, kw_only=True):
    """A decision on record that is decided otherwise today."""

    key: str
    position: int
    """Of the fact."""
    index: int
    """Of the decision among those of its fact."""
    recorded: dict[str, Any] | None
    """On record, `{type, data}`; None: nothing is."""
    decided: dict[str, Any] | None
    """Decided today; None: nothing is."""


class Verdict(Struct, kw_only=True):
    """The result of an audit of one processor."""

    process: str
    facts: int = 0
    decisions: int = 0
    """How many decisions were decided again."""
    pending: int = 0
    """Decisions that are not on record yet."""
    differences: list[Difference] = field(default_factory=list[Difference])
    unreadable: list[str] = field(default_factory=list[str])
    """Records that could not be folded, and decisions without their facts, one line each."""

    @property
    def same(self) -> bool:
        """Whether the decisions on record are those of today."""
        return not self.differences and not self.unreadable


async def audit(ledger: Ledger, process: Processor[Any], *, key: str | None = None) -> Verdict:
    """Decide every fact again, or those of one key.

    Snapshots are not used, nothing is written, and memory is bounded.
    """
    verdict = Verdict(process=process.name)
    for partition in range(ledger.partitions(process.facts)):
        await _audit_partition(ledger, process, partition, key, verdict)
    return verdict


async def _audit_partition(
    ledger: Ledger, process: Processor[Any], partition: int, key: str | None, verdict: Verdict
) -> None:
    fold: PartitionFold[Any] = PartitionFold(process, only=None if key is None else {key})
    facts = 0
    facts_end = await ledger.end(process.facts, partition)
    verdict.unreadable += map(_line, await scan_decisions(ledger, process, fold, partition))
    async for record, folded in refold(
        ledger, process, fold, partition, until=facts_end, compare=True
    ):
        if key not in {None, record.key}:
            continue
        if folded.rejected and not folded.new:
            verdict.unreadable.append(_line(folded.rejected))
        if record.topic == process.facts and record.position >= facts:
            verdict.facts += 1  # those that waited are folded once more
            facts = record.position + 1
        recorded = [event.data for event in folded.recorded if is_own(event.data)]
        verdict.decisions += len(folded.recorded)
        verdict.pending += len(folded.new)
        decided = folded.decided or []
        on_record = len(decided) - sum(is_own(event.data) for event in folded.new)
        verdict.differences += _compare(record.key, record.position, recorded, decided[:on_record])
    # A running service may have decided on facts that were appended meanwhile.
    await take_decisions(ledger, process, fold, partition, None)
    came = range(facts_end, await ledger.end(process.facts, partition))
    for name, cause, count in _without_facts(fold, came):
        verdict.unreadable.append(
            f"{process.decisions}/{partition}: decisions of {name} on facts that are not "
            f"there: {count}, the first on position {cause} of {process.facts}"
        )


def _without_facts(fold: PartitionFold[Any], came: range) -> Iterator[tuple[str, int, int]]:
    """Yield keys with decisions whose facts are missing: the first such fact, and how many."""
    missing: dict[str, list[int]] = {}
    for key, cause in fold.recorded.waiting():
        if cause not in came:
            missing.setdefault(key, []).append(cause)
    return ((key, causes[0], len(causes)) for key, causes in missing.items())


def _line(rejected: Rejected) -> str:
    record, reason, _ = rejected
    return f"{record.topic}/{record.partition} position {record.position}: {reason}"


def _compare(
    key: str, position: int, recorded: list[Payload], decided: list[Payload]
) -> list[Difference]:
    differences = []
    for index in range(max(len(recorded), len(decided))):
        then = recorded[index] if index < len(recorded) else None
        today = decided[index] if index < len(decided) else None
        if then != today:
            differences.append(
                Difference(
                    key=key,
                    position=position,
                    index=index,
                    recorded=_plain(then),
                    decided=_plain(today),
                )
            )
    return differences


def _plain(data: Payload | None) -> dict[str, Any] | None:
    return None if data is None else {"type": data.TYPE, "data": msgspec.to_builtins(data)}
