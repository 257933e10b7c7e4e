"""How far the deciders of a ledger are, and what they know: folded as they fold themselves.

From the newest snapshot, with what is on record behind it; nothing is written. So what is said of
agents, slots and experiments is the truth of the ledger and not of a process that may be down, and
decisions that are due are told from facts from which nothing follows.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct, field

from rung.events import UndecodableEvent, decode
from rung.ledger import Ledger
from rung.runtime import PartitionFold, Processor
from rung.runtime.processor.loop import recover, refold, scan_decisions
from rung.scheduler.state import State as Pool
from rung.searcher.state import State as Experiment

_LOOK_BACK: Final = 100
"""Decisions of which one answers the newest fact, although stragglers may lie behind it."""


class Decider(Struct, kw_only=True):
    """How far a process is, over all partitions."""

    name: str
    facts: int
    since_decision: int
    """Facts behind the newest one from which a decision on record follows."""
    pending: int = 0
    """Decisions that are due and not on record."""
    broken: dict[str, str] = field(default_factory=dict[str, str])
    """Keys that it cannot fold, with the reason."""
    left_alone: int = 0
    """Keys of a logic level that replicas, or this release, do not know."""
    level: int = 0
    """The highest such level."""
    since_snapshot: int = 0
    """Facts to fold again at a start."""
    snapshot_s: float | None = None
    """Age of the oldest partition's snapshot; None: a partition has none, or nobody looked."""


class PoolStatus(Struct, kw_only=True):
    """Agents and slots of a pool, as the scheduler sees them."""

    name: str
    agents: int
    slots: int
    idle: int
    waiting: int
    """Allocations."""
    problems: list[str] = field(default_factory=list[str])
    """Which agents take nothing, though they live, and why."""


class Due(Struct):
    """Decisions of a partition that were not on record when somebody looked."""

    decider: Decider
    topic: str
    partition: int
    position: int
    """Where the first of them is to lie."""
    count: int


class Knowledge(Struct):
    """What all deciders know together."""

    deciders: list[Decider] = field(default_factory=list[Decider])
    pools: list[PoolStatus] = field(default_factory=list[PoolStatus])
    due: list[Due] = field(default_factory=list[Due])
    experiments: Counter[str] = field(default_factory=Counter[str])
    """State → how many, of those that have not ended."""

    async def fold(self, ledger: Ledger, process: Processor[Any], *, from_snapshots: bool) -> None:
        """Fold a decider on all partitions.

        Raises:
            LedgerError: the ledger does not answer.
        """
        decider = Decider(name=process.name, facts=0, since_decision=0)
        ages: list[float | None] = []
        for partition in range(ledger.partitions(process.facts)):
            fold: PartitionFold[Any] = PartitionFold(process)
            if from_snapshots:
                fold = await recover(ledger, process, partition)
            ages.append(await _age(ledger, process.facts, partition, fold.facts))
            pending = await _fold(ledger, process, partition, fold, decider)
            if pending:
                self.due.append(
                    Due(decider, process.decisions, partition, fold.decisions, pending)
                )
            self._learn(fold)
        if all(age is not None for age in ages):
            decider.snapshot_s = max(age for age in ages if age is not None)
        self.deciders.append(decider)

    async def look_again(self, ledger: Ledger) -> None:
        """Count what is still due a while later; what is on record by now was only on its way.

        A partition's decisions come from one process, in the order in which they are due.

        Raises:
            LedgerError: the ledger does not answer.
        """
        for item in self.due:
            came = await ledger.end(item.topic, item.partition) - item.position
            item.decider.pending -= min(came, item.count)
        self.due.clear()

    def _learn(self, fold: PartitionFold[Any]) -> None:
        for state in fold.states():
            match state:
                case Pool():
                    offers = state.room.agents.values()
                    self.pools.append(
                        PoolStatus(
                            name=state.pool,
                            agents=len(offers),
                            slots=sum(offer.size for offer in offers),
                            idle=sum(len(offer.idle) for offer in offers),
                            waiting=len(state.queue) + len(state.zero_slot_queue),
                            problems=[
                                *(refused.reason for refused in state.refused.values()),
                                *(
                                    f"agent {agent_id} takes nothing new: {suspension.reason}"
                                    for agent_id, suspension in state.suspended.items()
                                ),
                            ],
                        )
                    )
                case Experiment() if state.phase not in {"new", "ended"}:
                    self.experiments[state.phase] += 1
                case _:
                    pass


async def _fold(
    ledger: Ledger,
    process: Processor[Any],
    partition: int,
    fold: PartitionFold[Any],
    decider: Decider,
) -> int:
    """Fold a partition up to its present end; return how many decisions are due in it."""
    end = await ledger.end(process.facts, partition)
    decider.facts += end
    decider.since_snapshot += end - fold.facts
    await scan_decisions(ledger, process, fold, partition)
    decider.since_decision += end - await _newest_decided(ledger, process, partition, fold) - 1
    pending = 0
    async for _, folded in refold(ledger, process, fold, partition, until=end):
        pending += len(folded.new)
    decider.pending += pending
    for key, reason in fold.quarantined.items():
        parked = fold.parked.get(key)
        if parked is not None and parked.level:
            decider.left_alone += 1
            decider.level = max(decider.level, parked.level)
        else:
            decider.broken[key] = reason
    return pending


async def _newest_decided(
    ledger: Ledger, process: Processor[Any], partition: int, fold: PartitionFold[Any]
) -> int:
    """Return the position of the newest fact from which a decision on record follows, or -1."""
    newest = -1
    start = max(fold.decisions - _LOOK_BACK, 0)
    for record in await ledger.read(process.decisions, partition, start, _LOOK_BACK):
        try:
            cause = decode(record.value).causeposition
        except UndecodableEvent:
            continue
        newest = newest if cause is None else max(newest, cause)
    return newest


async def _age(ledger: Ledger, facts: str, partition: int, position: int) -> float | None:
    """Return how long ago the last fact of a snapshot was written; 0 where there is no fact."""
    if position == 0:
        return None if await ledger.end(facts, partition) else 0.0
    records: Sequence[Any] = await ledger.read(facts, partition, position - 1, 1)
    try:
        written = datetime.fromisoformat(decode(records[0].value).time)
    except (IndexError, UndecodableEvent, ValueError):
        return None
    return max((datetime.now(UTC) - written).total_seconds(), 0.0)
