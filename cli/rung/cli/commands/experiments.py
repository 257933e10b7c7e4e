"""`rung list`, `rung show`, `rung open`, `rung best`: experiments and trials."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import click
import msgspec

from rung.cli.commands.failures import failure_facts
from rung.cli.commands.wait import follow
from rung.cli.connection_options import (
    PATIENCE_FOLLOWING_S,
    Link,
    experiment_argument,
    linked,
    trial_ids,
)
from rung.cli.output import (
    counted,
    duration,
    flat,
    lasting,
    local_time,
    number,
    print_facts,
    print_json,
    print_table,
    printable,
    seconds_between,
    settings,
    share,
    size,
    written,
)
from rung.client import (
    AsyncClient,
    ClientError,
    Experiment,
    ExperimentSummary,
    NotFound,
    Trial,
    TrialDetail,
)
from rung.methods.space import Const
from rung.methods.space import flatten as leaves_of

_STATES: Final = ("active", "paused", "canceling", "completed", "errored", "canceled")
_SORTS: Final = tuple(
    f"{order}{name}"
    for name in ("submitted", "ended", "name", "state", "actor", "trials")
    for order in ("", "-")
)
_TRIALS_SHOWN: Final = 20
_CELL: Final = 60
"""Characters of a hyperparameter's value in the table of trials."""
_PERIOD_S: Final = 3.0
"""How long to wait for the period of a trial's checkpoints, which is left out then."""


def _trials_and_errored(item: ExperimentSummary) -> str:
    errored = sum(failure.trials for failure in item.failures)
    return f"{item.trial_count} ({errored} errored)" if errored else str(item.trial_count)


_LIST: Final[Mapping[str, Callable[[ExperimentSummary], Any]]] = {
    "id": lambda it: it.id,
    "name": lambda it: it.name,
    "state": lambda it: it.state,
    "method": lambda it: it.method,
    "done": lambda it: share(it.progress),
    "trials": _trials_and_errored,
    "best": lambda it: f"{it.best.metric} {number(it.best.value)}" if it.best else None,
    "took": lambda it: duration(seconds_between(it.submitted_at, it.ended_at)),
    "left": lambda it: None if it.eta_seconds is None else duration(it.eta_seconds),
    "submitted": lambda it: local_time(it.submitted_at),
    "ended": lambda it: local_time(it.ended_at) if it.ended_at else None,
    "workspace": lambda it: it.workspace,
    "project": lambda it: f"{it.workspace}/{it.project}",
    "owner": lambda it: it.owner,
    "labels": lambda it: it.labels,
    "reason": lambda it: it.reason,
    "until": lambda it: local_time(it.restorable_until) if it.restorable_until else None,
}
"""Columns of the list of experiments."""
_LISTED: Final = (
    "id", "name", "state", "method", "done", "trials", "best", "took", "left", "submitted",
)  # fmt: skip
_LISTED_DELETED: Final = ("id", "name", "state", "trials", "best", "submitted", "until")
_LIST_SPARE: Final = ("method", "submitted", "left", "took", "trials")
_NUMBERS: Final = (
    "done", "trials", "took", "left", "bracket", "rung", "trained", "best", "batches", "restarts",
)  # fmt: skip


_NARROWING: Final = (
    "state", "label", "name", "actor", "workspace", "project", "search", "deleted",
)  # fmt: skip
"""Options of the list that leave experiments out."""


def _names(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> list[str]:
    """Return the names in an option of several, separated by commas."""
    return [name for part in (value or "").split(",") if (name := part.strip())]


@click.command("list")
@click.argument("terms", nargs=-1, metavar="[FILTER]…")
@click.option("--state", type=click.Choice(_STATES), help="Those in this state alone.")
@click.option("--label", help="Those with this label alone.")
@click.option("--name", help="Those of this name alone; `*` stands for any text.")
@click.option("--actor", "--owner", help="Those that this user submitted; `me`.")
@click.option("--workspace", help="Those in this workspace.")
@click.option("--project", help="Those in projects of this name.")
@click.option("--search", help="Words in the name, labels, description or hyperparameters.")
@click.option(
    "--deleted", is_flag=True, help="Those that `rung restore` brings back, and until when."
)
@click.option("--saved", metavar="NAME", help="Those of a saved search (`rung search`).")
@click.option("--sort", type=click.Choice(_SORTS), help="By what; with - the greatest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many."
)
@click.option("--cursor", help="Go on where a page ended (`next_cursor` of --json).")
@click.option(
    "--columns", callback=_names, metavar="A,B,…", help=f"Which columns, of {', '.join(_LIST)}."
)
@linked
async def list_(
    link: Link, terms: tuple[str, ...], columns: list[str], saved: str | None, **asked: Any
) -> None:
    """List experiments, the newest first; with FILTER those of which all terms hold.

    As in: rung list 'state:errored older:30d metric.error<0.1 hp.lr>=0.01 -label:keep'

    A term is a word, field:value, a comparison, or one of them with a - in front (not): quote it.
    Fields: id, name, state, owner, label, workspace, project, pool, method, submitted, ended,
    older, newer, trials, best, size, archived, metric.NAME, hp.NAME (docs/FILTERS.md).

    A narrow terminal shows fewer columns, unless --columns names them.
    """
    unknown = [name for name in columns if name not in _LIST]
    if unknown:
        raise click.UsageError(f"no column {unknown[0]!r}; there are {', '.join(_LIST)}")
    async with link.client() as client:
        if saved is not None:
            terms = (await _saved(client, saved), *terms)
        page = await client.experiments(**asked, filter=" ".join(terms) or None)
    if link.json:
        print_json(page)
        return
    if not page.items:
        narrowed = terms or any(asked[name] for name in _NARROWING)
        hint = "" if narrowed else " `rung submit experiment.yaml folder -f` trains one."
        click.echo(f"No {'such ' if narrowed else ''}experiments.{hint}")
        return
    chosen = columns or [
        name
        for name in (_LISTED_DELETED if asked["deleted"] else _LISTED)
        if name != "left" or any(it.eta_seconds is not None for it in page.items)
    ]
    print_table(
        chosen,
        [[_LIST[name](item) for name in chosen] for item in page.items],
        right=[name for name in _NUMBERS if name != "best"],
        spare=() if columns else _LIST_SPARE,
    )
    if page.next_cursor:
        click.echo(f"There are more: --limit, or --cursor {page.next_cursor}", err=True)


async def _saved(client: AsyncClient, name: str) -> str:
    """Return the filter of a saved search, one's own before those that are shared.

    Raises:
        ClientError: there is none, or several are shared under this name.
    """
    found = [it for it in await client.searches.list() if name in {it.id, it.name}]
    found = [it for it in found if it.workspace_id is None] or found
    if not found:
        raise ClientError(f"there is no saved search {name}; `rung search list` lists them")
    if len(found) > 1:
        ids = ", ".join(it.id for it in found)
        raise ClientError(f"several saved searches have the name {name}: {ids}; give the id")
    return found[0].query


@click.command()
@click.argument("name", metavar="ID|TRIAL", shell_complete=trial_ids)
@click.option(
    "--sort",
    default="best",
    metavar="COLUMN",
    help="Order of the trials: a column or a hyperparameter; with - the other way round."
    " [default: best, the best first]",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=_TRIALS_SHOWN,
    show_default=True,
    help="How many trials.",
)
@click.option("--all", "everything", is_flag=True, help="All trials, however many.")
@click.option(
    "--columns",
    callback=_names,
    metavar="A,B,…",
    help="Which columns: trial, state, bracket, rung, trained, best, batches, restarts, why,"
    " hyperparameters (all in one), or a hyperparameter.",
)
@click.option("--follow", "-f", "following", is_flag=True, help="Then watch it until it ended.")
@linked
async def show(  # noqa: PLR0913 - its options
    name: str,
    link: Link,
    *,
    sort: str,
    limit: int,
    everything: bool,
    columns: list[str],
    following: bool,
) -> int:
    """Show an experiment with its trials, the best first, or one trial with its checkpoints.

    Of the hyperparameters, those are shown that differ. A narrow terminal shows fewer columns,
    unless --columns names them. With --json: the API's record, with all trials; that of an
    experiment with its `checkpoints`.
    """
    async with link.client() as client:
        if await client.kind_of(name) == "trial":
            if following:
                raise click.UsageError(
                    "--follow takes an experiment; `rung logs -f` follows the log of a trial"
                )
            trial = await client.trial(name)
            if link.json:
                print_json(trial)
            else:
                period = await _checkpoint_period(client, trial)
                unplaced = None
                if trial.state == "waiting":
                    owner = await client.experiment(trial.experiment_id, trials="none")
                    unplaced = owner.unplaced
                _show_trial(trial, period, _address(client.url, trial.id), unplaced)
            return 0
        if link.json and not following:
            experiment = await client.experiment(name)
            checkpoints = await client.checkpoints(experiment.id)
            print_json({**msgspec.structs.asdict(experiment), "checkpoints": checkpoints})
            return 0
        experiment = await client.experiment(name, trials="none")
        if sort == "best" and not everything:
            found = await client.best_trials(experiment.id, limit)
        else:
            found = await client.trials(experiment.id, validations="last")
        address = _address(client.url, experiment.id)
    table = _Trials.of(experiment, found)
    if not link.json:
        wanted = [table.known(column) for column in columns]
        ordered = table.sorted(sort)
        _show_experiment(experiment, address)
        _print_trials(table, wanted, ordered if everything else ordered[:limit])
    if not following:
        return 0
    async with link.client(PATIENCE_FOLLOWING_S) as client:
        return await follow(link, client, experiment.id, quiet=False)


def _print_trials(table: "_Trials", columns: list[str], trials: Sequence[Trial]) -> None:
    """Print a table of trials, and say how many more there are."""
    if trials:
        click.echo()
        table.print(trials, columns)
    left = table.experiment.trial_count - len(trials)
    if left > 0:
        them = "is not shown; --all shows it" if left == 1 else "are not shown; --all shows them"
        click.echo(f"{counted(left, 'more trial')} {them}", err=True)


@click.command("open")
@click.argument("name", metavar="[ID|TRIAL]", required=False, shell_complete=trial_ids)
@click.option("--print", "only_print", is_flag=True, help="Print the address, open nothing.")
@linked
async def open_(name: str | None, link: Link, *, only_print: bool) -> None:
    """Open the page in a browser: the list, or that of an experiment or a trial.

    Without a browser it prints the address. It holds the token: keep it to yourself.
    """
    async with link.client() as client:
        if name is None:
            found = None
        elif await client.kind_of(name) == "trial":
            found = (await client.trial(name)).id
        else:
            found = (await client.experiment(name, trials="none")).id
        where = link.locate()
    address = _address(where.url, found)
    if where.token:
        address += f"{'&' if found else ''}token={quote(where.token, safe='')}"
    if link.json:
        print_json({"id": found, "url": address})
    elif only_print or not _browse(address):
        click.echo(address)
    else:
        click.echo(f"Opened {_address(where.url, found)}")


def _browse(address: str) -> bool:
    """Open an address in the user's browser; return False where there is none."""
    import webbrowser  # noqa: PLC0415 - only here

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # A browser in the terminal would take it over; and it cannot show the page.
    if isinstance(browser, webbrowser.GenericBrowser) and not isinstance(
        browser, webbrowser.BackgroundBrowser
    ):
        return False
    return browser.open(address)


def _address(url: str, name: str | None) -> str:
    """Return the address of the page, or of its part on an experiment or a trial."""
    if name is None:
        return f"{url}/#"
    experiment_id, _, index = name.partition(".")
    trial = f"/search?trial={index}" if index else ""
    return f"{url}/#/x/{quote(experiment_id, safe='')}{trial}"


@click.command()
@experiment_argument
@linked
async def best(experiment_id: str, link: Link) -> None:
    """Show an experiment's best trial, its hyperparameters and its checkpoint."""
    async with link.client() as client:
        try:
            found = await client.best(experiment_id)
        except NotFound as error:
            if await client.kind_of(experiment_id) == "experiment":
                raise
            raise click.UsageError(
                f"{experiment_id} is no experiment; `rung show` shows a trial's best value, and"
                " `rung checkpoints` what can be downloaded of it"
            ) from error
    if link.json:
        print_json(found)
        return
    checkpoint = found.checkpoint
    print_facts(
        [
            (found.metric, found.value),
            ("trial", f"{found.trial.id} ({found.trial.state})"),
            ("batches", found.steps),
            (
                "checkpoint",
                f"{checkpoint.id} ({size(checkpoint.size_bytes)})"
                if checkpoint
                else "none of this trial is stored",
            ),
            ("which is", found.checkpoint_note),
        ]
    )
    click.echo()
    values = [(name, written(value)) for name, value in flat(found.hparams)]
    print_table(["hyperparameter", "value"], values)
    if checkpoint is not None:
        click.echo(f"\n`rung download {checkpoint.id}` fetches it.")


def _show_experiment(experiment: Experiment, address: str) -> None:
    unit = experiment.plan.time_metric if experiment.plan else "units"
    trained = lasting(experiment.units_trained, unit)
    if experiment.units_full:
        trained += f", {share(experiment.units_trained / experiment.units_full)} of all in full"
    best_trial = experiment.best
    left = experiment.eta_seconds
    print_facts(
        [
            ("experiment", experiment.id),
            ("name", experiment.name),
            ("page", address),
            ("state", experiment.state),
            ("reason", experiment.reason or None),
            ("waiting", experiment.unplaced),
            *failure_facts(experiment),
            ("method", experiment.method),
            ("progress", share(experiment.progress)),
            ("left", None if left is None else f"about {duration(left)}"),
            ("trained", trained),
            ("labels", experiment.labels or None),
            ("made from", experiment.parent),
            ("project", f"{experiment.workspace}/{experiment.project}"),
            ("owner", experiment.owner),
            ("submitted", local_time(experiment.submitted_at)),
            ("took", duration(seconds_between(experiment.submitted_at, experiment.ended_at))),
            ("checkpoints", _sizes(experiment)),
            (
                "best",
                best_trial
                and f"{best_trial.metric} {number(best_trial.value)} by {best_trial.trial_id}",
            ),
        ]
    )


def _sizes(experiment: Experiment) -> str:
    counts = experiment.checkpoint_states
    stored = counts.get("stored", 0)
    kept = f"{stored:,} stored ({size(experiment.checkpoint_bytes)})"
    return f"{kept}, {sum(counts.values()) - stored:,} gone"


def _why(experiment: Experiment, trial: Trial) -> str | None:
    """Return the reason of a trial's state; of one that was stopped, the value at its end, too."""
    if trial.state == "waiting":
        return experiment.unplaced or trial.message
    plan, stopped = experiment.plan, trial.reason and trial.state == "stopped"
    last = trial.validations[-1].metrics if trial.validations else {}
    if stopped and plan and experiment.best and last.get(plan.time_metric) == trial.length:
        value = last.get(experiment.best.metric)
        if value is not None and (trial.best is None or value != trial.best.value):
            return f"{number(value)}: {trial.reason}"
    return trial.reason


class _Trials(NamedTuple):
    """The table of an experiment's trials, or of the best of them."""

    experiment: Experiment
    trials: Sequence[Trial]
    columns: dict[str, Callable[[Trial], Any]]
    """Those that every experiment has."""
    hparams: dict[str, list[Any]]
    """Name of a hyperparameter → its value in each trial."""

    @classmethod
    def of(cls, experiment: Experiment, trials: Sequence[Trial]) -> "_Trials":
        """Return the table of trials of an experiment."""
        columns: dict[str, Callable[[Trial], Any]] = {
            "trial": lambda it: it.id,
            "state": lambda it: it.state,
            "bracket": lambda it: it.bracket,
            "rung": lambda it: it.rung,
            "trained": lambda it: f"{number(it.units)}/{printable(it.length)}",
            "best": lambda it: number(it.best.value) if it.best else None,
            "batches": lambda it: it.best.steps if it.best else None,
            "restarts": lambda it: it.restarts,
            "hyperparameters": lambda it: settings(it.hparams),
            "why": lambda it: _why(experiment, it),
        }
        values = [dict(flat(trial.hparams)) for trial in trials]
        names = dict.fromkeys(name for each in values for name in each)
        return cls(
            experiment, trials, columns, {name: [it.get(name) for it in values] for name in names}
        )

    def known(self, name: str) -> str:
        """Return the name of a column.

        Raises:
            click.UsageError: there is none of this name.
        """
        if name in self.columns or name in self.hparams:
            return name
        there = ", ".join(dict.fromkeys((*self.columns, *self.hparams)))
        raise click.UsageError(f"no column {name!r}; there are {there}")

    def sorted(self, by: str) -> list[Trial]:
        """Return the trials in the order of a column; those without a value come last.

        Raises:
            click.UsageError: there is no such column.
        """
        name, turned = self.known(by.removeprefix("-")), by.startswith("-")
        if name == "best":
            search: dict[str, Any] = self.experiment.config.get("searcher") or {}
            turned = turned != (search.get("smaller_is_better") is False)
        keys: dict[str, Callable[[Trial], Any]] = {
            "trial": lambda it: it.index,
            "trained": lambda it: it.units,
            "best": lambda it: it.best.value if it.best else None,
        }
        key = keys.get(name) or (lambda it: self._raw(it, name))
        trials = sorted(self.trials, key=lambda it: it.index)
        there = [it for it in trials if key(it) is not None]
        plain = all(isinstance(key(it), int | float) for it in there)
        there.sort(key=key if plain else lambda it: printable(key(it)), reverse=turned)
        return there + [it for it in trials if key(it) is None]

    def print(self, trials: Sequence[Trial], wanted: Sequence[str]) -> None:
        """Print trials; in columns that are wanted, else in those that tell them apart."""
        plan = self.experiment.plan
        space = leaves_of(self.experiment.config.get("hyperparameters") or {})
        varied = {".".join(it.path) for it in space if not isinstance(it.parameter, Const)}
        differing = [
            name
            for name, values in self.hparams.items()
            if self.experiment.trial_count == 1
            or name in varied
            or any(value != values[0] for value in values)
        ]
        absent = {
            "bracket": plan is None or len(plan.brackets) < 2,
            "rung": plan is None or all(len(it.lengths) < 2 for it in plan.brackets),
            "restarts": not any(it.restarts for it in self.trials),
        }
        first = ("trial", "state", "bracket", "rung", "trained", "best", "restarts")
        columns = [*(name for name in first if not absent.get(name)), *differing, "why"]
        columns = list(dict.fromkeys(wanted or columns))
        spare = ["why", *reversed(differing[2:]), "restarts", "bracket", "rung"]
        numeric = [
            name
            for name, values in self.hparams.items()
            if all(isinstance(value, int | float) for value in values)
        ]
        left_out = print_table(
            columns,
            [[self._value(trial, name) for name in columns] for trial in trials],
            right=[*_NUMBERS, *numeric],
            spare=() if wanted else spare,
        )
        hidden = [name for name in differing if name in left_out]
        if hidden:
            click.echo(f"No room for {', '.join(hidden)}; --columns shows them", err=True)

    def _value(self, trial: Trial, name: str) -> Any:
        """Return what is shown."""
        if name in self.columns:
            return self.columns[name](trial)
        values = dict(flat(trial.hparams))
        return written(values[name], digits=5, width=_CELL) if name in values else None

    def _raw(self, trial: Trial, name: str) -> Any:
        if name in self.columns:
            return self.columns[name](trial)
        return dict(flat(trial.hparams)).get(name)


async def _checkpoint_period(client: AsyncClient, trial: TrialDetail) -> str | None:
    """Return how often a trial checkpoints: by its file, or as its run has chosen."""
    with contextlib.suppress(ClientError, TimeoutError):
        async with asyncio.timeout(_PERIOD_S):
            config = (await client.experiment(trial.id.rpartition(".")[0], trials="none")).config
            fixed = config.get("min_checkpoint_period")
            if fixed:
                ((unit, count),) = fixed.items()
                return f"every {lasting(count, unit)}" if count else "no period"
            names = ("checkpoint_period_s", "checkpoint_held_s")
            found = [await client.curve(trial.id, kind="system", name=name) for name in names]
            if all(curve.points for curve in found):
                every, held = (float(curve.points[-1][1]) for curve in found)
                return f"every {duration(every)}; one holds training for {number(held)} s"
    return None


def _show_trial(
    trial: TrialDetail, period: str | None, address: str, unplaced: str | None
) -> None:
    print_facts(
        [
            ("trial", trial.id),
            ("page", address),
            ("state", trial.state),
            ("waiting", unplaced),
            ("status", trial.status),
            ("reason", trial.reason),
            ("last run", trial.message),
            ("run", trial.run),
            ("restarts", trial.restarts),
            ("bracket", trial.bracket),
            ("rung", trial.rung),
            ("trained", f"{number(trial.units)} of {printable(trial.length)}"),
            ("progress", None if trial.progress is None else f"{trial.progress:.0%}"),
            ("batches", trial.steps_completed),
            ("seed", trial.seed),
            ("started from", trial.parent),
            ("checkpoints", period),
            (
                "best",
                trial.best
                and f"{number(trial.best.value)} at {lasting(trial.best.steps, 'batches')}",
            ),
            *((name, written(value)) for name, value in flat(trial.hparams)),
            *(
                (f"metadata {name}", printable(value))
                for name, value in flat(trial.metadata or {})
            ),
        ]
    )
    if trial.validations:
        click.echo()
        print_table(
            ["batches", "validation"],
            [(item.steps, item.metrics) for item in trial.validations],
            right=["batches"],
        )
    if trial.checkpoints:
        click.echo()
        print_table(
            ["checkpoint", "state", "batches", "size"],
            [
                (item.id, item.state, item.steps_completed, size(item.size_bytes))
                for item in trial.checkpoints
            ],
            right=["batches", "size"],
        )
