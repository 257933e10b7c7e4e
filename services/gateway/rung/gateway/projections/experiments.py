"""The projection of experiments: their trials, results and checkpoints, in tables with indexes.

Experiments in use are kept in memory, without the history of validations. A flush writes the
trials and checkpoints that an event named, and appends the new validations, so that writing costs
in proportion to the events, not to the size of the experiment.
"""

import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

from rung.events import Event, topic
from rung.events.trial import RunRequested
from rung.gateway.projections.experiment import (
    Checkpoint,
    Experiment,
    Submission,
    Trial,
    Validation,
    phase_of,
    trial_phase,
)
from rung.gateway.projections.experiment_fold import Handles, evolve
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
    workspace TEXT NOT NULL DEFAULT '',
    project TEXT NOT NULL DEFAULT '',
    pool TEXT NOT NULL DEFAULT '',
    trials INTEGER NOT NULL DEFAULT 0,
    body BLOB NOT NULL DEFAULT x''
);
CREATE INDEX experiments_by_time ON experiments (submitted_at, id);
CREATE INDEX experiments_by_end ON experiments (ended_at, id);
CREATE INDEX experiments_by_state ON experiments (state, submitted_at, id);
CREATE INDEX experiments_by_name ON experiments (name, id);
CREATE INDEX experiments_by_actor ON experiments (actor, submitted_at, id);
CREATE INDEX experiments_by_workspace ON experiments (workspace, project, submitted_at, id);
CREATE INDEX experiments_by_pool ON experiments (pool, submitted_at, id);
CREATE INDEX experiments_by_trials ON experiments (trials, id);
CREATE TABLE submissions (experiment INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE labels (label TEXT, experiment INTEGER, PRIMARY KEY (label, experiment))
    WITHOUT ROWID;
CREATE VIRTUAL TABLE texts USING fts5 (name, labels, description, hyperparameters);
CREATE TABLE requests (
    experiment INTEGER, origin TEXT, action TEXT NOT NULL, PRIMARY KEY (experiment, origin)
) WITHOUT ROWID;
CREATE TABLE trials (
    experiment INTEGER, number INTEGER, body BLOB NOT NULL, PRIMARY KEY (experiment, number)
) WITHOUT ROWID;
CREATE TABLE trial_counts (state TEXT PRIMARY KEY, trials INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE validations (
    experiment INTEGER, trial INTEGER, time REAL, body BLOB NOT NULL,
    PRIMARY KEY (experiment, trial, time)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    number INTEGER PRIMARY KEY, experiment INTEGER NOT NULL, id TEXT NOT NULL,
    body BLOB NOT NULL, UNIQUE (experiment, id)
);
CREATE INDEX checkpoints_by_id ON checkpoints (id);
"""
_LIVE_MAX: Final = 40_000
"""So many trials and checkpoints of experiments in use are kept in memory."""


class _Live(Struct):
    """An experiment that events are folded into.

    Attributes:
        number: of its row.
        state: without the configuration and most validations.
        stored: whether its submission is in the tables.
        phases: of its trials, as they are counted in the tables.
        kept: index of a trial → how many of its validations in memory are in the tables.
    """

    number: int
    state: Experiment
    stored: bool = False
    phases: list[str] = field(default_factory=list[str])
    kept: dict[int, int] = field(default_factory=dict[int, int])
    trials: dict[int, None] = field(default_factory=dict[int, None])
    checkpoints: dict[str, None] = field(default_factory=dict[str, None])
    paused: bool = False

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
    version = 2
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
    row = db.execute("SELECT number FROM experiments WHERE id = ?", (key,)).fetchone()
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
        phases=[trial_phase(found, trial) for trial in found.trials],
        kept={trial.index: len(trial.validations) for trial in found.trials},
        paused=found.paused,
    )


def _save(db: sqlite3.Connection, live: _Live, counts: Counter[str]) -> None:
    state, number = live.state, live.number
    if state.submission is not None and not live.stored:
        _submit(db, number, state, state.submission)
        live.stored = True
        state.submission = msgspec.structs.replace(state.submission, config={}, source="")
    _save_requests(db, live)
    _save_trials(db, live, counts)
    db.executemany(
        "INSERT INTO checkpoints (experiment, id, body) VALUES (?, ?, ?)"
        " ON CONFLICT (experiment, id) DO UPDATE SET body = excluded.body",
        [
            (number, name, msgspec.msgpack.encode(state.checkpoints[name]))
            for name in live.checkpoints
        ],
    )
    live.checkpoints.clear()
    body = msgspec.structs.replace(state, requests={}, trials=[], checkpoints={})
    db.execute(
        "UPDATE experiments SET state = ?, ended_at = ?, trials = ?, body = ? WHERE number = ?",
        (
            phase_of(state),
            state.ended_at or "",
            len(state.trials),
            msgspec.msgpack.encode(body),
            number,
        ),
    )


def _submit(
    db: sqlite3.Connection, number: int, state: Experiment, submission: Submission
) -> None:
    config = submission.config
    name = str(config.get("name") or state.id)
    labels = list(dict.fromkeys(str(label) for label in config.get("labels") or []))
    resources: dict[str, Any] = config.get("resources") or {}
    db.execute(
        "UPDATE experiments SET submitted_at = ?, name = ?, actor = ?, workspace = ?,"
        " project = ?, pool = ? WHERE number = ?",
        (
            submission.at,
            name,
            submission.actor or "",
            str(config.get("workspace") or ""),
            str(config.get("project") or ""),
            str(resources.get("resource_pool") or "default"),
            number,
        ),
    )
    body = msgspec.msgpack.encode(submission)
    db.execute("INSERT INTO submissions VALUES (?, ?)", (number, body))
    db.executemany("INSERT INTO labels VALUES (?, ?)", [(label, number) for label in labels])
    db.execute(
        "INSERT INTO texts (rowid, name, labels, description, hyperparameters)"
        " VALUES (?, ?, ?, ?, ?)",
        (
            number,
            f"{name} {state.id}",
            " ".join(labels),
            str(config.get("description") or ""),
            " ".join(_words(config.get("hyperparameters"))),
        ),
    )


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
        db.executemany(
            "INSERT INTO validations VALUES (?, ?, ?, ?)",
            [(number, index, each.time, msgspec.msgpack.encode(each)) for each in new],
        )
        del trial.validations[:-1]
        live.kept[index] = len(trial.validations)
        db.execute(
            "INSERT OR REPLACE INTO trials VALUES (?, ?, ?)",
            (number, index, msgspec.msgpack.encode(trial)),
        )
    recounted = range(len(state.trials)) if state.paused != live.paused else sorted(live.trials)
    for index in recounted:
        phase = trial_phase(state, state.trials[index])
        if index < len(live.phases):
            counts[live.phases[index]] -= 1
            live.phases[index] = phase
        else:
            assert index == len(live.phases), index
            live.phases.append(phase)
        counts[phase] += 1
    live.paused = state.paused
    live.trials.clear()


_experiment_decoder: Final = msgspec.msgpack.Decoder(Experiment)
_submission_decoder: Final = msgspec.msgpack.Decoder(Submission)
_trial_decoder: Final = msgspec.msgpack.Decoder(Trial)
_validation_decoder: Final = msgspec.msgpack.Decoder(Validation)
_checkpoint_decoder: Final = msgspec.msgpack.Decoder(Checkpoint)

ALL: Final = -1


def read_experiment(
    db: sqlite3.Connection,
    experiment_id: str,
    *,
    validations: int | None = ALL,
    submission: bool = True,
    checkpoints: bool = True,
) -> Experiment | None:
    """Return an experiment by its whole id, submitted or not.

    Args:
        db: with the tables.
        experiment_id: the whole id.
        validations: of which trial all validations are loaded: `ALL`, an index, or none; of other
            trials the last one is.
        submission: whether its configuration is loaded.
        checkpoints: whether its checkpoints are loaded.
    """
    row = db.execute(
        "SELECT number, body FROM experiments WHERE id = ?", (experiment_id,)
    ).fetchone()
    if row is None:
        return None
    number, body = row
    found = _experiment_decoder.decode(body)
    if found.submission is not None and submission:
        query = "SELECT body FROM submissions WHERE experiment = ?"
        found.submission = _submission_decoder.decode(db.execute(query, (number,)).fetchone()[0])
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
COLUMNS: Final = ("state", "name", "actor", "workspace", "project", "pool")
"""Columns by which a list of experiments can be filtered."""


class Selection(Struct):
    """Which experiments, in which order.

    Attributes:
        equal: column of `COLUMNS` → its value; a `*` stands for anything.
        label: those that have it.
        words: those whose texts have all of these, the last one being a beginning.
        sort: one of `SORTS`.
        descending: the greatest first.
        after: sort key and id of the last one of the page before.
        limit: so many at most.
    """

    equal: dict[str, str] = field(default_factory=dict[str, str])
    label: str | None = None
    words: str | None = None
    sort: str = "submitted"
    descending: bool = True
    after: tuple[Any, str] | None = None
    limit: int = 100


def list_experiments(db: sqlite3.Connection, selection: Selection) -> list[Summary]:
    """Return submitted experiments, without validations but the last of each trial."""
    column = SORTS[selection.sort]
    terms, values = ["submitted_at IS NOT NULL"], list[Any]()
    for name, value in selection.equal.items():
        assert name in COLUMNS, name
        is_pattern = "*" in value and "\0" not in value  # where SQLite takes a pattern to end
        terms.append(f"{name} GLOB ?" if is_pattern else f"{name} = ?")
        values.append(_pattern(value) if is_pattern else value)
    if selection.label is not None:
        terms.append("number IN (SELECT experiment FROM labels WHERE label = ?)")
        values.append(selection.label)
    if selection.words is not None:
        match = _match(selection.words)
        if not match:
            return []
        terms.append("number IN (SELECT rowid FROM texts WHERE texts MATCH ?)")
        values.append(match)
    if selection.after is not None:
        terms.append(f"({column}, id) {'<' if selection.descending else '>'} (?, ?)")
        values += selection.after
    order = "DESC" if selection.descending else "ASC"
    rows = db.execute(
        f"SELECT id, {column} FROM experiments WHERE {' AND '.join(terms)}"  # noqa: S608 - its parts are named here
        f" ORDER BY {column} {order}, id {order} LIMIT ?",
        (*values, selection.limit),
    ).fetchall()
    return [
        Summary(found, (key, name))
        for name, key in rows
        if (found := read_experiment(db, name, validations=None, checkpoints=False)) is not None
    ]


def _match(words: str) -> str:
    """Return words as a query of full text: each must be there, the last one as a beginning."""
    words = words.replace("\0", " ")  # where SQLite takes a query of full text to end
    found = [word.replace('"', '""') for word in words.split() if any(map(str.isalnum, word))]
    return " ".join(f'"{word}"' for word in found) + "*" if found else ""


def _pattern(value: str) -> str:
    return value.replace("[", "[[]").replace("?", "[?]")


def ids_from(db: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    """Return ids of submitted experiments that begin so."""
    return _beginning(db, "experiments", "submitted_at IS NOT NULL", prefix, limit)


def checkpoints_from(db: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    """Return ids of checkpoints that begin so."""
    return _beginning(db, "checkpoints", "1", prefix, limit)


def _beginning(
    db: sqlite3.Connection, table: str, where: str, prefix: str, limit: int
) -> list[str]:
    rows = db.execute(
        f"SELECT DISTINCT id FROM {table} WHERE {where} AND id >= ? AND substr(id, 1, ?) = ?"  # noqa: S608 - its parts are named above
        " AND id < ? ORDER BY id LIMIT ?",
        (prefix, len(prefix), prefix, f"{prefix}\U0010ffff", limit),
    )
    return [name for (name,) in rows]


def owner_of(db: sqlite3.Connection, checkpoint_id: str) -> tuple[str, int] | None:
    """Return the experiment that a checkpoint belongs to, and the index of its trial."""
    row = db.execute(
        "SELECT e.id, c.body FROM checkpoints c JOIN experiments e ON e.number = c.experiment"
        " WHERE c.id = ? AND e.submitted_at IS NOT NULL ORDER BY c.experiment LIMIT 1",
        (checkpoint_id,),
    ).fetchone()
    if row is None:
        return None
    index = _checkpoint_decoder.decode(row[1]).trial_id.rpartition(".")[2]
    return row[0], int(index) if index.isascii() and index.isdigit() else 0


def count_experiments(db: sqlite3.Connection) -> dict[str, int]:
    """Return the number of submitted experiments in each state."""
    return dict(
        db.execute(
            "SELECT state, count(*) FROM experiments WHERE submitted_at IS NOT NULL GROUP BY state"
        )
    )


def count_trials(db: sqlite3.Connection) -> dict[str, int]:
    """Return the number of trials in each state, of submitted experiments or not."""
    return dict(db.execute("SELECT state, trials FROM trial_counts WHERE trials > 0"))
