"""`rung preview`: simulates a search with made-up metrics; prints its cost and first trials."""

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from rung.cli.connection_options import Link, linked
from rung.cli.output import (
    counted,
    lasting,
    number,
    print_facts,
    print_json,
    print_table,
    printable,
    share,
    written,
)
from rung.events import RungError
from rung.events.experiment import SearchPlanned
from rung.events.trial import TrialRequested
from rung.methods.space import Const, Leaf

_SEED: Final = 0
_SAMPLES: Final = 5
"""How many trials are shown with their hyperparameters."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--slots", type=click.IntRange(1), default=8, show_default=True, help="Trials at once."
)
@linked
def preview(file: Path, link: Link, *, slots: int) -> None:
    """Run the search that FILE describes in memory, with made-up metrics, and show its cost.

    Every trial gets a metric of its own that improves with training, and nothing fails. Costs are
    in units of the search's time metric. The first five trials are shown with their
    hyperparameters; if FILE gives `reproducibility.experiment_seed`, the search has the same.
    """
    from rung.config import load  # noqa: PLC0415 - a third of a second
    from rung.searcher.simulate import simulate  # noqa: PLC0415 - only here

    try:
        loaded = load(file.read_bytes(), today_seed=_SEED)
    except OSError as error:
        raise RungError(f"{file} cannot be read ({error.strerror})") from error
    config = loaded.expanded()
    for warning in loaded.warnings:
        click.echo(f"Warning: {printable(warning)}", err=True)
    smaller = config["searcher"]["smaller_is_better"]
    result = simulate(config, lambda index, _, time: _metric(index, time, smaller=smaller), slots)
    plan = next(item for item in result.decisions if isinstance(item, SearchPlanned))
    longest = config["searcher"]["max_time"]
    full = None if longest is None else longest * len(result.trained)
    sampled = [item for item in result.decisions if isinstance(item, TrialRequested)][:_SAMPLES]
    lengths = Counter(result.trained.values())
    facts: dict[str, Any] = {
        "method": plan.method,
        "time_metric": plan.time_metric,
        "brackets": plan.brackets,
        "trials": len(result.trained),
        "trained": {number(length): lengths[length] for length in sorted(lengths) if longest},
        "units": None if longest is None else result.units,
        "units_full": full,
        "mode": config["searcher"].get("mode"),
        "concurrent": config["searcher"].get("max_concurrent_trials"),
        "slots": slots,
        "elapsed": None if longest is None else result.elapsed,
        "seed": loaded.seed,
        "seed_given": loaded.settings.reproducibility.experiment_seed is not None,
        "samples": [{"trial": it.index, "hyperparameters": it.hparams} for it in sampled],
    }
    if link.json:
        print_json(facts)
        return
    _print(facts)
    _print_samples(facts, loaded.settings.hyperparameters.leaves())


def _metric(index: int, time: float, *, smaller: bool) -> float:
    """Return a made-up value that converges to a quality of the trial's own."""
    quality = zlib.crc32(f"trial {index}".encode()) / 2**32
    value = quality + 1 / (1 + time)
    return value if smaller else -value


def _print(facts: dict[str, Any]) -> None:
    unit, units, full = facts["time_metric"], facts["units"], facts["units_full"]
    concurrent = facts["concurrent"]
    print_facts(
        [
            ("method", facts["method"]),
            ("trials", facts["trials"]),
            ("at once", f"{concurrent:,} at most" if concurrent else None),
            *(_costs(facts) if full is not None else [("training", "as long as the script does")]),
        ]
    )
    if full is not None and units < full:
        click.echo("With made-up metrics: the search itself may stop more trials, or fewer.")
    click.echo()
    print_table(
        ["bracket", "trials", f"rungs ({unit})"],
        [(it.bracket, it.trials, " ".join(map(str, it.lengths))) for it in facts["brackets"]],
        right=["bracket", "trials"],
    )
    whole = [it for it in facts["brackets"] if len(it.lengths) == 1]
    if facts["mode"] and whole and len(facts["brackets"]) > 1:
        click.echo(
            f"{counted(whole[0].trials, 'trial')} of bracket {whole[0].bracket} train in full,"
            " whatever their metric: `searcher.mode: aggressive` has only bracket 0."
        )
    if facts["trained"]:
        click.echo()
        columns = [f"{unit} trained", "trials"]
        print_table(columns, facts["trained"].items(), right=columns)


def _costs(facts: dict[str, Any]) -> list[tuple[str, str]]:
    unit, units, full = facts["time_metric"], facts["units"], facts["units_full"]
    return [
        ("training", lasting(units, unit)),
        ("all in full", lasting(full, unit)),
        ("so it does", share(units / full if full else 1.0)),
        ("takes", f"{lasting(facts['elapsed'], unit)} on {counted(facts['slots'], 'slot')}"),
    ]


def _print_samples(facts: dict[str, Any], space: Sequence[Leaf]) -> None:
    """Print trials in columns, and their hyperparameters in rows."""
    samples = [item["hyperparameters"] for item in facts["samples"]]
    drawn = [leaf for leaf in space if not isinstance(leaf.parameter, Const)]
    constant = [
        (".".join(it.path), _value(samples[0], it.path)) for it in space if it not in drawn
    ]
    if drawn:
        click.echo()
        trials = [f"trial {item['trial']}" for item in facts["samples"]]
        print_table(
            ["hyperparameter", *trials],
            [
                (".".join(leaf.path), *(_value(hparams, leaf.path) for hparams in samples))
                for leaf in drawn
            ],
            right=trials,
        )
    if constant:
        click.echo()
        print_table(["hyperparameter", "the same in all trials"], constant)
    if drawn and not facts["seed_given"]:
        click.echo()
        click.echo(
            f"Drawn with seed {facts['seed']}. A search has a seed of its own, unless the file"
            " gives\nreproducibility.experiment_seed."
        )


def _value(hparams: dict[str, Any], path: Sequence[str]) -> str:
    value: Any = hparams
    for name in path:
        value = value[name]
    return written(value, digits=4)
