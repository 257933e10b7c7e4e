"""`rung extend`: more trials, or a longer length, for a search that runs or has ended."""

import asyncio
import re
import time
from typing import Final

import click

from rung.cli.commands.wait import follow
from rung.cli.connection_options import (
    PATIENCE_FOLLOWING_S,
    PATIENCE_S,
    Link,
    experiment_argument,
    linked,
)
from rung.cli.exit_code import OK
from rung.cli.output import counted, print_json_line
from rung.client import AsyncClient, Experiment, Extended
from rung.events import RungError

_AMOUNT: Final = re.compile(r"(\+?)([1-9][0-9]{0,15})")
_SEEN_S: Final = 10.0
"""How long to wait for the searcher's decision."""
_LOOK_S: Final = 0.2


@click.command()
@experiment_argument
@click.option("--trials", metavar="[+]N", help="How many in all; +N: how many more.")
@click.option("--length", metavar="[+]N", help="How far each trains; +N: how much further.")
@click.option("--follow", "-f", "following", is_flag=True, help="Watch it until it ended.")
@linked
async def extend(
    experiment_id: str, trials: str | None, length: str | None, link: Link, *, following: bool
) -> int:
    """Give a search more trials, or train the one trial of `single` longer.

    Lengths are in units of the search's time metric. `random` and ASHA take more trials; each is
    the one that a longer search would have drawn. What cannot be is refused with the reason.

    A search that has ended goes on as a new experiment, whose id is printed: with the same file,
    code and seed, and the further trials alone; or from the last checkpoint of its one trial.
    """
    if (trials is None) == (length is None):
        raise click.UsageError("give either --trials or --length")
    async with link.client(PATIENCE_FOLLOWING_S if following else PATIENCE_S) as client:
        experiment = await client.experiment(experiment_id, trials="none")
        if trials is not None:
            wanted = _total("--trials", trials, _trials_of(experiment))
            extended = await client.extend(experiment.id, trials=wanted)
        else:
            assert length is not None
            wanted = _total("--length", length, _length_of(experiment))
            extended = await client.extend(experiment.id, max_time=wanted)
        decided = extended.parent is not None or await _await_decision(client, extended)
        if link.json:
            print_json_line(extended)
        else:
            click.echo(_sentence(extended, experiment, decided=decided))
        if not following:
            return OK
        return await follow(link, client, extended.experiment_id, quiet=False)


def _total(option: str, text: str, present: int) -> int:
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{option} {text}: give a number, such as 40, or +20 for 20 more")
    return int(found[2]) + (present if found[1] else 0)


def _trials_of(experiment: Experiment) -> int:
    return sum(it.trials for it in experiment.plan.brackets) if experiment.plan else 0


def _length_of(experiment: Experiment) -> int:
    brackets = experiment.plan.brackets if experiment.plan else []
    return max((it.lengths[-1] for it in brackets if it.lengths), default=0)


async def _await_decision(client: AsyncClient, extended: Extended) -> bool:
    """Wait until the search has the new plan; return whether it has.

    Raises:
        RungError: it ended before the request came to it.
    """
    late = time.monotonic() + _SEEN_S
    while True:
        experiment = await client.experiment(extended.experiment_id, trials="none")
        trials, length = _trials_of(experiment), _length_of(experiment)
        if trials >= (extended.trials or 0) and length >= (extended.max_time or 0):
            return True
        if experiment.ended_at is not None:
            raise RungError(
                f"experiment {experiment.id} ended before the request came to it; the same"
                " command makes a new experiment, which goes on from there"
            )
        if time.monotonic() > late:
            return False
        await asyncio.sleep(_LOOK_S)


def _sentence(extended: Extended, before: Experiment, *, decided: bool) -> str:
    unit = before.plan.time_metric if before.plan else "units"
    if extended.trials is not None:
        more = f"{counted(extended.trials, 'trial')} in all"
    else:
        more = f"{extended.max_time:,} {unit}"
    if extended.parent is not None:
        made = f"Submitted experiment {extended.experiment_id}, which goes on from"
        return f"{made} {extended.parent} to {more}"
    verb = "goes on to" if decided else "is asked to go on to"
    return f"Experiment {extended.experiment_id} {verb} {more}"
