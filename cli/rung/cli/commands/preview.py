"""`rung preview`: simulates a search with made-up metrics, and prints what it would cost."""

import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from rung.cli.link import Link, linked
from rung.cli.output import number, print_facts, print_json, print_table, share
from rung.events import RungError
from rung.events.experiment import SearchPlanned

_SEED: Final = 0


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--slots", type=click.IntRange(1), default=8, show_default=True, help="Trials at once."
)
@linked
def preview(file: Path, link: Link, *, slots: int) -> None:
    """Run the search that FILE describes in memory, with made-up metrics, and show its cost.

    Every trial gets a metric of its own that improves with training, and nothing fails. Costs are
    in units of the search's time metric.
    """
    from rung.config import load  # noqa: PLC0415 - a third of a second
    from rung.searcher.simulate import simulate  # noqa: PLC0415 - only here

    try:
        config = load(file.read_bytes(), today_seed=_SEED).expanded()
    except OSError as error:
        raise RungError(f"{file} cannot be read ({error.strerror})") from error
    smaller = config["searcher"]["smaller_is_better"]
    result = simulate(config, lambda index, _, time: _metric(index, time, smaller=smaller), slots)
    plan = next(item for item in result.decisions if isinstance(item, SearchPlanned))
    longest = config["searcher"]["max_time"] or max(result.trained.values(), default=0)
    full = longest * len(result.trained)
    lengths = Counter(result.trained.values())
    facts: dict[str, Any] = {
        "method": plan.method,
        "time_metric": plan.time_metric,
        "brackets": plan.brackets,
        "trials": len(result.trained),
        "trained": {number(length): lengths[length] for length in sorted(lengths)},
        "units": result.units,
        "units_full": full,
        "slots": slots,
        "elapsed": result.elapsed,
    }
    print_json(facts) if link.json else _print(facts)


def _metric(index: int, time: float, *, smaller: bool) -> float:
    """Return a made-up value that converges to a quality of the trial's own."""
    quality = zlib.crc32(f"trial {index}".encode()) / 2**32
    value = quality + 1 / (1 + time)
    return value if smaller else -value


def _print(facts: dict[str, Any]) -> None:
    unit, units, full = facts["time_metric"], facts["units"], facts["units_full"]
    print_facts(
        [
            ("method", facts["method"]),
            ("trials", facts["trials"]),
            ("training", f"{number(units)} {unit}"),
            ("all in full", f"{number(full)} {unit}"),
            ("so it does", share(units / full if full else 1.0)),
            ("takes", f"{number(facts['elapsed'])} {unit} on {facts['slots']} slots at once"),
        ]
    )
    click.echo()
    print_table(
        ["bracket", "trials", f"rungs ({unit})"],
        [(it.bracket, it.trials, " ".join(map(str, it.lengths))) for it in facts["brackets"]],
        right=["bracket", "trials"],
    )
    click.echo()
    columns = [f"{unit} trained", "trials"]
    print_table(columns, facts["trained"].items(), right=columns)
