"""Thinned curves keep what a reader looks for."""

import math
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metrics.report import EXPERIMENT, metrics, record, row
from rung.metrics import Point, SeriesStore

pytestmark = pytest.mark.stores

_trials = count()

_steps = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 500)
_values = st.floats(width=64).map(lambda value: value + 0.0) | st.sampled_from(
    [
        1.0,
        math.nan,
        math.inf,
        -math.inf,
    ]
)
"""The only thing not kept is the sign of a zero."""
_curves = st.dictionaries(_steps, _values, min_size=1, max_size=120)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SeriesStore]:
    """One store for all drawn curves, each of another trial."""
    folder: Path = tmp_path_factory.mktemp("curves")
    store = SeriesStore(folder / "series", ledger_id="ledger-1")
    yield store
    await store.close()


def _finite(points: list[Point]) -> list[float]:
    return [value for _, value, _ in points if math.isfinite(value)]


@pytest.mark.asyncio(loop_scope="module")
@given(drawn=st.lists(st.tuples(_curves, st.integers(5, 60)), min_size=4, max_size=4))
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_a_thinned_curve_keeps_its_extremes(
    shared: SeriesStore, drawn: list[tuple[dict[int, float], int]]
) -> None:
    """At most so many points, all of them real, by step; first, last, extremes, NaN are there."""
    trials = [next(_trials) for _ in drawn]
    for trial, (curve, _) in zip(trials, drawn, strict=True):  # stored together, by one insert
        rows = [row(step, loss=value, time_ms=7) for step, value in curve.items()]
        shared.absorb([record(metrics(rows, trial=trial), trial)])
    for trial, (curve, points) in zip(trials, drawn, strict=True):
        full = [(step, curve[step], 7) for step in sorted(curve)]
        thinned = await shared.curve(f"{EXPERIMENT}.{trial}", "training", "loss", points)
        _check(thinned, full, points)


def _check(thinned: list[Point], full: list[Point], points: int) -> None:
    assert len(thinned) <= points
    assert [step for step, _, _ in thinned] == sorted({step for step, _, _ in thinned})
    assert {repr(point) for point in thinned} <= {repr(point) for point in full}
    assert repr(thinned[0]) == repr(full[0])
    assert repr(thinned[-1]) == repr(full[-1])
    assert len(full) > points or repr(thinned) == repr(full)
    if finite := _finite(full):
        assert min(_finite(thinned)) == min(finite)
        assert max(_finite(thinned)) == max(finite)
    odd = [step for step, value, _ in full if not math.isfinite(value)]
    if odd:
        assert odd[0] in [step for step, value, _ in thinned if not math.isfinite(value)]


@pytest.mark.asyncio(loop_scope="module")
async def test_each_stretch_keeps_its_spikes(shared: SeriesStore) -> None:
    """A spike of one step in 10,000 is still there at 100 points, wherever it is."""
    trial = next(_trials)
    spikes = {17: 50.0, 4_321: -50.0, 9_998: 49.0}
    rows = [row(step, loss=spikes.get(step, math.sin(step / 900))) for step in range(10_000)]
    shared.absorb([record(metrics(rows, trial=trial), trial)])
    thinned = await shared.curve(f"{EXPERIMENT}.{trial}", "training", "loss", 100)
    kept = {step: value for step, value, _ in thinned}
    assert len(thinned) <= 100
    assert {step: kept.get(step) for step in spikes} == spikes


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("points", [1, 2, 3, 4])
async def test_very_few_points_still_end_with_the_last(shared: SeriesStore, points: int) -> None:
    """A sparkline of fewer points than extremes is as short as asked for and ends at the end."""
    trial = next(_trials)
    rows = [row(step, loss=float(step % 7)) for step in range(50)]
    shared.absorb([record(metrics(rows, trial=trial), trial)])
    thinned = await shared.curve(f"{EXPERIMENT}.{trial}", "training", "loss", points)
    assert 1 <= len(thinned) <= points
    assert thinned[-1] == (49, 0.0, 1_049)
