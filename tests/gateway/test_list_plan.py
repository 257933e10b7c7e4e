"""What a member of some workspaces lists is read from the index of projects alone."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest

from rung.gateway.projections.experiments import (
    SORTS,
    ExperimentProjection,
    Selection,
    list_experiments,
)
from rung.gateway.projections.filter import conditions_of
from rung.runtime.projection.store import prepare

FILTERS = (
    "",
    "state:errored owner:me",
    "pool:default name:a* older:30d archived:any",
    "metric.loss<0.2",
    "-metric.loss<0.2",
    "hp.lr<0.001",
    "hp.lr!=0.001 -hp.width=16",
    "label:large -label:small",
    "resnet",
)


@pytest.fixture(name="db", scope="module")
def _db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        prepare(db, ExperimentProjection(), "ledger")
        yield db


def _plan(db: sqlite3.Connection, selection: Selection) -> list[str]:
    """Return the steps by which a list is selected."""
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    try:
        assert list_experiments(db, selection) == []
    finally:
        db.set_trace_callback(None)
    selected = next(it for it in statements if it.startswith("SELECT id, "))
    return [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {selected}")]


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("sort", SORTS)
def test_no_row_is_read_to_filter_and_sort(db: sqlite3.Connection, sort: str, text: str) -> None:
    """Experiments are found by their projects, and metrics are looked up for each of them."""
    conditions = conditions_of(text, now=datetime.now(UTC), me="anna", ids_of=lambda _, it: [it])
    plan = _plan(db, Selection(conditions, sort=sort, visible={"p", "q"}))
    (found,) = (step for step in plan if " experiments" in step)
    index = "USING COVERING INDEX experiments_by_project (project_id=?"
    assert found.startswith(f"SEARCH experiments {index}")
    of_spaces = {step for step in plan if "hyperparameters" in step}
    covering = "USING COVERING INDEX hyperparameters_by_experiment (experiment=? AND name=?"
    assert all(it.startswith(f"SEARCH hyperparameters {covering}") for it in of_spaces)
    assert bool(of_spaces) == ("hp." in text)
    of_metrics = [step for step in plan if "best_metrics" in step]
    assert of_metrics == (
        ["SEARCH best_metrics USING PRIMARY KEY (experiment=? AND name=?)"]
        if "metric." in text
        else []
    )
