"""`rung status`: the installation, its agents, its queue, and its newest dead letters."""

from typing import Any, Final

import click
import msgspec

from rung.cli.connection_options import Link, linked
from rung.cli.output import local_time, print_facts, print_json, print_table, printable, size
from rung.client import Agent, DeadLetter, QueueItem, Status

_ANSWER_S: Final = 10.0
"""How long to wait for an answer; a stopped server gives none."""
_ALIVE: Final = frozenset({"joined", "suspended", "draining"})
"""States of agents that are alive."""
_QUEUE_SHOWN: Final = 20
_DEAD_LETTERS_SHOWN: Final = 5


@click.command()
@linked
async def status(link: Link) -> None:
    """Show whether Rung runs, its experiments, slots, and what waits for them.

    With --json: the API's status with `agents`, `queue` and the newest open dead letters
    (`letters`). Exit code 3: it does not run.
    """
    async with link.client(patience_s=0.5, timeout_s=_ANSWER_S) as client:
        found = await client.status()
        agents = (await client.agents()).items
        queue = await client.queue()
        letters = []
        if found.dead_letters:
            letters = (await client.dead_letters(_DEAD_LETTERS_SHOWN, state="open")).items
        where = client.url
    if link.json:
        facts = msgspec.structs.asdict(found)
        print_json({"url": where, **facts, "agents": agents, "queue": queue, "letters": letters})
    else:
        _print(where, found, agents, queue)
        _print_dead_letters(letters, found.dead_letters)


def _print(where: str, found: Status, agents: list[Agent], queue: list[QueueItem]) -> None:
    counts = ", ".join(f"{count} {state}" for state, count in sorted(found.experiments.items()))
    print_facts(
        [
            ("rung", f"{found.version} at {where}"),
            ("ledger", found.ledger_id),
            ("experiments", counts or "none"),
            ("dead letters", found.dead_letters or None),
            ("isolation", _isolation(agents)),
            ("policies", _policies(found)),
            ("checkpoints", _checkpoints(found)),
            *_disk(found),
        ]
    )
    for problem in found.problems:
        click.echo(f"Problem: {printable(problem)}")
    click.echo()
    _print_agents([agent for agent in agents if agent.state in _ALIVE])
    if queue:
        click.echo()
        print_table(
            ["waiting", "pool", "slots", "priority", "since"],
            [
                (
                    item.allocation_id,
                    item.pool,
                    item.slots,
                    item.priority,
                    local_time(item.requested_at),
                )
                for item in queue[:_QUEUE_SHOWN]
            ],
            right=["slots", "priority"],
        )
        if len(queue) > _QUEUE_SHOWN:
            click.echo(f"and {len(queue) - _QUEUE_SHOWN} more")
        for reason in dict.fromkeys(item.reason for item in queue if item.reason):
            click.echo(f"Cannot be placed: {printable(reason)}")


def _checkpoints(found: Status) -> str | None:
    """Return how many checkpoints there are, where the disk shows no more."""
    if found.disk is not None or not found.checkpoint_count:
        return None
    return f"{found.checkpoint_count:,} ({size(found.checkpoint_bytes)})"


def _disk(found: Status) -> list[tuple[str, str]]:
    """Return what the data folder takes on the disk, part by part."""
    disk = found.disk
    if disk is None:
        return []
    used = sum(disk.used_bytes.values())
    parts = [f"{name} {size(value)}" for name, value in disk.used_bytes.items() if value]
    free = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} are free"
    return [("disk", f"{size(used)} used, {free}"), ("", ", ".join(parts))]


def _policies(found: Status) -> str | None:
    """Return the policies of pools that were configured with another than the default."""
    policies = [
        f"{pool.name}: {pool.policy}"
        + "".join(f", {name} {value}" for name, value in pool.options.items())
        for pool in found.pools
        if pool.policy != "priority" or pool.options
    ]
    return "; ".join(policies) or None


def _isolation(agents: list[Agent]) -> str | None:
    """Return how trials are isolated on the agents that run some."""
    found = {agent.isolation for agent in agents if agent.state in {"joined", "draining"}}
    return "; ".join(sorted(found - {""})) or None


def _print_agents(alive: list[Agent]) -> None:
    if not any(agent.state == "joined" for agent in alive):
        click.echo("No agent offers slots.")
    if not alive:
        return
    heads: list[str] = ["pool", "agent", "host", "slots", "in use", "by"]
    rows: list[list[Any]] = [
        [
            agent.pool,
            agent.id,
            agent.hostname,
            len(agent.slots),
            sum(slot.allocation_id is not None for slot in agent.slots),
            sorted({slot.allocation_id for slot in agent.slots if slot.allocation_id}),
        ]
        for agent in alive
    ]
    if any(agent.state != "joined" for agent in alive):
        heads.insert(3, "state")
        for row, agent in zip(rows, alive, strict=True):
            row.insert(
                3, agent.state if agent.state == "joined" else f"{agent.state}: {agent.reason}"
            )
    print_table(heads, rows, right=["slots", "in use"])


def _print_dead_letters(letters: list[DeadLetter], count: int) -> None:
    if not letters:
        return
    click.echo()
    print_table(
        ["dead letter", "of", "at", "because"],
        [
            (
                item.id or f"{item.reader}/{item.topic}/{item.partition}/{item.position}",
                item.key,
                local_time(item.at),
                item.reason,
            )
            for item in letters
        ],
    )
    if count > len(letters):
        click.echo(f"and {count - len(letters)} older; `rung deadletter list` has all")
