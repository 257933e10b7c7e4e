"""Runs a replica of the scheduler: `python -m rung.scheduler --ledger FOLDER|kafka://…`."""

import click

from rung.runtime.bootstrap import Place, checked, launch_components, placed
from rung.scheduler.service import NAME, components
from rung.scheduler.settings import Settings


@click.command(context_settings={"auto_envvar_prefix": "RUNG_SCHEDULER", "show_default": True})
@placed()
@click.option("--agent-timeout", default=30.0, help="Seconds of silence until an agent is lost.")
@click.option("--snapshot-every", default=10_000, help="Facts between two snapshots.")
def main(place: Place, agent_timeout: float, snapshot_every: int) -> None:
    """Schedule the pools of a ledger until SIGTERM.

    Several replicas of it share the partitions of a ledger on Kafka.
    """
    settings = checked(Settings, agent_timeout=agent_timeout, snapshot_every=snapshot_every)
    launch_components(place, lambda _: components(settings), service=NAME)


if __name__ == "__main__":
    main()
