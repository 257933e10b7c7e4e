"""The status of a cluster: its records, the problems that follow from them, and how it is printed.

`survey` fills the records in.
"""

from datetime import datetime, timedelta
from typing import Final

import click
from msgspec import Struct, field

from rung.cli.operations.cluster.replicas import Replica
from rung.cli.output import counted, duration, print_facts, print_table
from rung.events.installation import LEVEL

LAG_MAX: Final = 10_000
"""Lag at which a consumer that makes progress is too slow, as for the alert `RungLagging`."""
UNSEALED_MAX: Final = timedelta(minutes=1)
"""Age at which an unsealed record is a problem: the sealer does not run, or is far behind."""
DEAD_LETTER_NEWS: Final = timedelta(hours=1)
"""Age up to which an open dead letter is a problem, as for the alert `RungDeadLetter`."""
_NONE: Final = Replica(host="none", partitions={})


class Broker(Struct, kw_only=True):
    """A broker that is known, or that holds partitions."""

    id: int
    address: str | None
    """None: it holds partitions, and the other brokers do not know it."""
    answers: bool

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        if self.answers:
            return []
        return [f"broker {self.id} ({self.address or 'gone'}) does not answer"]


class TopicStatus(Struct, kw_only=True):
    """The ends of a topic's partitions, and those that are not well."""

    name: str
    events: int
    ends: list[int]
    leaderless: list[int]
    behind: list[int]
    """Partitions with fewer replicas in sync than they should have."""

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        found = []
        if self.leaderless:
            found.append(f"{self.name}: partition {_listed(self.leaderless)} has no leader")
        if self.behind:
            found.append(f"{self.name}: a replica of partition {_listed(self.behind)} is behind")
        return found


class Consumer(Struct, kw_only=True):
    """The progress of a relay or a sink on its topic."""

    name: str
    topic: str
    lag: int
    lags: list[int]
    """By partition."""
    positions: list[int]
    """By partition."""
    still: list[int] = field(default_factory=list[int])
    """Partitions with a lag whose position did not change during the survey."""

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        behind = f"{counted(self.lag, 'record')} behind on {self.topic}"
        if self.still:
            return [f"{self.name}: stands still, {behind}"]
        return [f"{self.name}: {behind}"] if self.lag > LAG_MAX else []


class Decider(Struct, kw_only=True):
    """The progress of a processor, over all partitions."""

    name: str
    facts: int
    since_decision: int
    """Facts behind the newest one of which a decision on record follows."""
    pending: int = 0
    """Decisions that are due and not on record."""
    broken: dict[str, str] = field(default_factory=dict[str, str])
    """Keys that stand still, or cannot be folded, with the reason."""
    left_alone: int = 0
    """Keys of a logic level that replicas, or this release, do not know."""
    level: int = 0
    """The highest such level."""
    since_snapshot: int = 0
    """Facts that a start folds again."""
    snapshot_s: float | None = None
    """Age of the oldest partition's snapshot; None: a partition has none, or none was read."""

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        found = []
        if self.pending:
            due = "is due" if self.pending == 1 else "are due"
            found.append(f"{self.name}: {counted(self.pending, 'decision')} {due}")
        for key, reason in self.broken.items():
            found.append(f"{self.name}: cannot go on with {key}: {reason}")
        if self.left_alone:
            are = "is" if self.left_alone == 1 else "are"
            found.append(
                f"{self.name}: {counted(self.left_alone, 'key')} {are} left alone, of logic level"
                f" {self.level}: replace its replicas by the release that raised the level"
            )
        return found


class PoolStatus(Struct, kw_only=True):
    """Agents and slots of a pool, by the scheduler's state."""

    name: str
    agents: int
    slots: int
    idle: int
    waiting: int
    """Allocations."""
    problems: list[str] = field(default_factory=list[str])
    """The agents that are alive and get no work, with the reason."""


class SealStatus(Struct, kw_only=True):
    """How much of a ledger is sealed."""

    records: int
    """Those that are to be sealed: all but heartbeats and the seals themselves."""
    unsealed: int
    since: str | None = None
    """When the oldest unsealed record was written."""

    def problems(self, now: datetime) -> list[str]:
        """Return what is wrong, and what to do."""
        if not self.unsealed or _is_within(self.since, UNSEALED_MAX, now):
            return []
        records, oldest = counted(self.records, "record"), f"the oldest of {self.since}"
        if self.unsealed == self.records:
            text = (
                f"the ledger is not sealed ({records}, {oldest}): give all replicas of"
                " checkpoint-gc the same secret in RUNG_SEAL_KEY"
            )
        else:
            text = (
                f"{self.unsealed:,} of {records} are not sealed, {oldest}: checkpoint-gc seals"
                " them if it runs and has RUNG_SEAL_KEY; its log says what keeps it from that"
            )
        return [f"seals: {text}"]


class UnfinishedImport(Struct, kw_only=True):
    """An import into the ledger that has no end on record."""

    exported_from: str
    records: int
    begun: str
    problem: str
    """What is to be done."""


class DeadLetter(Struct, kw_only=True):
    """An open dead letter."""

    time: str
    reader: str
    topic: str
    key: str
    reason: str


class ClusterStatus(Struct, kw_only=True):
    """The status of a cluster."""

    ledger: str
    ledger_id: str = ""
    level: int = 1
    """The logic level of new experiments and pools."""
    problems: list[str] = field(default_factory=list[str])
    """The worst first; none: all is well."""
    brokers: list[Broker] = field(default_factory=list[Broker])
    topics: list[TopicStatus] = field(default_factory=list[TopicStatus])
    replicas: dict[str, list[Replica]] = field(default_factory=dict[str, list[Replica]])
    consumers: list[Consumer] = field(default_factory=list[Consumer])
    deciders: list[Decider] = field(default_factory=list[Decider])
    pools: list[PoolStatus] = field(default_factory=list[PoolStatus])
    experiments: dict[str, int] = field(default_factory=dict[str, int])
    """Those that have not ended, by state."""
    seals: SealStatus | None = None
    """None: unknown."""
    unfinished_imports: list[UnfinishedImport] = field(default_factory=list[UnfinishedImport])
    """No service starts before they are complete."""
    dead_letters: int = 0
    """Those of relays and sinks that are open, among the newest."""
    newest_letters: list[DeadLetter] = field(default_factory=list[DeadLetter])

    def judge(self, now: datetime) -> None:
        """Put the problems that follow from the records before those that are listed already."""
        found = [problem for broker in self.brokers for problem in broker.problems()]
        found += [problem for item in self.topics for problem in item.problems()]
        found += [item.problem for item in self.unfinished_imports]
        found += [f"{name}: no replica runs" for name, some in self.replicas.items() if not some]
        found += [problem for item in self.deciders for problem in item.problems()]
        found += [problem for item in self.consumers for problem in item.problems()]
        found += [
            f"pool {pool.name}: {counted(pool.waiting, 'allocation')}"
            f" {'waits' if pool.waiting == 1 else 'wait'}, and it has no agent"
            for pool in self.pools
            if pool.waiting and not pool.agents
        ]
        found += [
            f"pool {pool.name}: {problem}" for pool in self.pools for problem in pool.problems
        ]
        newest = next(iter(self.newest_letters), None)
        if newest is not None and _is_within(newest.time, DEAD_LETTER_NEWS, now):
            count = f"{self.dead_letters:,} open, the newest at {newest.time} by {newest.reader}"
            found.append(f"dead letters: {count}")
        if self.seals is not None:
            found += self.seals.problems(now)
        self.problems = found + self.problems


def _is_within(time: str | None, age: timedelta, now: datetime) -> bool:
    """Return whether a time is less than an age ago; False for what is no time with a zone."""
    try:
        return now - datetime.fromisoformat(time or "") < age
    except (TypeError, ValueError):
        return False


def print_status(status: ClusterStatus) -> None:
    """Print the problems, then everything."""
    if status.problems:
        click.echo(click.style(f"WRONG: {len(status.problems)}", fg="red", bold=True))
        for problem in status.problems:
            click.echo(f"  {problem}")
    else:
        click.echo(click.style("All is well.", fg="green"))
    click.echo()
    open_ = [f"{count} {state}" for state, count in sorted(status.experiments.items())]
    unfinished = len(status.unfinished_imports)
    print_facts(
        [
            ("ledger", f"{status.ledger} ({status.ledger_id})"),
            ("logic level", _level(status.level)),
            ("open experiments", ", ".join(open_) or "none"),
            ("open dead letters", status.dead_letters),
            ("sealed", _sealed(status.seals)),
            ("imports", f"{unfinished} not complete" if unfinished else "none unfinished"),
        ]
    )
    _heading("brokers")
    print_table(
        ["id", "address", "answers"],
        [(item.id, item.address, item.answers) for item in status.brokers],
    )
    _heading("services")
    print_table(
        ["service", "replica", "partitions", "level"],
        [
            (service, replica.host, _assigned(replica), replica.level)
            for service, replicas in status.replicas.items()
            for replica in replicas or [_NONE]
        ],
    )
    _heading("deciders")
    print_table(
        ["decider", "facts", "since a decision", "due", "since snapshot", "snapshot age"],
        [
            (
                item.name,
                f"{item.facts:,}",
                f"{item.since_decision:,}",
                f"{item.pending:,}",
                f"{item.since_snapshot:,}",
                None if item.snapshot_s is None else duration(item.snapshot_s),
            )
            for item in status.deciders
        ],
        right=["facts", "since a decision", "due", "since snapshot", "snapshot age"],
    )
    _heading("relays and sinks")
    print_table(
        ["consumer", "topic", "lag", "by partition"],
        [
            (item.name, item.topic, f"{item.lag:,}", " ".join(map(str, item.lags)))
            for item in status.consumers
        ],
        right=["lag"],
    )
    _heading("pools")
    print_table(
        ["pool", "agents", "slots", "idle", "waiting"],
        [
            (item.name, item.agents, item.slots, item.idle, item.waiting)
            for item in sorted(status.pools, key=lambda pool: pool.name)
        ],
        right=["agents", "slots", "idle", "waiting"],
    )
    _heading("topics")
    print_table(
        ["topic", "events", "by partition"],
        [(item.name, f"{item.events:,}", " ".join(map(str, item.ends))) for item in status.topics],
        right=["events"],
    )
    if status.newest_letters:
        _heading("newest open dead letters")
        print_table(
            ["time", "reader", "topic", "key", "reason"],
            [
                (item.time, item.reader, item.topic, item.key, item.reason)
                for item in status.newest_letters
            ],
        )


def _level(level: int) -> str:
    if level >= LEVEL:
        return f"{level}"
    return f"{level}; `rung cluster upgrade` raises it to {LEVEL}, once all replicas know that"


def _sealed(seals: SealStatus | None) -> str:
    if seals is None:
        return "unknown"
    return f"{seals.records - seals.unsealed:,} of {seals.records:,} records"


def _heading(text: str) -> None:
    click.echo()
    click.echo(click.style(text.upper(), bold=True))


def _assigned(replica: Replica) -> str:
    parts = [
        f"{topic} {','.join(map(str, numbers))}"
        for topic, numbers in sorted(replica.partitions.items())
    ]
    return "; ".join(parts) or "none"


def _listed(partitions: list[int]) -> str:
    return ", ".join(map(str, partitions))
