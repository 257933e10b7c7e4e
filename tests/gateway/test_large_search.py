"""What a large search costs is what is asked for: rows, and bytes, do not grow with its trials."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from gateway.conftest import World
from rung.events.trial import TrialValidated
from rung.gateway.estimate.time_left import forecast_of
from rung.gateway.projections.experiments import (
    Selection,
    TrialSelection,
    active_in,
    list_experiments,
    list_trials,
    read_head,
)
from support.gateway.scenario import EXPERIMENT, History, shown, submitted, tables


def _history(trials: int) -> History:
    """Return a search of so many trials, each with one value; few of them at the same time."""
    history = History()
    history.write(
        submitted(name="random", max_trials=trials, max_concurrent_trials=0, num_rungs=None),
        origin="client/x",
    )
    history.decide()
    for index in range(trials):
        history.write(
            TrialValidated(
                experiment_id=EXPERIMENT,
                trial_id=f"{EXPERIMENT}.{index}",
                run=1,
                steps_completed=10,
                metrics={"error": float((7 * index) % trials), "epochs": 1.0},
            )
        )
    history.decide()
    return history


def _folded(trials: int) -> sqlite3.Connection:
    fold = tables()
    history = _history(trials)
    fold.hold([it.record for it in history.decisions])
    fold.fold([it.record for it in history.facts])
    return fold.db


def _rows(db: sqlite3.Connection, query: Callable[[sqlite3.Connection], object]) -> int:
    """Return how many rows the statements of a query return."""
    read = 0

    def count(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal read
        read += 1
        return row

    db.row_factory = count
    try:
        query(db)
    finally:
        db.row_factory = None
    return read


QUERIES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "without trials": lambda db: read_head(db, EXPERIMENT),
    "a list": lambda db: list_experiments(db, Selection()),
    "the best trials": lambda db: list_trials(
        db, EXPERIMENT, TrialSelection(sort="best", limit=20, validations=False)
    ),
    "some trials": lambda db: list_trials(
        db, EXPERIMENT, TrialSelection(indices=[3, 17, 29], limit=100)
    ),
    "a forecast": lambda db: forecast_of(active_in(db, "default", 64, 16), 4, 0.0),
}


@pytest.mark.parametrize("name", QUERIES)
def test_rows_do_not_grow_with_the_trials(name: str) -> None:
    """As many are read with 1,000 trials as with 100."""
    few, many = (_rows(_folded(trials), QUERIES[name]) for trials in (100, 1000))

    assert 0 < few <= 40
    assert many == few


@pytest.mark.parametrize(
    "path", ["?trials=none", "?trials=top", "/trials?sort=best&validations=last&limit=20"]
)
async def test_answers_do_not_grow_with_the_trials(world: World, path: str) -> None:
    """With 1,000 trials they have hardly more bytes than with 100; some numbers are longer."""
    sizes = []
    for trials in (100, 1000):
        other = World(type(world.ledger)(), world.store)
        await other.play(_history(trials))
        async with other.gateway() as client:
            answer = await client.get(f"/experiments/{EXPERIMENT}{path}")
        sizes.append(len(str(answer)))

    assert sizes[1] < 1.1 * sizes[0]


async def test_what_is_asked_for_is_the_same_as_of_all(world: World) -> None:
    """Fields beside the trials are those of the whole answer, and the trials are among its own."""
    await world.play(_history(30))
    async with world.gateway() as client:
        whole = await client.get(f"/experiments/{EXPERIMENT}")
        none = await client.get(f"/experiments/{EXPERIMENT}?trials=none")
        top = await client.get(f"/experiments/{EXPERIMENT}?trials=top")
    best = sorted(whole["trials"], key=lambda it: (it["best"]["value"], it["index"]))
    for each in (whole, none, top):
        each.pop("eta_seconds")
    trials = whole.pop("trials")

    assert len(trials) == whole["trial_count"] == sum(whole["trial_states"].values()) == 30
    assert none == whole | {"trials": []}
    assert top == whole | {"trials": best[:5]}


async def test_pages_of_the_best_are_whole(world: World) -> None:
    """Pages have each trial once: the best first, those without a value at the end."""
    history = _history(10)
    history.facts.pop()  # the last trial's value
    await world.play(history)
    async with world.gateway() as client:
        found, cursor = list[Any](), ""
        while True:
            page = await client.get(f"/experiments/{EXPERIMENT}/trials?sort=best&limit=3{cursor}")
            found += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        some = await client.get(f"/experiments/{EXPERIMENT}/trials?index=7,2,99")
    values = [it["best"] and it["best"]["value"] for it in found]

    assert sorted(it["index"] for it in found) == list(range(10))
    assert values[:-1] == sorted(values[:-1])
    assert values[-1] is None
    assert [it["index"] for it in some["items"]] == [2, 7]


def test_the_tally_is_that_of_the_trials() -> None:
    """What is counted as events come is what the trials are."""
    fold = tables()
    history = _history(50)
    fold.hold([it.record for it in history.decisions])
    for written in history.facts:
        fold.fold([written.record])
    found = shown(fold)
    phases = {"waiting": 50}

    assert found.tally.phases == phases
    assert found.tally.best is not None
    assert found.tally.best.value == 0
