"""The projection of acts: who asked for what, and when.

An act is a fact that a user asked for. It says what was asked, not what came of it: a request for
what is there already, or that lost against another one, is an act as well. Facts of releases that
named nobody are acts without an actor. What follows from a request by itself is none: the pin of
the checkpoint that a new experiment starts from, the upgrade of its pool.
"""

import re
import sqlite3
from typing import Any, Final, NamedTuple, assert_never

from msgspec import Struct

from rung.events import Event, topic
from rung.events.allocation import MoveRequested, PoolConfigured
from rung.events.changes import subject_of_change
from rung.events.checkpoint import CheckpointDeletionRequested
from rung.events.deadletter import FactDropped, FactRetried, MessageDropped, MessageRetryRequested
from rung.events.directory import SYSTEM, ChangeRequested
from rung.events.envelope import experiment_of
from rung.events.experiment import (
    CancelRequested,
    DeletionRequested,
    DescriptionChanged,
    ExperimentMoved,
    ExperimentSubmitted,
    ExtensionRequested,
    KillRequested,
    PauseRequested,
    ResourcesRequested,
    RestorationRequested,
    ResumeRequested,
    RetentionChanged,
)
from rung.events.trial import TrialKillRequested
from rung.events.webhook import RedeliveryRequested
from rung.gateway.projections.deadletters import id_of
from rung.runtime.projection import Projection
from rung.subscription.cloud_event import TEST

Asked = (
    ExperimentSubmitted
    | PauseRequested
    | ResumeRequested
    | CancelRequested
    | KillRequested
    | TrialKillRequested
    | ExtensionRequested
    | RetentionChanged
    | DescriptionChanged
    | ResourcesRequested
    | ExperimentMoved
    | DeletionRequested
    | RestorationRequested
    | CheckpointDeletionRequested
    | MoveRequested
    | PoolConfigured
    | MessageRetryRequested
    | MessageDropped
    | FactRetried
    | FactDropped
    | ChangeRequested
    | RedeliveryRequested
)
"""What users ask for: a new type is a line here and one in `words_of`."""

_LAST: Final = "\U0010ffff"
_TEXT_MAX: Final = 200
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Where the next word of a type's name begins."""
_FIELDS: Final = "id, at, actor, on_behalf_of, type, subject, experiment_id, did"
_SCHEMA: Final = """
CREATE TABLE acts (
    id TEXT PRIMARY KEY, at TEXT NOT NULL, actor TEXT, on_behalf_of TEXT, type TEXT NOT NULL,
    subject TEXT NOT NULL, experiment_id TEXT, did TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX acts_by_time ON acts (at, id);
CREATE INDEX acts_by_subject ON acts (subject, at, id);
CREATE INDEX acts_by_experiment ON acts (experiment_id, at, id);
CREATE TABLE people (
    who TEXT, at TEXT, id TEXT, PRIMARY KEY (who, at, id)
) WITHOUT ROWID;
"""


class Act(Struct, frozen=True):
    """One act; `id` is that of its event, which other events name as their cause."""

    id: str
    at: str
    actor: str | None
    on_behalf_of: str | None
    type: str
    subject: str
    experiment_id: str | None
    did: str
    """What the actor did, in words that go on behind a name."""


class ActSelection(Struct, frozen=True, kw_only=True):
    """Which acts; None: any."""

    who: str | None = None
    """The actor, or the user that it acted for."""
    since: str | None = None
    until: str | None = None
    experiment_id: str | None = None
    subject: str | None = None
    what: str | None = None
    """The beginning of the event's type."""

    def has(self, act: Act) -> bool:
        """Return whether an act is one of them."""
        return (
            (self.who is None or self.who in {act.actor, act.on_behalf_of})
            and (self.since is None or act.at >= self.since)
            and (self.until is None or act.at < self.until)
            and (self.experiment_id is None or act.experiment_id == self.experiment_id)
            and (self.subject is None or act.subject == self.subject)
            and (self.what is None or act.type.startswith(self.what))
        )


class ActProjection(Projection):
    """The fold of what users ask for, of all topics of facts."""

    name = "acts"
    facts = topic.EXPERIMENTS
    streams = (topic.POOLS, topic.DEADLETTER, topic.REQUESTS, topic.DELIVERIES)
    handles = Asked
    version = 1
    schema = _SCHEMA

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:  # noqa: ARG002 - the key is in the event
        """Write an act."""
        act = act_of(event)
        if act is None:
            return
        db.execute(
            f"INSERT OR IGNORE INTO acts ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - named above
            (
                act.id,
                act.at,
                act.actor,
                act.on_behalf_of,
                act.type,
                act.subject,
                act.experiment_id,
                act.did,
            ),
        )
        people = {act.actor, act.on_behalf_of} - {None}
        db.executemany(
            "INSERT OR IGNORE INTO people VALUES (?, ?, ?)",
            [(who, act.at, act.id) for who in people],
        )


def act_of(event: Event) -> Act | None:
    """Return an event as an act, None if nobody asked for it."""
    data = event.data
    if not isinstance(data, Asked):
        return None
    if isinstance(data, ChangeRequested) and data.by == SYSTEM:
        return None  # the gateway's own: somebody signed in, a token was used
    return Act(
        id=event.id,
        at=event.time,
        actor=event.actor,
        on_behalf_of=event.onbehalfof,
        type=event.type,
        subject=event.subject,
        experiment_id=experiment_of(data),
        did=words_of(data),
    )


def words_of(data: Asked) -> str:  # noqa: C901, PLR0911, PLR0912 - a case for each type
    """Return what somebody did by asking for it, in words."""
    match data:
        case ExperimentSubmitted():
            name = data.config.get("name")
            called = f" ({str(name)[:_TEXT_MAX]})" if name else ""
            made = f", made from {data.parent}" if data.parent else ""
            return f"submitted experiment {data.experiment_id}{called}{made}"
        case PauseRequested():
            return f"paused experiment {data.experiment_id}"
        case ResumeRequested():
            return f"resumed experiment {data.experiment_id}"
        case CancelRequested():
            return f"canceled experiment {data.experiment_id}"
        case KillRequested():
            return f"killed experiment {data.experiment_id}"
        case TrialKillRequested():
            return f"killed trial {data.trial_id}"
        case ExtensionRequested():
            more = f"{data.trials} trials" if data.trials else f"length {data.max_time}"
            return f"extended experiment {data.experiment_id} to {more}"
        case RetentionChanged():
            return (
                f"changed which checkpoints experiment {data.experiment_id} keeps:"
                f" {data.save_experiment_best} best of all, of each trial {data.save_trial_best}"
                f" best and {data.save_trial_latest} latest"
            )
        case DescriptionChanged():
            return _description_words(data)
        case DeletionRequested():
            return f"deleted experiment {data.experiment_id}"
        case RestorationRequested():
            return f"restored experiment {data.experiment_id}"
        case CheckpointDeletionRequested():
            return f"deleted checkpoint {data.checkpoint_id}"
        case MoveRequested():
            return f"moved trial {data.trial_id} to {_agent(data.to)}"
        case PoolConfigured():
            return f"set the policy of pool {data.pool} to {data.policy}"
        case MessageRetryRequested() | FactRetried():
            return f"had dead letter {id_of(data)} retried"
        case MessageDropped() | FactDropped():
            return f"dropped dead letter {id_of(data)}"
        case ResourcesRequested():
            return f"changed what experiment {data.experiment_id} may have of its pool"
        case ExperimentMoved():
            place = f"project {data.project_id} of workspace {data.workspace_id}"
            return f"moved experiment {data.experiment_id} to {place}"
        case ChangeRequested():
            kind = _WORDS.sub(" ", type(data.change).__name__).lower()
            return f"asked the directory to {kind}: {subject_of_change(data.change)}"
        case RedeliveryRequested():
            if data.event.get("type") == TEST:
                return f"tested webhook {data.webhook_id}"
            return f"had a delivery of webhook {data.webhook_id} repeated"
        case _:
            assert_never(data)


def _agent(name: str | None) -> str:
    return "another agent" if name is None else f"agent {name}"


def _description_words(data: DescriptionChanged) -> str:
    experiment = f"experiment {data.experiment_id}"
    labels = data.labels is not None or data.add_labels or data.remove_labels
    changed = {
        "name": data.name is not None,
        "description": data.description is not None,
        "labels": bool(labels),
        "notes": data.notes is not None,
    }
    names = [name for name, is_changed in changed.items() if is_changed]
    filed = {None: [], True: ["archived"], False: ["unarchived"]}[data.archived]
    if names == ["name"]:
        assert data.name is not None
        done = [*filed, f"renamed {experiment} to {data.name[:_TEXT_MAX]}"]
    elif names:
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        done = [*filed, f"changed {listed} of {experiment}"]
    else:
        done = [f"{filed[0] if filed else 'changed nothing of'} {experiment}"]
    return " and ".join(done)


class Page(NamedTuple):
    """Some acts, and how far the topics were folded when they were read."""

    acts: list[Act]
    positions: dict[tuple[str, int], int]
    """Topic and partition → the position behind the last record."""


def read_acts(
    db: sqlite3.Connection,
    selection: ActSelection,
    *,
    before: tuple[str, str] | None = None,
    limit: int = -1,
) -> Page:
    """Return acts, the newest first.

    Args:
        db: with the tables.
        selection: which of them.
        before: time and id of the last one of the page before.
        limit: so many at most, all if below 0.
    """
    wanted = {
        "who = ?": selection.who,
        "at >= ?": selection.since,
        "at < ?": selection.until,
        "experiment_id = ?": selection.experiment_id,
        "subject = ?": selection.subject,
        "type >= ?": selection.what,
        "type < ?": selection.what and selection.what + _LAST,
    }
    terms: dict[str, Any] = {term: it for term, it in wanted.items() if it is not None}
    # By the index of people.
    source = "acts" if selection.who is None else "people CROSS JOIN acts USING (id, at)"
    values = [*terms.values(), *(before or ())]
    if before is not None:
        terms["(at, id) < (?, ?)"] = None
    chosen = f" WHERE {' AND '.join(terms)}" if terms else ""
    rows = db.execute(
        f"SELECT {_FIELDS} FROM {source}{chosen} ORDER BY at DESC, id DESC LIMIT ?",  # noqa: S608 - named above
        [*values, limit],
    )
    acts = [Act(*row) for row in rows]
    folded = db.execute("SELECT topic, partition, position FROM folded_positions")
    return Page(acts, {(name, partition): position for name, partition, position in folded})
