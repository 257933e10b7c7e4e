"""The projection of experiments: their trials, results and checkpoints, in tables with indexes.

Experiments in use are kept in memory, without the history of validations. A flush writes the
trials and checkpoints that an event named, and appends the new validations, so that writing costs
in proportion to the events, not to the size of the experiment.
"""

import difflib
import math
import sqlite3
import sys
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from rung import api
from rung.events import Event, topic
from rung.events.experiment import BracketPlan, ExperimentMoved
from rung.events.trial import RunRequested, is_better
from rung.gateway.projections.experiment import (
    Checkpoint,
    Deletion,
    Experiment,
    Hidden,
    Submission,
    Trial,
    Validation,
    checkpoint_phase,
    phase_of,
    trial_phase,
)
from rung.gateway.projections.experiment_fold import Handles, evolve
from rung.gateway.projections.filter import Condition
from rung.gateway.projections.tally import Share, Tally, TopTrial
from rung.methods.space import Categorical, Const, Double, Int, Log, flatten
from rung.runtime.projection import Projection

_SCHEMA: Final = """
CREATE TABLE experiments (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    submitted_at TEXT,
    ended_at TEXT NOT NULL DEFAULT '',
    state TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL DEFAULT '',
    actor TEXT NOT NULL DEFAULT '',
    project_id TEXT NOT NULL DEFAULT '',
    owner TEXT NOT NULL DEFAULT '',
    pool TEXT NOT NULL DEFAULT '',
    method TEXT NOT NULL DEFAULT '',
    trials INTEGER NOT NULL DEFAULT 0,
    best REAL,
    archived INTEGER NOT NULL DEFAULT 0,
    hidden INTEGER NOT NULL DEFAULT 0,
    body BLOB NOT NULL DEFAULT x''
);
CREATE INDEX experiments_by_time ON experiments (submitted_at, id);
CREATE INDEX experiments_by_end ON experiments (ended_at, id);
CREATE INDEX experiments_by_state ON experiments (state, submitted_at, id);
CREATE INDEX experiments_by_name ON experiments (name, id);
CREATE INDEX experiments_by_actor ON experiments (actor, submitted_at, id);
CREATE INDEX experiments_by_project ON experiments (
    project_id, state, archived, hidden, submitted_at, id, name, ended_at, actor, owner, pool,
    method, trials, best
);
CREATE INDEX experiments_by_owner ON experiments (owner, submitted_at, id);
CREATE INDEX experiments_by_pool ON experiments (pool, submitted_at, id);
CREATE INDEX experiments_by_trials ON experiments (trials, id);
CREATE INDEX experiments_hidden ON experiments (submitted_at, id) WHERE hidden;
CREATE TABLE submissions (experiment INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE labels (label TEXT, experiment INTEGER, PRIMARY KEY (label, experiment))
    WITHOUT ROWID;
CREATE VIRTUAL TABLE texts USING fts5 (name, labels, description, hyperparameters, notes);
CREATE TABLE hyperparameters (name TEXT, low REAL, high REAL, text TEXT, experiment INTEGER);
CREATE INDEX hyperparameters_by_number ON hyperparameters (name, low, high, experiment);
CREATE INDEX hyperparameters_by_text ON hyperparameters (name, text, experiment);
CREATE INDEX hyperparameters_by_experiment ON hyperparameters (experiment, name, low, high);
CREATE TABLE best_metrics (
    experiment INTEGER, name TEXT, value REAL NOT NULL, PRIMARY KEY (experiment, name)
) WITHOUT ROWID;
CREATE INDEX best_metrics_by_value ON best_metrics (name, value, experiment);
CREATE TABLE codes (digest TEXT, experiment INTEGER, PRIMARY KEY (digest, experiment))
    WITHOUT ROWID;
CREATE INDEX codes_by_experiment ON codes (experiment);
CREATE TABLE requests (
    experiment INTEGER, origin TEXT, action TEXT NOT NULL, PRIMARY KEY (experiment, origin)
) WITHOUT ROWID;
CREATE TABLE moves (number INTEGER PRIMARY KEY, experiment INTEGER NOT NULL);
CREATE TABLE trials (
    experiment INTEGER, number INTEGER, body BLOB NOT NULL, cost REAL NOT NULL,
    open INTEGER NOT NULL, PRIMARY KEY (experiment, number)
) WITHOUT ROWID;
CREATE INDEX trials_by_cost ON trials (experiment, cost, number);
CREATE INDEX trials_open ON trials (experiment, number) WHERE open;
CREATE TABLE phases (
    experiment INTEGER, phase TEXT, trials INTEGER NOT NULL, PRIMARY KEY (experiment, phase)
) WITHOUT ROWID;
CREATE TABLE trial_counts (state TEXT PRIMARY KEY, trials INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE validations (
    experiment INTEGER, trial INTEGER, time REAL, body BLOB NOT NULL,
    PRIMARY KEY (experiment, trial, time)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    number INTEGER PRIMARY KEY, experiment INTEGER NOT NULL, id TEXT NOT NULL,
    kept_bytes INTEGER, body BLOB NOT NULL, UNIQUE (experiment, id)
);
CREATE INDEX checkpoints_by_id ON checkpoints (id);
CREATE INDEX checkpoints_kept ON checkpoints (experiment, kept_bytes)
    WHERE kept_bytes IS NOT NULL;
"""
_DELETED: Final = "deleted"
"""State of a deleted experiment, in the tables alone."""
_NO_VALUE: Final = sys.float_info.max
"""The cost of a trial without a finite value: the greatest, so that it comes last."""
_LIVE_MAX: Final = 40_000
"""So many trials and checkpoints of experiments in use are kept in memory."""
_NEAR: Final = 3
"""How many ids and names are proposed in place of an unknown one,"""
_NEAR_AMONG: Final = 500
"""of so many experiments,"""
_NEAR_LENGTH: Final = 100
"""compared by so many characters."""


class _Live(Struct):
    """An experiment that events are folded into.

    Attributes:
        number: of its row.
        state: without the configuration and most validations.
        stored: whether its submission is in the tables.
        shares: of its trials in the tally.
        files: id of a checkpoint → its phase, as it is in the tally.
        plan: that of the shares.
        kept: index of a trial → how many of its validations in memory are in the tables.
        deleted: whether its trials and checkpoints are out of the tables.
        hidden: whether its trials are out of the counts.
        best: the best value of the searcher's metric in the tables.
        described: version of the description in the tables.
        resources: version of the resources in the tables.
        project: its project in the tables.
    """

    number: int
    state: Experiment
    stored: bool = False
    shares: list[Share] = field(default_factory=list[Share])
    files: dict[str, api.CheckpointPhase] = field(default_factory=dict[str, api.CheckpointPhase])
    plan: list[BracketPlan] = field(default_factory=list[BracketPlan])
    kept: dict[int, int] = field(default_factory=dict[int, int])
    trials: dict[int, None] = field(default_factory=dict[int, None])
    checkpoints: dict[str, None] = field(default_factory=dict[str, None])
    paused: bool = False
    deleted: bool = False
    hidden: bool = False
    best: float | None = None
    described: int = 0
    resources: int = 0
    project: str = ""

    @property
    def weight(self) -> int:
        """How much memory it takes, in trials and checkpoints."""
        return 1 + len(self.state.trials) + len(self.state.checkpoints)

    def touch(self, data: Any) -> None:
        """Note which trial and checkpoint an event is about."""
        of_run = isinstance(data, RunRequested)
        trial_id: str = data.spec.trial_id if of_run else getattr(data, "trial_id", "")
        trial = self.state.trial(trial_id)
        if trial is not None:
            self.trials[trial.index] = None
        checkpoint_id = getattr(data, "checkpoint_id", "")
        if checkpoint_id in self.state.checkpoints:
            self.checkpoints[checkpoint_id] = None


class ExperimentProjection(Projection):
    """The fold of the topics that are keyed by experiment."""

    name = "experiments"
    facts = topic.EXPERIMENTS
    decisions = (topic.SEARCHES, topic.RETIREMENTS)
    handles = Handles
    version = 13
    schema = _SCHEMA

    def __init__(self) -> None:
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._changed: dict[str, _Live] = {}

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Fold a fact or a decision."""
        live = self._live.get(key)
        if live is None:
            live = self._live[key] = _load(db, key)
        else:
            self._live.move_to_end(key)
        self._changed[key] = live
        evolve(live.state, event)
        if isinstance(event.data, ExperimentMoved):
            db.execute("INSERT INTO moves (experiment) VALUES (?)", (live.number,))
        live.touch(event.data)

    def flush(self, db: sqlite3.Connection) -> None:
        """Write the changes to the tables."""
        counts: Counter[str] = Counter()
        for live in self._changed.values():
            _save(db, live, counts)
        db.executemany(
            "INSERT INTO trial_counts VALUES (?, ?)"
            " ON CONFLICT DO UPDATE SET trials = trials + excluded.trials",
            [(state, count) for state, count in counts.items() if count],
        )
        self._changed.clear()
        weight = sum(live.weight for live in self._live.values())
        while weight > _LIVE_MAX and len(self._live) > 1:
            _, gone = self._live.popitem(last=False)
            weight -= gone.weight

    def forget(self) -> None:
        """Drop the experiments in use."""
        self._live.clear()
        self._changed.clear()


def _load(db: sqlite3.Connection, key: str) -> _Live:
    row = db.execute("SELECT number, best FROM experiments WHERE id = ?", (key,)).fetchone()
    if row is None:
        number = db.execute("INSERT INTO experiments (id) VALUES (?)", (key,)).lastrowid
        assert number is not None
        return _Live(number, Experiment(key))
    found = read_experiment(db, key, validations=None, submission=False)
    assert found is not None, key
    found.requests = {}
    return _Live(
        row[0],
        found,
        stored=found.submission is not None,
        shares=[Share.of(found, it, trial_phase(found, it)) for it in found.trials],
        files={name: checkpoint_phase(it) for name, it in found.checkpoints.items()},
        plan=found.plan,
        kept={trial.index: len(trial.validations) for trial in found.trials},
        paused=found.paused,
        deleted=found.deletion is not None,
        hidden=found.hidden is not None,
        best=row[1],
        described=found.described.version,
        resources=found.resources.version,
        project=found.project_id if found.submission is not None else "",
    )


def _save(db: sqlite3.Connection, live: _Live, counts: Counter[str]) -> None:
    state, number = live.state, live.number
    if state.submission is not None and not live.stored:
        _submit(db, number, state, state.submission)
        live.stored = True
        state.submission = msgspec.structs.replace(state.submission, config={}, source="")
    _save_requests(db, live)
    if live.hidden != (state.hidden is not None):
        live.hidden = state.hidden is not None
        (counts.subtract if live.hidden else counts.update)(state.tally.phases)
    if state.deletion is not None and not live.deleted:
        _delete(db, live, counts)
    if live.described != state.described.version:
        _save_description(db, live)
    if live.resources != state.resources.version:
        live.resources = state.resources.version
        query = "UPDATE experiments SET pool = ifnull(?, pool) WHERE number = ?"
        db.execute(query, (state.resources.pool, number))
    if live.stored and live.project != state.project_id:
        _save_project(db, live)
    _save_trials(db, live, counts)
    _save_checkpoints(db, live)
    body = msgspec.structs.replace(state, requests={}, trials=[], checkpoints={})
    db.execute(
        "UPDATE experiments SET state = ?, hidden = ?, ended_at = ?, trials = ?, best = ?,"
        " body = ? WHERE number = ?",
        (
            phase_of(state) if state.deletion is None else _DELETED,
            live.hidden,
            state.ended_at or "",
            len(state.trials),
            live.best,
            msgspec.msgpack.encode(body),
            number,
        ),
    )


def _delete(db: sqlite3.Connection, live: _Live, counts: Counter[str]) -> None:
    """Remove the rows of a deleted experiment, but not what was submitted and requested."""
    for table, column in (
        ("trials", "experiment"),
        ("validations", "experiment"),
        ("checkpoints", "experiment"),
        ("labels", "experiment"),
        ("hyperparameters", "experiment"),
        ("best_metrics", "experiment"),
        ("phases", "experiment"),
        ("texts", "rowid"),
    ):
        db.execute(f"DELETE FROM {table} WHERE {column} = ?", (live.number,))  # noqa: S608 - named above
    counts.subtract(live.state.tally.phases)
    for known in (live.shares, live.files, live.kept, live.trials, live.checkpoints):
        known.clear()
    live.state.tally = Tally()
    live.best = None
    live.deleted = True


def _submit(
    db: sqlite3.Connection, number: int, state: Experiment, submission: Submission
) -> None:
    config = submission.config
    name = str(config.get("name") or state.id)
    labels = state.described.labels
    resources: dict[str, Any] = config.get("resources") or {}
    db.execute(
        "UPDATE experiments SET submitted_at = ?, name = ?, actor = ?, owner = ?, pool = ?,"
        " method = ? WHERE number = ?",
        (
            submission.at,
            name,
            submission.actor or "",
            state.owner,
            str(resources.get("resource_pool") or "default"),
            str((config.get("searcher") or {}).get("name") or ""),
            number,
        ),
    )
    body = msgspec.msgpack.encode(submission)
    db.execute("INSERT INTO submissions VALUES (?, ?)", (number, body))
    if submission.code_digest is not None:
        db.execute("INSERT INTO codes VALUES (?, ?)", (submission.code_digest, number))
    db.executemany("INSERT INTO labels VALUES (?, ?)", [(label, number) for label in labels])
    db.executemany(
        "INSERT INTO hyperparameters VALUES (?, ?, ?, ?, ?)",
        [(*row, number) for row in _allowed(config.get("hyperparameters") or {})],
    )
    db.execute(
        "INSERT INTO texts (rowid, name, labels, description, hyperparameters, notes)"
        " VALUES (?, ?, ?, ?, ?, '')",
        (
            number,
            f"{name} {state.id}",
            " ".join(labels),
            str(config.get("description") or ""),
            " ".join(_words(config.get("hyperparameters"))),
        ),
    )


def _save_project(db: sqlite3.Connection, live: _Live) -> None:
    live.project = live.state.project_id
    db.execute(
        "UPDATE experiments SET project_id = ? WHERE number = ?", (live.project, live.number)
    )


def _save_description(db: sqlite3.Connection, live: _Live) -> None:
    """Write what was changed of the description; the rest is as it was submitted."""
    it, number = live.state.described, live.number
    live.described = it.version
    if live.deleted:
        return
    texts = {"name": it.name and f"{it.name} {live.state.id}", "description": it.description}
    db.execute("DELETE FROM labels WHERE experiment = ?", (number,))
    db.executemany("INSERT INTO labels VALUES (?, ?)", [(each, number) for each in it.labels])
    for column, text in (texts | {"labels": " ".join(it.labels), "notes": it.notes}).items():
        if text is not None:
            db.execute(f"UPDATE texts SET {column} = ? WHERE rowid = ?", (text, number))  # noqa: S608 - named above
    db.execute(
        "UPDATE experiments SET name = ifnull(?, name), archived = ? WHERE number = ?",
        (it.name, it.archived, number),
    )


_Allowed = tuple[str, float | None, float | None, str]
"""Of a hyperparameter: its name, the least and the greatest number that it may be, its text."""


def _allowed(hyperparameters: dict[str, Any]) -> Iterator[_Allowed]:
    """Yield what each hyperparameter may be."""
    for leaf in flatten(hyperparameters):
        name = ".".join(leaf.path)
        match leaf.parameter:
            case Const(val):
                yield name, *_number_and_text(val)
            case Categorical(vals):
                yield from ((name, *_number_and_text(value)) for value in vals)
            case Log(minval, maxval, base):
                yield name, _power(base, minval), _power(base, maxval), ""
            case Int(minval, maxval) | Double(minval, maxval):
                yield name, float(minval), float(maxval), ""


def _number_and_text(value: Any) -> tuple[float | None, float | None, str]:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, None, text
    number = float(value)
    return number, number, text


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _words(value: Any) -> Iterator[str]:
    """Yield the names and values of hyperparameters, as a search finds them."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield str(name)
            yield from _words(each)
    elif isinstance(value, list):
        for each in value:
            yield from _words(each)
    elif value is not None:
        yield str(value)


def _save_checkpoints(db: sqlite3.Connection, live: _Live) -> None:
    rows = [live.state.checkpoints[name] for name in live.checkpoints]
    for each in rows:
        phase, before = checkpoint_phase(each), live.files.get(each.id)
        if phase != before:
            live.state.tally.count_checkpoint(each.size_bytes, before, phase)
            live.files[each.id] = phase
    db.executemany(
        "INSERT INTO checkpoints (experiment, id, kept_bytes, body) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (experiment, id)"
        " DO UPDATE SET kept_bytes = excluded.kept_bytes, body = excluded.body",
        [
            (
                live.number,
                each.id,
                each.size_bytes if each.deleted_at is None else None,
                msgspec.msgpack.encode(each),
            )
            for each in rows
        ],
    )
    live.checkpoints.clear()


def _save_requests(db: sqlite3.Connection, live: _Live) -> None:
    requests = live.state.requests
    db.executemany(
        "INSERT OR IGNORE INTO requests VALUES (?, ?, ?)",
        [(live.number, origin, action) for origin, action in requests.items()],
    )
    requests.clear()


def _save_trials(db: sqlite3.Connection, live: _Live, counts: Counter[str]) -> None:
    state, number = live.state, live.number
    for index in live.trials:
        trial = state.trials[index]
        new = trial.validations[live.kept.get(index, 0) :]
        _save_best(db, live, trial, new)
        db.executemany(
            "INSERT INTO validations VALUES (?, ?, ?, ?)",
            [(number, index, each.time, msgspec.msgpack.encode(each)) for each in new],
        )
        del trial.validations[:-1]
        live.kept[index] = len(trial.validations)
        db.execute(
            "INSERT INTO trials VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " body = excluded.body, cost = excluded.cost, open = excluded.open",
            (
                number,
                index,
                msgspec.msgpack.encode(trial),
                _cost(state, trial),
                trial.run > trial.over,
            ),
        )
    before = dict(state.tally.phases)
    _count_trials(live)
    if before != state.tally.phases:
        if not live.hidden:
            counts.subtract(before)
            counts.update(state.tally.phases)
        db.execute("DELETE FROM phases WHERE experiment = ?", (number,))
        db.executemany(
            "INSERT INTO phases VALUES (?, ?, ?)",
            [(number, phase, trials) for phase, trials in state.tally.phases.items()],
        )
    live.trials.clear()


def _cost(state: Experiment, trial: Trial) -> float:
    """Return what a trial is sorted by: the lower the better."""
    if trial.best is None or state.submission is None:
        return _NO_VALUE
    return trial.best.value if state.submission.smaller_is_better else -trial.best.value


def _count_trials(live: _Live) -> None:
    """Bring the tally up to date with the trials that changed, or with all."""
    state, tally = live.state, live.state.tally
    if state.paused != live.paused or state.plan is not live.plan:
        live.shares = [Share.of(state, it, trial_phase(state, it)) for it in state.trials]
        tally.recount(live.shares)
        live.paused, live.plan = state.paused, state.plan
        return
    for index in sorted(live.trials):
        trial = state.trials[index]
        share = Share.of(state, trial, trial_phase(state, trial))
        if index < len(live.shares):
            if live.shares[index] == share:
                continue
            tally.add(live.shares[index], -1)
            live.shares[index] = share
        else:
            assert index == len(live.shares), index
            live.shares.append(share)
        tally.add(share, 1)


def _save_best(
    db: sqlite3.Connection, live: _Live, trial: Trial, new: Iterable[Validation]
) -> None:
    """Write the metrics of a validation that is better than all of the experiment before it."""
    submission = live.state.submission
    if trial.best is None or submission is None:
        return
    value, smaller = trial.best.value, submission.smaller_is_better
    top, tally = TopTrial(trial.index, float(value), trial.best.steps), live.state.tally
    if (
        tally.best is None
        or is_better(value, tally.best.value, smaller_is_better=smaller)
        or (value == tally.best.value and trial.index <= tally.best.index)
    ):
        tally.best = top
    if live.best is not None and not is_better(value, live.best, smaller_is_better=smaller):
        return
    live.best = value
    found = next((each for each in new if each.steps == trial.best.steps), None)
    metrics = {submission.metric: value} if found is None else found.metrics
    db.execute("DELETE FROM best_metrics WHERE experiment = ?", (live.number,))
    db.executemany(
        "INSERT INTO best_metrics VALUES (?, ?, ?)",
        [
            (live.number, name, number)
            for name, number in metrics.items()
            if isinstance(number, int | float)
        ],
    )


_experiment_decoder: Final = msgspec.msgpack.Decoder(Experiment)
_submission_decoder: Final = msgspec.msgpack.Decoder(Submission)
_trial_decoder: Final = msgspec.msgpack.Decoder(Trial)
_validation_decoder: Final = msgspec.msgpack.Decoder(Validation)
_checkpoint_decoder: Final = msgspec.msgpack.Decoder(Checkpoint)

ALL: Final = -1
Visible = Collection[str] | None
"""Ids of the projects whose experiments are there for the one who asks; None: all. A project may
move to another workspace, with its experiments: the directory has its present one."""


def within(visible: Visible, of: str = "experiments") -> Condition:
    """Return the condition that an experiment is in one of these projects.

    Args:
        visible: the projects.
        of: the table of experiments, as the statement names it.
    """
    if visible is None:
        return Condition("1", ())
    marks = ", ".join("?" for _ in visible)
    return Condition(f"{of}.project_id IN ({marks})", tuple(sorted(visible)))


_SHOWN: Final = f"submitted_at IS NOT NULL AND state != '{_DELETED}' AND NOT hidden"
_ONLY_HIDDEN: Final = "submitted_at IS NOT NULL AND hidden"
_GONE: Final = f"(state = '{_DELETED}' OR hidden)"
_GONE_BODY: Final = f"SELECT body FROM experiments WHERE id = ? AND {_GONE}"  # noqa: S608 - as named
_GONE_ID: Final = f"SELECT id FROM experiments WHERE id = ? AND {_GONE}"  # noqa: S608 - as named


def read_experiment(
    db: sqlite3.Connection,
    experiment_id: str,
    *,
    validations: int | None = ALL,
    submission: bool = True,
    checkpoints: bool = True,
) -> Experiment | None:
    """Return an experiment with all of its trials by its whole id, submitted or not.

    Args:
        db: with the tables.
        experiment_id: the whole id.
        validations: of which trial all validations are loaded: `ALL`, an index, or none; of other
            trials the last one is.
        submission: whether its configuration is loaded.
        checkpoints: whether its checkpoints are loaded.
    """
    head = _read_head(db, experiment_id, submission=submission)
    if head is None:
        return None
    number, found = head
    found.requests = dict(
        db.execute("SELECT origin, action FROM requests WHERE experiment = ?", (number,))
    )
    rows = db.execute("SELECT body FROM trials WHERE experiment = ? ORDER BY number", (number,))
    found.trials = [_trial_decoder.decode(each) for (each,) in rows]
    if checkpoints:
        found.checkpoints = _read_checkpoints(db, number)
    if validations is not None:
        _read_validations(db, number, found, validations)
    return found


def read_head(db: sqlite3.Connection, experiment_id: str) -> Experiment | None:
    """Return an experiment without its trials, checkpoints and requests: the tally counts them."""
    head = _read_head(db, experiment_id)
    return None if head is None else head[1]


def _read_head(
    db: sqlite3.Connection, experiment_id: str, *, submission: bool = True
) -> tuple[int, Experiment] | None:
    """Return an experiment and the number of its row."""
    query = "SELECT number, body FROM experiments WHERE id = ?"
    row = db.execute(query, (experiment_id,)).fetchone()
    if row is None:
        return None
    number, body = row
    found = _experiment_decoder.decode(body)
    if found.submission is not None and submission:
        query = "SELECT body FROM submissions WHERE experiment = ?"
        found.submission = _submission_decoder.decode(db.execute(query, (number,)).fetchone()[0])
    return number, found


class TrialSelection(Struct):
    """Which trials of an experiment, in which order.

    Attributes:
        sort: by index, or the best first; of equal ones the first.
        after: sort key and index of the last one of the page before.
        limit: so many at most.
        indices: of those to choose from; None: of all.
        valued: those alone that have a finite value of the searcher's metric.
        validations: whether all of them are loaded, not the last one alone.
    """

    sort: Literal["index", "best"] = "index"
    after: tuple[float, int] | None = None
    limit: int = 100
    indices: Sequence[int] | None = None
    valued: bool = False
    validations: bool = True


class TrialPage(NamedTuple):
    """Some of an experiment's trials."""

    experiment: Experiment
    """Without others."""
    trials: list[Trial]
    next: tuple[float, int] | None
    """Sort key and index of the last one, None where no more follow."""


def list_trials(
    db: sqlite3.Connection, experiment_id: str, selection: TrialSelection
) -> TrialPage | None:
    """Return some trials of an experiment, None where there is no such experiment."""
    head = _read_head(db, experiment_id)
    if head is None:
        return None
    number, experiment = head
    terms, values = ["experiment = ?"], list[Any]([number])
    if selection.valued:
        terms.append("cost < ?")
        values.append(_NO_VALUE)
    if selection.indices is not None:
        terms.append(f"number IN ({', '.join('?' for _ in selection.indices)})")
        values += selection.indices
    order = "cost, number" if selection.sort == "best" else "number"
    if selection.after is not None:
        terms.append(f"({order}) > ({'?, ?' if selection.sort == 'best' else '?'})")
        values += selection.after if selection.sort == "best" else selection.after[1:]
    rows = db.execute(
        f"SELECT cost, number, body FROM trials WHERE {' AND '.join(terms)}"  # noqa: S608 - its parts are named above
        f" ORDER BY {order} LIMIT ?",
        (*values, selection.limit + 1),
    ).fetchall()
    more, rows = len(rows) > selection.limit, rows[: selection.limit]
    trials = [_trial_decoder.decode(body) for _, _, body in rows]
    if selection.validations:
        for trial in trials:
            trial.validations = _validations_of(db, number, trial.index)
    return TrialPage(experiment, trials, rows[-1][:2] if more and rows else None)


def _validations_of(db: sqlite3.Connection, number: int, trial: int) -> list[Validation]:
    query = "SELECT body FROM validations WHERE experiment = ? AND trial = ? ORDER BY time"
    return [_validation_decoder.decode(body) for (body,) in db.execute(query, (number, trial))]


def _read_checkpoints(db: sqlite3.Connection, number: int) -> dict[str, Checkpoint]:
    query = "SELECT id, body FROM checkpoints WHERE experiment = ? ORDER BY number"
    rows = db.execute(query, (number,))
    return {name: _checkpoint_decoder.decode(body) for name, body in rows}


def _read_validations(db: sqlite3.Connection, number: int, found: Experiment, which: int) -> None:
    for trial in found.trials:
        if which in {ALL, trial.index}:
            trial.validations = []
    rows = db.execute(
        "SELECT trial, body FROM validations WHERE experiment = ?1"
        " AND (?2 = -1 OR trial = ?2) ORDER BY trial, time",
        (number, which),
    )
    for index, body in rows:
        found.trials[index].validations.append(_validation_decoder.decode(body))


class Summary(NamedTuple):
    """An experiment of a list, and the key by which the list is sorted."""

    experiment: Experiment
    key: tuple[Any, str]


SORTS: Final = {
    "submitted": "submitted_at",
    "ended": "ended_at",
    "name": "name",
    "state": "state",
    "actor": "actor",
    "trials": "trials",
}
"""Sort keys of a list of experiments → columns."""


class Selection(Struct):
    """Which experiments, in which order.

    Attributes:
        conditions: all of which hold.
        sort: one of `SORTS`.
        descending: the greatest first.
        after: sort key and id of the last one of the page before.
        limit: so many at most.
        visible: the projects that are there.
        hidden: those whose deletion can be taken back, in place of those that are shown.
    """

    conditions: Sequence[Condition] = ()
    sort: str = "submitted"
    descending: bool = True
    after: tuple[Any, str] | None = None
    limit: int = 100
    visible: Visible = None
    hidden: bool = False


def list_experiments(db: sqlite3.Connection, selection: Selection) -> list[Summary]:
    """Return submitted experiments, without their trials and checkpoints.

    Where not all are visible, the index of projects drives the query: a common word is in far more
    experiments than a member of some workspaces sees. It has all columns by which they are sorted
    and filtered, so rows are read of those alone that are returned.
    """
    if selection.visible is not None and not selection.visible:
        return []
    index = "" if selection.visible is None else "INDEXED BY experiments_by_project"
    column = SORTS[selection.sort]
    terms, values = [_ONLY_HIDDEN if selection.hidden else _SHOWN], list[Any]()
    for condition in (within(selection.visible), *selection.conditions):
        by_row = selection.visible is not None and condition.by_row
        terms.append(by_row or condition.sql)
        values += condition.values
    if selection.after is not None:
        terms.append(f"({column}, id) {'<' if selection.descending else '>'} (?, ?)")
        values += selection.after
    order = "DESC" if selection.descending else "ASC"
    rows = db.execute(
        f"SELECT id, {column} FROM experiments {index} WHERE {' AND '.join(terms)}"  # noqa: S608 - its parts are the server's
        f" ORDER BY {column} {order}, id {order} LIMIT ?",
        (*values, selection.limit),
    ).fetchall()
    return [
        Summary(found, (key, name))
        for name, key in rows
        if (found := read_head(db, name)) is not None
    ]


def select_ids(
    db: sqlite3.Connection, conditions: Sequence[Condition], limit: int, *, hidden: bool = False
) -> list[str]:
    """Return the ids of submitted experiments of which conditions hold, the newest first.

    Args:
        db: with the tables.
        conditions: all of which hold.
        limit: so many at most.
        hidden: of those whose deletion can be taken back, in place of those that are shown.
    """
    where = " AND ".join([_ONLY_HIDDEN if hidden else _SHOWN, *(each.sql for each in conditions)])
    rows = db.execute(
        f"SELECT id FROM experiments WHERE {where}"  # noqa: S608 - its parts are the server's
        " ORDER BY submitted_at DESC, id DESC LIMIT ?",
        (*(value for each in conditions for value in each.values), limit),
    )
    return [name for (name,) in rows]


def active_in(db: sqlite3.Connection, pool: str, limit: int, runs: int) -> list[Experiment]:
    """Return the active experiments of a pool that were submitted first, in that order.

    Args:
        db: with the tables.
        pool: its name.
        limit: so many at most.
        runs: each has so many of its trials at most: of those with an open run the first.
    """
    rows = db.execute(
        "SELECT id FROM experiments WHERE state = 'active' AND pool = ?"
        " AND submitted_at IS NOT NULL ORDER BY submitted_at, id LIMIT ?",
        (pool, limit),
    ).fetchall()
    found = []
    for (name,) in rows:
        head = _read_head(db, name)
        if head is None:
            continue
        number, experiment = head
        query = "SELECT body FROM trials WHERE experiment = ? AND open ORDER BY number LIMIT ?"
        bodies = db.execute(query, (number, runs))
        experiment.trials = [_trial_decoder.decode(body) for (body,) in bodies]
        found.append(experiment)
    return found


def kept_checkpoints(db: sqlite3.Connection, visible: Visible = None) -> tuple[int, int]:
    """Return how many checkpoints are in the object store, and their bytes.

    Args:
        db: with the tables.
        visible: of experiments in these projects.
    """
    where, values = "kept_bytes IS NOT NULL", list[Any]()
    if visible is not None:
        place = within(visible)
        where += f" AND experiment IN (SELECT number FROM experiments WHERE {place.sql})"  # noqa: S608 - as above
        values += place.values
    count, size = db.execute(
        f"SELECT count(*), total(kept_bytes) FROM checkpoints WHERE {where}",  # noqa: S608 - as above
        values,
    ).fetchone()
    return count, int(size)


def ids_from(
    db: sqlite3.Connection, prefix: str, limit: int, visible: Visible = None
) -> list[str]:
    """Return ids of experiments that begin so; a deleted or hidden one must be named in full."""
    place = within(visible)
    found = _beginning(db, "experiments", f"{_SHOWN} AND {place.sql}", place.values, prefix, limit)
    query = f"{_GONE_ID} AND {place.sql}"
    return found or [name for (name,) in db.execute(query, (prefix, *place.values))]


def projects_of(db: sqlite3.Connection, experiment_ids: Iterable[str]) -> dict[str, str]:
    """Return the projects of submitted experiments, deleted ones among them."""
    query = "SELECT project_id FROM experiments WHERE id = ? AND submitted_at IS NOT NULL"
    found = {name: db.execute(query, (name,)).fetchone() for name in dict.fromkeys(experiment_ids)}
    return {name: row[0] for name, row in found.items() if row is not None}


def count_moves(db: sqlite3.Connection) -> int:
    """Return how often an experiment was moved."""
    (count,) = db.execute("SELECT ifnull(max(number), 0) FROM moves").fetchone()
    found: int = count
    return found


def deletion_of(db: sqlite3.Connection, experiment_id: str) -> Deletion | Hidden | None:
    """Return the deletion of an experiment, None if nobody deleted it."""
    row = db.execute(_GONE_BODY, (experiment_id,)).fetchone()
    if row is None:
        return None
    found = _experiment_decoder.decode(row[0])
    return found.deletion or found.hidden


def shares_code(db: sqlite3.Connection, experiment_id: str, visible: Visible = None) -> bool:
    """Return whether another experiment, in one of these projects, has the same code."""
    place = within(visible, "oe")
    query = (
        "SELECT EXISTS (SELECT 1 FROM experiments e JOIN codes c ON c.experiment = e.number"  # noqa: S608 - as above
        " JOIN codes o ON o.digest = c.digest JOIN experiments oe ON oe.number = o.experiment"
        f" WHERE e.id = ? AND oe.number != e.number AND oe.state != ? AND {place.sql})"
    )
    return bool(db.execute(query, (experiment_id, _DELETED, *place.values)).fetchone()[0])


def unused_codes(db: sqlite3.Connection) -> dict[str, int]:
    """Return the digests of code that deleted experiments alone had, with the newest one's row."""
    rows = db.execute(
        "SELECT c.digest, max(e.number) FROM experiments e JOIN codes c ON c.experiment = e.number"
        " WHERE e.state = ?1 AND NOT EXISTS (SELECT 1 FROM codes o"
        " JOIN experiments oe ON oe.number = o.experiment"
        " WHERE o.digest = c.digest AND oe.state != ?1) GROUP BY c.digest",
        (_DELETED,),
    )
    return dict(rows.fetchall())


def ids_named(
    db: sqlite3.Connection,
    name: str,
    limit: int,
    visible: Visible = None,
    *,
    hidden: bool = False,
) -> list[str]:
    """Return ids of submitted experiments that have this name, the newest first.

    Args:
        db: the tables.
        name: of the experiments.
        limit: how many at most.
        visible: the projects that are there for the one who asks.
        hidden: whether to return those whose deletion can be taken back, and no others.
    """
    place, shown = within(visible), _ONLY_HIDDEN if hidden else _SHOWN
    rows = db.execute(
        f"SELECT id FROM experiments WHERE name = ? AND {shown} AND {place.sql}"  # noqa: S608 - as above
        " ORDER BY submitted_at DESC, id DESC LIMIT ?",
        (name, *place.values, limit),
    )
    return [each for (each,) in rows]


def near(db: sqlite3.Connection, reference: str, visible: Visible = None) -> list[str]:
    """Return ids and names of the newest experiments that are spelt nearly so."""
    place = within(visible)
    rows = db.execute(
        f"SELECT id, name FROM experiments WHERE {_SHOWN} AND {place.sql}"  # noqa: S608 - as above
        " ORDER BY submitted_at DESC, id DESC LIMIT ?",
        (*place.values, _NEAR_AMONG),
    )
    known = dict.fromkeys(each[:_NEAR_LENGTH] for row in rows for each in row)
    return difflib.get_close_matches(reference[:_NEAR_LENGTH], known, _NEAR)


def checkpoints_from(
    db: sqlite3.Connection, prefix: str, limit: int, visible: Visible = None
) -> list[str]:
    """Return ids of checkpoints that begin so, of experiments that are shown or not submitted."""
    place = within(visible)
    shown = f"NOT hidden AND {place.sql}"
    owned = f"EXISTS (SELECT 1 FROM experiments WHERE number = experiment AND {shown})"  # noqa: S608 - as above
    return _beginning(db, "checkpoints", owned, place.values, prefix, limit)


def _beginning(  # noqa: PLR0913, PLR0917 - the parts of a statement
    db: sqlite3.Connection,
    table: str,
    where: str,
    values: Iterable[Any],
    prefix: str,
    limit: int,
) -> list[str]:
    rows = db.execute(
        f"SELECT DISTINCT id FROM {table} WHERE {where} AND id >= ? AND substr(id, 1, ?) = ?"  # noqa: S608 - its parts are named above
        " AND id < ? ORDER BY id LIMIT ?",
        (*values, prefix, len(prefix), prefix, f"{prefix}\U0010ffff", limit),
    )
    return [name for (name,) in rows]


def owner_of(
    db: sqlite3.Connection, checkpoint_id: str, visible: Visible = None
) -> tuple[str, int] | None:
    """Return the experiment that a checkpoint belongs to, and the index of its trial."""
    place = within(visible, "e")
    row = db.execute(
        "SELECT e.id, c.body FROM checkpoints c JOIN experiments e ON e.number = c.experiment"  # noqa: S608 - as above
        f" WHERE c.id = ? AND e.submitted_at IS NOT NULL AND NOT e.hidden AND {place.sql}"
        " ORDER BY c.experiment LIMIT 1",
        (checkpoint_id, *place.values),
    ).fetchone()
    if row is None:
        return None
    index = _checkpoint_decoder.decode(row[1]).trial_id.rpartition(".")[2]
    return row[0], int(index) if index.isascii() and index.isdigit() else 0


def count_experiments(db: sqlite3.Connection, visible: Visible = None) -> dict[str, int]:
    """Return the number of submitted experiments in each state."""
    place = within(visible)
    return dict(
        db.execute(
            "SELECT state, count(*) FROM experiments"  # noqa: S608 - as above
            f" WHERE {_SHOWN} AND {place.sql} GROUP BY state",
            place.values,
        )
    )


def count_trials(db: sqlite3.Connection) -> dict[str, int]:
    """Return the number of trials in each state, of submitted experiments or not."""
    return dict(db.execute("SELECT state, trials FROM trial_counts WHERE trials > 0"))


class Counts(NamedTuple):
    """How much some experiments have."""

    experiments: dict[str, int]
    """State → experiments."""
    trials: dict[str, int]
    """State → trials."""
    checkpoints: tuple[int, int]
    """How many are in the object store, and their bytes."""


def count_by_place(
    db: sqlite3.Connection, visible: Visible, *, since: str
) -> dict[tuple[str, str], Counts]:
    """Return what experiments have, by project and owner.

    Args:
        db: with the tables.
        visible: the projects; None: all.
        since: of experiments and trials, those that were submitted from this time on.
    """
    place = within(visible, "e")
    found: dict[tuple[str, str], Counts] = {}

    def counts(project: str, owner: str) -> Counts:
        return found.setdefault((project, owner), Counts({}, {}, (0, 0)))

    where = f"{_SHOWN} AND submitted_at >= ? AND {place.sql}"
    for project, owner, state, count in db.execute(
        "SELECT e.project_id, e.owner, e.state, count(*) FROM experiments e"  # noqa: S608 - as above
        f" WHERE {where} GROUP BY 1, 2, 3",
        (since, *place.values),
    ):
        counts(project, owner).experiments[state] = count
    for project, owner, phase, count in db.execute(
        "SELECT e.project_id, e.owner, phase, sum(p.trials) FROM experiments e"  # noqa: S608 - as above
        f" CROSS JOIN phases p ON p.experiment = e.number WHERE {where} GROUP BY 1, 2, 3",
        (since, *place.values),
    ):
        counts(project, owner).trials[phase] = count
    for project, owner, count, size in db.execute(
        "SELECT e.project_id, e.owner, count(*), total(c.kept_bytes) FROM experiments e"  # noqa: S608 - as above
        " CROSS JOIN checkpoints c ON c.experiment = e.number"
        f" WHERE c.kept_bytes IS NOT NULL AND {_SHOWN} AND {place.sql} GROUP BY 1, 2",
        place.values,
    ):
        known = counts(project, owner)
        found[project, owner] = known._replace(checkpoints=(count, int(size)))
    return found
