"""Curves of metrics."""

import math
from collections.abc import Sequence
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events.trial import MetricValue
from rung.gateway.context import context_of, experiment_of, reply, trial_of
from rung.gateway.projections.experiment import Experiment
from rung.gateway.requests.query import read_query
from rung.gateway.route import Route
from rung.gateway.serializers import experiments as serializers
from rung.gateway.series import Point, Series

_NAME_MAX: Final = 500


class CurveQuery(Struct, forbid_unknown_fields=True):
    """Which metric, and how finely."""

    kind: Annotated[str, Meta(max_length=_NAME_MAX, description="`validation`, `training`, …")] = (
        "validation"
    )
    name: (
        Annotated[
            str,
            Meta(max_length=_NAME_MAX, description="the metric; the searcher's if not given"),
        ]
        | None
    ) = None
    points: Annotated[int, Meta(ge=5, le=10_000, description="points of a curve at most")] = 200


async def show_experiment_curves(request: web.Request) -> web.Response:
    """Show one metric of all trials in one answer."""
    query = read_query(request, CurveQuery)
    experiment = await experiment_of(request)
    series = context_of(request).need_series()
    name = query.name or serializers.submission_of(experiment).metric
    overlay = await series.overlay(experiment.id, query.kind, name, query.points)
    return reply(
        api.ExperimentCurves(
            experiment_id=experiment.id,
            kind=query.kind,
            name=name,
            curves={trial_id: _points(overlay[trial_id]) for trial_id in overlay},
            names=await _names(series, experiment),
        )
    )


async def show_trial_curve(request: web.Request) -> web.Response:
    """Show one metric of one trial."""
    query = read_query(request, CurveQuery)
    experiment, trial = await trial_of(request)
    trial_id = f"{experiment.id}.{trial.index}"
    series = context_of(request).need_series()
    name = query.name or serializers.submission_of(experiment).metric
    curve = await series.curve(trial_id, query.kind, name, query.points)
    return reply(
        api.TrialCurve(
            trial_id=trial_id,
            kind=query.kind,
            name=name,
            points=_points(curve),
            names=await _names(series, experiment),
        )
    )


async def _names(series: Series, experiment: Experiment) -> list[api.MetricName]:
    return [
        api.MetricName(kind=kind, name=name) for kind, name in await series.names(experiment.id)
    ]


def _points(curve: Sequence[Point]) -> list[api.CurvePoint]:
    if math.isfinite(sum(value for _, value, _ in curve)):  # then each value is
        return list(curve)
    return [(step, _value(value), time_ms) for step, value, time_ms in curve]


def _value(value: float) -> MetricValue:
    """Return a value as it is sent: JSON has no numbers that are not finite."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/metrics",
        show_experiment_curves,
        "One metric of all trials",
        api.ExperimentCurves,
        query=CurveQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/trials/{trial_id}/metrics",
        show_trial_curve,
        "One metric of one trial",
        api.TrialCurve,
        query=CurveQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
)
