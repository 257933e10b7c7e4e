"""Runs simulated searches: `python -m rung.sim --seed N --method hyperband`."""

import logging
import sys

import click
import structlog

from rung.sim.scenario import run
from rung.sim.workload import METHODS, changed, limited, poisoned, stormy


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="First seed.")
@click.option("--seeds", type=int, default=1, show_default=True, help="How many seeds from there.")
@click.option(
    "--method", type=click.Choice(sorted(METHODS)), default="hyperband", show_default=True
)
@click.option("--changes", is_flag=True, help="Users change the search on its way.")
@click.option("--limit", is_flag=True, help="The search has few slot-hours.")
@click.option("--poison", is_flag=True, help="Some facts cannot be folded.")
def main(  # noqa: PLR0913 - one for each option
    seed: int, seeds: int, method: str, *, changes: bool, limit: bool, poison: bool
) -> None:
    """Simulate a search under faults and check what must hold."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed = 0
    scenario = (changed if changes else limited if limit else stormy)(method)
    if poison:
        scenario = poisoned(method, changes=changes)
    for number in range(seed, seed + seeds):
        try:
            outcome = run(scenario, number)
        except AssertionError as error:
            failed += 1
            click.echo(f"seed {number}: FAILED: {error}")
            continue
        states = [trial["state"] for trial in outcome.trials.values()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        click.echo(f"seed {number}: {outcome.state} after {outcome.milliseconds} ms: {counts}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
