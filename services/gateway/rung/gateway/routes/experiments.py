"""Experiments and trials: listed, shown and audited."""

import time
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events.trial import trial_id_of
from rung.gateway.access.authorization import Access, access_of
from rung.gateway.access.place import Names
from rung.gateway.context import (
    context_of,
    experiment_id_of,
    experiment_of,
    find_checkpoint,
    find_id,
    find_trial,
    head_of,
    reply,
    show_pins,
    trial_of,
    trials_of,
)
from rung.gateway.feasibility import known_shortage
from rung.gateway.problem import Problem, bad_parameter, unavailable
from rung.gateway.projections.experiments import ALL, Selection, TrialSelection
from rung.gateway.projections.filter import (
    LENGTH_MAX,
    Condition,
    InvalidFilter,
    conditions_of,
    equal,
    full_text,
)
from rung.gateway.requests.query import (
    NoQuery,
    PageQuery,
    read_cursor,
    read_query,
    write_cursor,
)
from rung.gateway.route import Route
from rung.gateway.serializers import experiments as serializers

_NAME_MAX: Final = 500
_TOP: Final = TrialSelection(sort="best", limit=5, valued=True, validations=False)

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
    actor: Annotated[_Value, Meta(description="as `owner`")] | None = None
    owner: (
        Annotated[_Value, Meta(description="those that this user submitted, by name or id; `me`")]
        | None
    ) = None
    workspace: (
        Annotated[_Value, Meta(description="those in this workspace, by name or id")] | None
    ) = None
    project: (
        Annotated[_Value, Meta(description="those in projects of this name, or of this id")] | None
    ) = None
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
    filter: Annotated[
        str,
        Meta(
            max_length=LENGTH_MAX,
            description="terms that all hold, such as `state:errored older:30d metric.error<0.1`;"
            " docs/FILTERS.md has the language",
        ),
    ] = ""
    sort: Annotated[Sort, Meta(description="by what; with `-` the greatest first")] = "-submitted"
    deleted: Annotated[
        bool, Meta(description="those whose deletion can be taken back, archived or not")
    ] = False


class ShowQuery(Struct, forbid_unknown_fields=True):
    """How much of an experiment to show."""

    trials: Annotated[
        Literal["all", "top", "none"],
        Meta(
            description="which of its trials: `top` are the five best, the best first, without"
            " validations but the last; the counts are of all trials in any case"
        ),
    ] = "all"


class TrialQuery(PageQuery, forbid_unknown_fields=True):
    """Which page of an experiment's trials, in which order."""

    sort: Annotated[
        Literal["index", "best"],
        Meta(
            description="`best`: by the best value of the searcher's metric, those without one at"
            " the end"
        ),
    ] = "index"
    validations: Annotated[
        Literal["all", "last"],
        Meta(description="whether all are shown, or the last one alone"),
    ] = "all"
    index: (
        Annotated[
            str,
            Meta(
                max_length=8_000,
                pattern=r"^[0-9]{1,9}(,[0-9]{1,9}){0,999}$",
                description="those of these indices alone, with commas between them",
            ),
        ]
        | None
    ) = None


class ReferenceQuery(Struct, forbid_unknown_fields=True):
    """What to find."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=_NAME_MAX,
            description="an id or an unambiguous beginning of one, or an experiment's name; of a"
            " trial and a checkpoint also with the experiment's name in place of its id",
        ),
    ]


async def list_experiments(request: web.Request) -> web.Response:
    """List experiments, by default the newest first."""
    query = read_query(request, ListQuery)
    by = query.sort.removeprefix("-")
    selection = Selection(
        conditions=_conditions(query, access_of(request)),
        sort=by,
        descending=query.sort.startswith("-"),
        after=read_cursor(query.cursor, (int if by == "trials" else str, str)),
        limit=query.limit + 1,
        visible=access_of(request).seen,
        hidden=query.deleted,
    )
    found = await context_of(request).models.experiments(selection)
    shown = found[: query.limit]
    experiments = [each.experiment for each in shown]
    left = await context_of(request).time_left.of(experiments, time.time())
    names = Names(access_of(request))
    return reply(
        api.ExperimentList(
            items=[serializers.summary(each, left.get(each.id), names) for each in experiments],
            next_cursor=write_cursor(shown[-1].key) if len(found) > query.limit else None,
        )
    )


def _conditions(query: ListQuery, access: Access) -> list[Condition]:
    me, ids_of = access.principal.user_id, Names(access).ids_of
    owner = query.owner or query.actor
    found = [
        equal(field, value, ids_of)
        for field, value in {
            "state": query.state,
            "label": query.label,
            "name": query.name,
            "owner": me if owner == "me" else owner,
            "workspace": query.workspace,
            "project": query.project,
            "pool": query.pool,
        }.items()
        if value is not None
    ]
    if query.q is not None:
        found.append(full_text(query.q, begins=True))
    text = f"archived:any {query.filter}" if query.deleted else query.filter
    return found + filtered(text, access)


def filtered(text: str, access: Access) -> list[Condition]:
    """Return the conditions that a filter of a principal stands for.

    Raises:
        Problem: it cannot be read.
    """
    me, ids_of = access.principal.user_id, Names(access).ids_of
    try:
        return conditions_of(text, now=datetime.now(UTC), me=me, ids_of=ids_of)
    except InvalidFilter as error:
        raise bad_parameter("filter", str(error)) from None


async def show_experiment(request: web.Request) -> web.Response:
    """Show one experiment, with all of its trials unless others are asked for."""
    query = read_query(request, ShowQuery)
    context, access = context_of(request), access_of(request)
    if query.trials == "all":
        experiment = await experiment_of(request, validations=ALL)
    elif query.trials == "none":
        experiment = await head_of(request)
    else:
        experiment, best, _ = await trials_of(request, _TOP)
        experiment.trials = best
    left = await context.time_left.of([experiment], time.time())
    shown = serializers.detail(experiment, left.get(experiment.id), Names(access))
    if shown.trial_states.get("waiting"):
        wanted = serializers.resources(experiment)
        shown.unplaced = known_shortage(context.models, wanted.pool, wanted.slots_per_trial)
    if shown.parent is not None and access.seen is not None:
        projects = await context.models.projects_of([shown.parent])
        shown.parent = shown.parent if projects.get(shown.parent) in access.seen else None
    return reply(shown)


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
    if found.checkpoint is not None:
        await show_pins(request, found.checkpoint)
    return reply(found)


async def find_reference(request: web.Request) -> web.Response:
    """Return the experiment, trial or checkpoint that a reference stands for."""
    name = read_query(request, ReferenceQuery).name
    problems: list[Problem] = []
    found: list[api.Found] = []
    for find in (_found_experiment, _found_trial, _found_checkpoint):
        if found and find is _found_checkpoint:
            break
        try:
            found.append(await find(request, name))
        except Problem as problem:
            if problem.kind == "ambiguous":
                raise
            problems.append(problem)
    if not found:
        raise problems[(0, 1, 1, 2)[min(name.count("."), 3)]]
    if len(found) > 1:
        both = " and ".join(f"{each.kind} {each.id}" for each in found)
        raise Problem(409, "ambiguous", f"{name!r} is both {both}; give the id")
    return reply(found[0])


async def _found_experiment(request: web.Request, name: str) -> api.Found:
    found = await find_id(request, name)
    return api.Found(kind="experiment", id=found, experiment_id=found)


async def _found_trial(request: web.Request, name: str) -> api.Found:
    experiment, trial = await find_trial(request, name)
    return api.Found(
        kind="trial", id=trial_id_of(experiment.id, trial.index), experiment_id=experiment.id
    )


async def _found_checkpoint(request: web.Request, name: str) -> api.Found:
    experiment, checkpoint = await find_checkpoint(request, name)
    return api.Found(kind="checkpoint", id=checkpoint.id, experiment_id=experiment.id)


async def list_trials(request: web.Request) -> web.Response:
    """List an experiment's trials by index, or the best first."""
    query = read_query(request, TrialQuery)
    by_value = query.sort == "best"
    after = read_cursor(query.cursor, (float, int) if by_value else (int,))
    experiment, shown, last = await trials_of(
        request,
        TrialSelection(
            sort=query.sort,
            after=after if by_value or after is None else (0.0, after),
            limit=query.limit,
            indices=None if query.index is None else list(map(int, query.index.split(","))),
            validations=query.validations == "all",
        ),
    )
    items = [serializers.trial(experiment, trial) for trial in shown]
    following = None if last is None else write_cursor(last if by_value else last[1])
    return reply(api.TrialList(items=items, next_cursor=following))


async def show_trial(request: web.Request) -> web.Response:
    """Show a trial with its checkpoints."""
    read_query(request, NoQuery)
    shown = serializers.trial_detail(*await trial_of(request))
    await show_pins(request, *shown.checkpoints)
    return reply(shown)


async def audit_experiment(request: web.Request) -> web.Response:
    """Decide an experiment's decisions again and compare."""
    read_query(request, NoQuery)
    experiment_id = await experiment_id_of(request, deleted=True)
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
        needs="experiment.view",
        about="workspace",
        complete=True,
    ),
    Route(
        "GET",
        "/find",
        find_reference,
        "Find what an id, a beginning of one, or a name stands for",
        api.Found,
        query=ReferenceQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}",
        show_experiment,
        "Show an experiment with all of its trials",
        api.Experiment,
        query=ShowQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/best",
        show_best,
        "Show the best trial and its checkpoint",
        api.BestAnswer,
        problems=(404, 409),
        needs="experiment.view",
        complete=True,
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/trials",
        list_trials,
        "List an experiment's trials",
        api.TrialList,
        query=TrialQuery,
        problems=(404, 409),
        needs="experiment.view",
        complete=True,
    ),
    Route(
        "GET",
        "/trials/{trial_id}",
        show_trial,
        "Show a trial with its checkpoints",
        api.TrialDetail,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/audit",
        audit_experiment,
        "Decide every decision again and compare",
        api.Audit,
        problems=(404, 409),
        needs="experiment.view",
    ),
)
