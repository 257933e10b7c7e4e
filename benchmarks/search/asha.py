"""Reports a CPU second through ASHA: the method alone, beside plain sorted lists.

The method is called as the searcher calls it: for each report of a rung it folds the result, is
asked for stops where there may be some, and for moves where a trial may start. Costs arrive in
random order and nothing is drawn, encoded or stored. The peer keeps one sorted list per rung, and
does nothing but insert, find the place and compare.

    python -m benchmarks.search.asha [--trials 100000,1000000,10000000] [--only method,lists]
"""

import argparse
import random
import time
import tracemalloc
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, Final

from benchmarks.figures import figure

from rung.methods.asha import Options
from rung.methods.method import Chance
from rung.searcher.state import Trial

AIM: Final = 150_000
RUNGS: Final = 5
DIVISOR: Final = 4
AT_ONCE: Final = 16
MEASURED: Final = 100_000
"""Trials whose memory is counted; counting costs time, so it is a run of its own."""


def method(trials: int) -> int:
    """Run a search of the method alone; return how many reports it took."""
    options = Options(
        metric="loss",
        max_trials=trials,
        num_rungs=RUNGS,
        divisor=DIVISOR,
        max_time=DIVISOR ** (RUNGS - 1),
        max_concurrent_trials=AT_ONCE,
    )
    search = options.plan([])
    draw = random.Random(1).random  # noqa: S311 - repeatable, not secret
    chance = Chance([], 1, 0)
    training: list[Trial] = []
    reports = created = 0
    while True:
        free = AT_ONCE - len(training)
        for _ in search.moves(chance, free) if free else ():
            trial = Trial(created, 0, {}, 0)
            created += 1
            search.created(trial)
            training.append(trial)
        if not training:
            KEEP.append(search)
            return reports
        trial = training.pop(reports % len(training))
        trial.cost = draw()
        trial.results.append(trial.cost)
        search.reported(trial, len(trial.results) - 1)
        reports += 1
        stop = next(iter(search.stops()), None)
        if stop is not None:
            search.stopped(trial)
            search.left(trial, "stopped")
        elif len(trial.results) == RUNGS:
            search.trained(trial)
        else:
            training.append(trial)


KEEP: Final[list[Any]] = []
"""What memory is counted of."""


def lists(trials: int) -> int:
    """Run as many trials over plain sorted lists; return how many reports it took."""
    draw = random.Random(1).random  # noqa: S311 - as above
    rungs: list[list[tuple[float, int]]] = [[] for _ in range(RUNGS)]
    reports = 0
    for index in range(trials):
        for rung in rungs:
            entry = (draw(), index)
            insort(rung, entry)
            reports += 1
            if bisect_left(rung, entry) >= max(len(rung) // DIVISOR, 1):
                break
    KEEP.append(rungs)
    return reports


def measure(name: str, run: Callable[[int], int], trials: int) -> None:
    """Print how fast a search of so many trials is."""
    started = time.process_time()
    reports = run(trials)
    rate = reports / (time.process_time() - started)
    KEEP.clear()
    figure(
        f"ASHA, {trials:,} trials: {name}",
        rate,
        "reports per CPU second",
        at_least=None if name == "lists" else AIM,
        beside=f"{reports:,} reports",
    )


def memory(name: str, run: Callable[[int], int]) -> None:
    """Print the memory that a search holds at its end."""
    tracemalloc.start()
    run(MEASURED)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    KEEP.clear()
    print(f"{name:8} {held / MEASURED:,.0f} bytes a trial")


def main(sizes: list[int], only: set[str]) -> None:
    """Print all of it."""
    for name, run in {"lists": lists, "method": method}.items():
        if name in only:
            for trials in sizes:
                if name == "method" or trials <= MEASURED:  # a longer list takes minutes
                    measure(name, run, trials)
            memory(name, run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", default="100000,1000000,10000000")
    parser.add_argument("--only", default="lists,method")
    given = parser.parse_args()
    main([int(size) for size in given.trials.split(",")], set(given.only.split(",")))
