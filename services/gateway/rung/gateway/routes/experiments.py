"""Experiments and trials: listed, shown and audited."""

import time
from typing import Annotated, Final, Literal

from aiohttp import web
from msgspec import Meta

from rung import api
from rung.gateway.context import (
    context_of,
    experiment_id_of,
    experiment_of,
    reply,
    trial_of,
)
from rung.gateway.problem import Problem, unavailable
from rung.gateway.projections.experiments import ALL, COLUMNS, Selection
from rung.gateway.requests.query import (
    NoQuery,
    PageQuery,
    page,
    read_cursor,
    read_query,
    write_cursor,
)
from rung.gateway.route import Route
from rung.gateway.serializers import experiments as serializers

_NAME_MAX: Final = 500

_Value = Annotated[str, Meta(max_length=_NAME_MAX)]
Sort = Literal[
    "submitted", "-submitted", "ended", "-ended", "name", "-name", "state", "-state",
    "actor", "-actor", "trials", "-trials",
]  # fmt: skip


class ListQuery(PageQuery, forbid_unknown_fields=True):
    """Which experiments to list, in which order."""

    state: Annotated[api.ExperimentPhase, Meta(description="those in this state alone")] | None = (
        None
    )
    label: Annotated[_Value, Meta(description="those with this label alone")] | None = None
    name: (
        Annotated[_Value, Meta(description="those of this name alone; `*` stands for any text")]
        | None
    ) = None
    actor: Annotated[_Value, Meta(description="those that this one submitted")] | None = None
    workspace: Annotated[_Value, Meta(description="those of this workspace")] | None = None
    project: Annotated[_Value, Meta(description="those of this project")] | None = None
    pool: Annotated[_Value, Meta(description="those of this resource pool")] | None = None
    q: (
        Annotated[
            _Value,
            Meta(
                description="words that are all in the name, id, labels, description and"
                " hyperparameters; the last may be a beginning"
            ),
        ]
        | None
    ) = None
    sort: Annotated[Sort, Meta(description="by what; with `-` the greatest first")] = "-submitted"


async def list_experiments(request: web.Request) -> web.Response:
    """List experiments, by default the newest first."""
    query = read_query(request, ListQuery)
    by = query.sort.removeprefix("-")
    selection = Selection(
        equal={name: value for name in COLUMNS if (value := getattr(query, name)) is not None},
        label=query.label,
        words=query.q,
        sort=by,
        descending=query.sort.startswith("-"),
        after=read_cursor(query.cursor, (int if by == "trials" else str, str)),
        limit=query.limit + 1,
    )
    found = await context_of(request).models.experiments(selection)
    shown, now = found[: query.limit], time.time()
    return reply(
        api.ExperimentList(
            items=[serializers.summary(each.experiment, now) for each in shown],
            next_cursor=write_cursor(shown[-1].key) if len(found) > query.limit else None,
        )
    )


async def show_experiment(request: web.Request) -> web.Response:
    """Show one experiment with all of its trials."""
    read_query(request, NoQuery)
    return reply(serializers.detail(await experiment_of(request, validations=ALL), time.time()))


async def show_best(request: web.Request) -> web.Response:
    """Show an experiment's best trial and its checkpoint."""
    read_query(request, NoQuery)
    experiment = await experiment_of(request, validations=ALL)
    found = serializers.best(experiment)
    if found is None:
        metric = serializers.submission_of(experiment).metric
        raise Problem(
            409,
            "no-validation",
            f"no trial of experiment {experiment.id} has reported a finite {metric!r} yet",
        )
    return reply(found)


async def list_trials(request: web.Request) -> web.Response:
    """List an experiment's trials by index."""
    query = read_query(request, PageQuery)
    experiment = await experiment_of(request, validations=ALL)
    shown, cursor = page(experiment.trials, query, lambda trial: trial.index)
    items = [serializers.trial(experiment, trial) for trial in shown]
    return reply(api.TrialList(items=items, next_cursor=cursor))


async def show_trial(request: web.Request) -> web.Response:
    """Show a trial with its checkpoints."""
    read_query(request, NoQuery)
    return reply(serializers.trial_detail(*await trial_of(request)))


async def audit_experiment(request: web.Request) -> web.Response:
    """Decide an experiment's decisions again and compare."""
    read_query(request, NoQuery)
    experiment_id = await experiment_id_of(request)
    audit = context_of(request).parts.audit
    if audit is None:
        raise unavailable("this server has no deciders to audit with; run `rung audit`")
    return reply(await audit(experiment_id))


ROUTES: Final = (
    Route(
        "GET",
        "/experiments",
        list_experiments,
        "List experiments, the newest first",
        api.ExperimentList,
        query=ListQuery,
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}",
        show_experiment,
        "Show an experiment with all of its trials",
        api.Experiment,
        problems=(404, 409),
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/best",
        show_best,
        "Show the best trial and its checkpoint",
        api.BestAnswer,
        problems=(404, 409),
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/trials",
        list_trials,
        "List an experiment's trials",
        api.TrialList,
        query=PageQuery,
        problems=(404, 409),
    ),
    Route(
        "GET",
        "/trials/{trial_id}",
        show_trial,
        "Show a trial with its checkpoints",
        api.TrialDetail,
        problems=(404, 409),
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/audit",
        audit_experiment,
        "Decide every decision again and compare",
        api.Audit,
        problems=(404, 409),
    ),
)
