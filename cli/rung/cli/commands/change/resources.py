"""`rung set`: priority, weight, limits and pool of experiments that have not ended."""

import math
from typing import Any, Final

import click

from rung.cli.bulk import Chosen, change_all, several
from rung.cli.connection_options import Link, linked
from rung.cli.exit_code import OK
from rung.cli.output import print_facts, print_json
from rung.client import BatchWanted, ResourcesWanted

_NO_LIMIT: Final = "none"


class _Limit(click.ParamType):
    """A number of slots, or no limit."""

    name = "slots"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, 0 for no limit."""
        if value == _NO_LIMIT:
            return 0
        if not (str(value).isascii() and str(value).isdigit() and int(value) > 0):
            text = f"{value!r} is neither a number of slots nor {_NO_LIMIT!r}"
            raise click.BadParameter(text, ctx, param)
        return int(value)


class _Hours(click.ParamType):
    """A number of slot-hours, or no limit."""

    name = "hours"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, 0 for no limit."""
        if value == _NO_LIMIT:
            return 0.0
        try:
            hours = float(value)
        except ValueError:
            hours = 0.0
        if not (math.isfinite(hours) and hours > 0):
            text = f"{value!r} is neither a number of slot-hours above 0 nor {_NO_LIMIT!r}"
            raise click.BadParameter(text, ctx, param)
        return hours


@click.command("set")
@several
@click.option("--priority", type=click.IntRange(1, 99), help="1 to 99, lower is more important.")
@click.option("--weight", type=click.FloatRange(0, min_open=True), help="Its share of the pool.")
@click.option(
    "--max-slots", type=_Limit(), metavar="N|none", help="How many slots it may hold at once."
)
@click.option(
    "--max-slot-hours",
    type=_Hours(),
    metavar="H|none",
    help="How many slot-hours it may use; then it ends.",
)
@click.option("--pool", metavar="POOL", help="The resource pool that it goes on in.")
@linked
async def set_(
    link: Link, *, names: tuple[str, ...], where: str | None, yes: bool, **wanted: Any
) -> int:
    """Change priority, weight, limits or pool of experiments while they run.

    Priority, weight and limits hold at once for what waits and trains. With fewer slots than it
    holds, so many of its newest trials checkpoint and wait that it keeps to the limit. Where it
    has used as many slot-hours as it may, it ends with the results that it has. In another pool
    its trials go on from their checkpoints. What could never be placed is refused. Of one
    experiment, without an option, it shows what there is.

    Exit code 1: one of several was refused.
    """
    given: Any = {name: it for name, it in wanted.items() if it is not None}
    chosen = Chosen(names, where, yes)
    async with link.client() as client:
        if chosen.single is None:
            if not given:
                options = "--priority, --weight, --max-slots, --max-slot-hours or --pool"
                raise click.UsageError(f"give {options}")
            batch = BatchWanted(action="set", resources=ResourcesWanted(**given))
            return (await change_all(link, client, chosen, batch, "changed"))[0]
        if given:
            found = await client.set_resources(chosen.single, **given)
        else:
            found = await client.resources(chosen.single)
    if link.json:
        print_json(found)
        return OK
    hours = f"{found.max_slot_hours or 0:,.10g}"
    print_facts(
        [
            ("experiment", found.experiment_id),
            ("pool", found.pool),
            ("priority", found.priority),
            ("weight", found.weight),
            ("max slots", _NO_LIMIT if found.max_slots is None else found.max_slots),
            ("max slot-hours", _NO_LIMIT if found.max_slot_hours is None else hours),
            ("slots per trial", found.slots_per_trial),
        ]
    )
    return OK
