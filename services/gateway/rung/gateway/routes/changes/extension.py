"""Extending a search: more trials, or a longer length.

Where the search has not ended, that is a request of its user on record; the searcher decides
what follows. Where it has ended, a new experiment goes on from what is on record (decision 0035):
it has the same file, code and seed, and its trials are the ones that the search would have drawn
next; or its one trial starts from the last checkpoint of the one that has ended.
"""

from typing import Annotated, Any, Final

from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.config.change import changed
from rung.events.experiment import ExtensionRequested
from rung.events.trial import trial_id_of
from rung.gateway.access.authorization import access_of
from rung.gateway.access.place import CREATE, Names, Place
from rung.gateway.context import Context, check_caught_up, context_of, experiment_of, reply
from rung.gateway.experiment_file.policies import resolved
from rung.gateway.experiment_file.secrets import source_of
from rung.gateway.problem import Problem, bad_parameter
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiment_fold import PIN, extension_text
from rung.gateway.requests.query import read_query
from rung.gateway.requests.writes import is_repeated_of, key_of, once, stamp, write
from rung.gateway.route import Route
from rung.gateway.routes.submission import Proposal, put_on_record, read_code
from rung.gateway.serializers.experiments import (
    name_of,
    newest_checkpoint,
    submission_of,
)
from rung.methods.method import TRIALS_MAX
from rung.methods.table import read_options

_LENGTH_MAX: Final = 2**53
_AT_ONCE_MAX: Final = 10_000


class ExtensionQuery(Struct, forbid_unknown_fields=True):
    """What there is to be more of: one of the two."""

    trials: (
        Annotated[
            int, Meta(ge=1, le=TRIALS_MAX, description="how many trials there are to be in all")
        ]
        | None
    ) = None
    max_time: (
        Annotated[int, Meta(ge=1, le=_LENGTH_MAX, description="how far each trial is to train")]
        | None
    ) = None


async def extend_experiment(request: web.Request) -> web.StreamResponse:
    """Give a search more trials or a longer length; one that has ended goes on as a new one."""
    query = read_query(request, ExtensionQuery)
    if (query.trials is None) == (query.max_time is None):
        raise bad_parameter("trials", "give either trials or max_time")
    context, key = context_of(request), key_of(request)
    async with once(context, key):
        experiment = await experiment_of(request)
        asked = extension_text(query.trials, query.max_time)
        # What goes on pins a checkpoint of this experiment under the key before it is on record
        # itself; whether that was this request is checked there.
        goes_on = experiment.ended is not None and experiment.requests.get(key or "") == PIN
        if not goes_on and await is_repeated_of(context, key, experiment, asked):
            return reply(_accepted(experiment.id, query), status=202)
        check_caught_up(context.models)
        _check(experiment, query)
        if experiment.ended is None:
            fact = ExtensionRequested(
                experiment_id=experiment.id, trials=query.trials, max_time=query.max_time
            )
            await write(context, [stamp(context, key, fact)])
            return reply(_accepted(experiment.id, query), status=202)
        access = access_of(request)
        place = Names(access).place_of(experiment)
        what = f"an experiment that goes on where {experiment.id} ended"
        access.check(CREATE, place.workspace_id, what)
        first = submission_of(experiment)
        file = await source_of(context, first.config, first.source)
        code = await read_code(context, experiment)
        proposal = _continued(context, experiment, query, place, file, code)
        made = await put_on_record(context, key, proposal, access)
    return reply(_accepted(made, query, parent=experiment.id), status=202)


def _accepted(
    experiment_id: str, query: ExtensionQuery, *, parent: str | None = None
) -> api.Extended:
    return api.Extended(
        experiment_id=experiment_id, parent=parent, trials=query.trials, max_time=query.max_time
    )


def _check(experiment: Experiment, query: ExtensionQuery) -> None:
    """Refuse what is no extension, or one that the method does not have.

    Raises:
        Problem: why it cannot be.
    """
    if experiment.ending is not None and experiment.ended is None:
        detail = f"experiment {experiment.id} is being canceled; extend it once it has ended"
        raise Problem(409, "ending", detail)
    if not experiment.plan:
        detail = f"experiment {experiment.id} has no plan yet; try again in a moment"
        raise Problem(409, "not-planned", detail)
    options = read_options(submission_of(experiment).config["searcher"])
    refusal = options.extension(query.trials, query.max_time)
    if refusal is not None:
        what = "more trials" if query.max_time is None else "a longer length"
        detail = f"experiment {experiment.id} cannot have {what}: {refusal}"
        raise Problem(409, "not-extensible", f"{detail} (`rung fork` makes another search)")
    trials, length = planned_trials(experiment), planned_length(experiment)
    if query.trials is not None and query.trials <= trials:
        detail = f"it has {trials} already; name more, for they are counted in all"
        raise bad_parameter("trials", detail)
    if query.trials is not None and not options.concurrent and query.trials > _AT_ONCE_MAX:
        raise bad_parameter("trials", f"at most {_AT_ONCE_MAX:,} trials may train at once")
    if query.max_time is not None and query.max_time <= length:
        raise bad_parameter("max_time", f"it is {length} already; name a longer one")


def planned_trials(experiment: Experiment) -> int:
    """Return how many trials a search is planned to have."""
    return sum(plan.trials for plan in experiment.plan)


def planned_length(experiment: Experiment) -> int:
    """Return how far its trials are to train, 0 where they have no length."""
    return max((plan.lengths[-1] for plan in experiment.plan if plan.lengths), default=0)


def _continued(  # noqa: PLR0913, PLR0917 - what makes an experiment that goes on
    context: Context,
    experiment: Experiment,
    query: ExtensionQuery,
    place: Place,
    file: str,
    code: bytes | None,
) -> Proposal:
    """Return the experiment that goes on where one has ended; `file` has its secrets."""
    submission = submission_of(experiment)
    reproducibility = submission.config["reproducibility"]
    changes: dict[str, Any] = {
        "name": name_of(experiment),
        "reproducibility.experiment_seed": reproducibility["experiment_seed"],
    }
    without: tuple[str, ...] = ()
    if query.trials is not None:
        first = reproducibility.get("first_trial", 0) + len(experiment.trials)
        changes["reproducibility.first_trial"] = first
        changes["searcher.max_trials"] = query.trials - planned_trials(experiment)
    else:
        without = ("searcher.max_length", "searcher.source_checkpoint_uuid")
        changes["searcher.time_metric"] = submission.time_metric
        changes["searcher.max_time"] = query.max_time
        trial_id = trial_id_of(experiment.id, 0)
        if newest_checkpoint(experiment, trial_id) is None:
            detail = (
                f"experiment {experiment.id} cannot go on: its trial has no checkpoint left to"
                " resume from; `rung fork` trains it from the beginning"
            )
            raise Problem(409, "no-checkpoint", detail)
        changes["searcher.source_trial_id"] = trial_id
        changes["reproducibility.continue_source"] = True
    source = changed(file, changes, without=without)
    return Proposal(
        source=source,
        config=resolved(context, source, place)[1],
        code_digest=submission.code_digest,
        parent=experiment.id,
        code=code,
        place=place,
    )


ROUTES: Final = (
    Route(
        "POST",
        "/experiments/{experiment_id}/extend",
        extend_experiment,
        "Give a search more trials or a longer length",
        api.Extended,
        status=202,
        query=ExtensionQuery,
        idempotent=True,
        problems=(404, 409, 422),
        needs="experiment.edit",
    ),
)
