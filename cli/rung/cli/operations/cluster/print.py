"""Prints how a cluster is, for a person."""

from typing import Final

import click

from rung.cli.operations.cluster.group import Replica
from rung.cli.operations.cluster.record_status import SealStatus
from rung.cli.operations.cluster.status import ClusterStatus
from rung.cli.output import duration, print_facts, print_table
from rung.events.installation import LEVEL

_NONE: Final = Replica(host="none", partitions={})


def print_status(status: ClusterStatus) -> None:
    """Print what is wrong, then everything."""
    if status.problems:
        click.echo(click.style(f"WRONG: {len(status.problems)}", fg="red", bold=True))
        for problem in status.problems:
            click.echo(f"  {problem}")
    else:
        click.echo(click.style("All is well.", fg="green"))
    click.echo()
    open_ = [f"{count} {state}" for state, count in sorted(status.experiments.items())]
    print_facts(
        [
            ("ledger", f"{status.ledger} ({status.ledger_id})"),
            ("logic level", _level(status.level)),
            ("open experiments", ", ".join(open_) or "none"),
            ("open dead letters", status.dead_letters),
            ("sealed", _sealed(status.seals)),
            ("imports", _imports(len(status.unfinished_imports))),
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
            (service, replica.host, _held(replica), replica.level or "not told")
            for service, held in status.replicas.items()
            for replica in held or [_NONE]
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
    _heading("forwarders")
    print_table(
        ["forwarder", "topic", "lag", "by partition"],
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


def _imports(unfinished: int) -> str:
    return f"{unfinished} not complete" if unfinished else "none unfinished"


def _heading(text: str) -> None:
    click.echo()
    click.echo(click.style(text.upper(), bold=True))


def _held(replica: Replica) -> str:
    parts = [f"{topic} {_numbers(of)}" for topic, of in sorted(replica.partitions.items())]
    return "; ".join(parts) or "none"


def _numbers(partitions: list[int]) -> str:
    return ",".join(map(str, partitions))
