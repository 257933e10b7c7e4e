"""The projection of usage: which experiment held how many slots, for how long, in which hours.

A share of an allocation holds its slots from the grant until its agent released them, or until
the allocation was lost. Where an agent comes back in another life, after its machine was off, that
is until the life before was last there. When it ends, its time is added to each hour that it
overlaps, so a period is a sum of hours; allocations that still run are added when a report is
made. An experiment counts where it is now: its project may have been changed, and may be in
another workspace since.

Beside it is what an experiment may use, until it has ended (`LimitWatch`).

The cost is in proportion to events, and to the hours that a share lasted; a query reads what the
experiments of its projects have in the period.
"""

import sqlite3
from typing import Final, NamedTuple, assert_never

from rung.events import Event, topic
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
)
from rung.events.experiment import (
    ExperimentEnded,
    ExperimentMoved,
    ExperimentSubmitted,
    ResourcesRequested,
)
from rung.events.trial import RunRequested
from rung.gateway.projections.experiments import Visible
from rung.gateway.projections.throughput import seconds_of
from rung.runtime.projection import Projection

HOUR_MS: Final = 3_600_000
_SCHEMA: Final = """
CREATE TABLE places (
    experiment TEXT PRIMARY KEY, project TEXT NOT NULL, owner TEXT NOT NULL,
    limit_ms REAL, changes INTEGER NOT NULL DEFAULT 0, changeable INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX places_limited ON places (experiment) WHERE limit_ms IS NOT NULL;
CREATE INDEX places_by_project ON places (project, owner, experiment);
CREATE TABLE waiting (
    pool TEXT, allocation TEXT, experiment TEXT NOT NULL, slots INTEGER NOT NULL,
    PRIMARY KEY (pool, allocation)
) WITHOUT ROWID;
CREATE TABLE shares (
    pool TEXT, allocation TEXT, agent TEXT, experiment TEXT NOT NULL, slots INTEGER NOT NULL,
    since_ms INTEGER, PRIMARY KEY (pool, allocation, agent)
) WITHOUT ROWID;
CREATE INDEX shares_by_experiment ON shares (experiment);
CREATE TABLE returned (
    pool TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE used (
    experiment TEXT, hour INTEGER, slot_ms INTEGER NOT NULL, PRIMARY KEY (experiment, hour)
) WITHOUT ROWID;
"""

_OfAllocation = (
    RunRequested | AllocationGranted | AllocationReleased | AllocationLost | AllocationDropped
)
_EndsLife = AgentJoined | AgentLeft | AgentLost
"""The facts by which an allocation may be lost."""


class UsageProjection(Projection):
    """The fold of allocations, and of where experiments are."""

    name = "usage"
    facts = topic.POOLS
    decisions = (topic.PLACEMENTS,)
    streams = (topic.EXPERIMENTS,)
    handles = (
        _OfAllocation
        | _EndsLife
        | ExperimentSubmitted
        | ExperimentMoved
        | ResourcesRequested
        | ExperimentEnded
    )
    version = 3
    schema = _SCHEMA

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Fold a fact or a decision."""
        data = event.data
        if isinstance(data, ExperimentSubmitted):
            _submit(db, data)
        elif isinstance(data, ResourcesRequested):
            _change_limit(db, data)
        elif isinstance(data, ExperimentEnded):
            query = "UPDATE places SET limit_ms = NULL, changeable = 0 WHERE experiment = ?"
            db.execute(query, (data.experiment_id,))
        elif isinstance(data, ExperimentMoved):
            query = "UPDATE places SET project = ? WHERE experiment = ?"
            db.execute(query, (data.project_id, data.experiment_id))
        elif isinstance(data, _EndsLife):
            _note_return(db, data)
        elif isinstance(data, _OfAllocation) and event.topic != topic.EXPERIMENTS:
            _evolve_allocation(db, key, event, data)


def _submit(db: sqlite3.Connection, data: ExperimentSubmitted) -> None:
    resources = data.config.get("resources") or {}
    limit = resources.get("max_slot_hours")
    db.execute(
        "INSERT OR IGNORE INTO places VALUES (?, ?, ?, ?, 0, 1)",
        (data.experiment_id, data.project_id, data.owner, limit * HOUR_MS if limit else None),
    )


def _change_limit(db: sqlite3.Connection, data: ResourcesRequested) -> None:
    """Fold a change of resources as the searcher does, until the search has ended."""
    hours = data.max_slot_hours
    db.execute(
        "UPDATE places SET changes = changes + 1,"
        " limit_ms = CASE WHEN ?2 IS NULL THEN limit_ms ELSE nullif(?2, 0.0) END"
        " WHERE experiment = ?1 AND changeable AND ifnull(?3 = changes, 1)",
        (data.experiment_id, None if hours is None else hours * HOUR_MS, data.version),
    )


def _note_return(db: sqlite3.Connection, data: _EndsLife) -> None:
    """Fold what may have an allocation lost: when the agent was last there, if it says so."""
    if isinstance(data, AgentJoined) and data.seen_ms is not None:
        db.execute("INSERT OR REPLACE INTO returned VALUES (?, ?)", (data.pool, data.seen_ms))
    else:
        db.execute("DELETE FROM returned WHERE pool = ?", (data.pool,))


def _evolve_allocation(
    db: sqlite3.Connection, pool: str, event: Event, data: _OfAllocation
) -> None:
    place, now_ms = (pool, data.allocation_id), _ms(event.time)
    match data:
        case RunRequested():
            row = *place, data.experiment_id, data.slots
            db.execute("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?)", row)
        case AllocationGranted():
            _forget_waiting(db, place)
            db.executemany(
                "INSERT OR REPLACE INTO shares VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (*place, it.agent_id, data.spec.experiment_id, len(it.slots), now_ms)
                    for it in data.shares
                ],
            )
        case AllocationReleased():
            _end(db, (*place, data.agent_id), now_ms)
        case AllocationLost() | AllocationDropped():
            _forget_waiting(db, place)
            seen = db.execute("SELECT seen_ms FROM returned WHERE pool = ?", (pool,)).fetchone()
            if seen is not None and now_ms is not None:
                now_ms = min(now_ms, seen[0])
            query = "SELECT agent FROM shares WHERE pool = ? AND allocation = ?"
            for (agent,) in db.execute(query, place).fetchall():
                _end(db, (*place, agent), now_ms)
        case _:
            assert_never(data)


def _forget_waiting(db: sqlite3.Connection, place: tuple[str, str]) -> None:
    db.execute("DELETE FROM waiting WHERE pool = ? AND allocation = ?", place)


def _end(db: sqlite3.Connection, share: tuple[str, str, str], now_ms: int | None) -> None:
    """Add the time of a share to the hours that it lay in."""
    row = db.execute(
        "DELETE FROM shares WHERE pool = ? AND allocation = ? AND agent = ?"
        " RETURNING experiment, slots, since_ms",
        share,
    ).fetchone()
    if row is None or row[2] is None or now_ms is None:
        return
    experiment, slots, since_ms = row
    db.executemany(
        "INSERT INTO used VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET slot_ms = slot_ms + excluded.slot_ms",
        [(experiment, hour, ms * slots) for hour, ms in hours_of(since_ms, now_ms)],
    )


def hours_of(start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """Return the hours since 1970 in which a time lies, with its milliseconds in each."""
    found = []
    while start_ms < end_ms:
        hour = start_ms // HOUR_MS
        until = min(end_ms, (hour + 1) * HOUR_MS)
        found.append((hour, until - start_ms))
        start_ms = until
    return found


def _ms(time: str) -> int | None:
    seconds = seconds_of(time)
    return None if seconds is None else round(seconds * 1000)


class Slots(NamedTuple):
    """What was used of slots, and is now."""

    used_ms: int = 0
    """Slots times milliseconds of shares that have ended."""
    running_ms: int = 0
    """The same of shares that go on."""
    running: int = 0
    waiting: int = 0


def read_slots(
    db: sqlite3.Connection, visible: Visible, *, since_hour: int, now_ms: int
) -> dict[tuple[str, str], Slots]:
    """Return what experiments used and use of slots, by project and owner.

    Args:
        db: with the tables.
        visible: the projects; None: all.
        since_hour: the first hour since 1970 that counts.
        now_ms: up to which shares that go on are counted, since 1970.
    """
    where, values = "1", list[str]()
    if visible is not None:
        where, values = f"project IN ({', '.join('?' for _ in visible)})", sorted(visible)
    found: dict[tuple[str, str], Slots] = {}

    def add(fields: tuple[str, ...], sums: str, source: str, *bounds: int) -> None:
        rows = db.execute(
            f"SELECT project, owner, {sums} FROM {source} AND {where} GROUP BY project, owner",  # noqa: S608 - named below
            (*bounds, *values),
        )
        for project, owner, *numbers in rows:
            known = found.get((project, owner), Slots())
            found[project, owner] = known._replace(**dict(zip(fields, numbers, strict=True)))

    add(
        ("used_ms",),
        "sum(slot_ms)",
        "places CROSS JOIN used USING (experiment) WHERE hour >= ?1",
        since_hour,
    )
    add(
        ("running", "running_ms"),
        "sum(slots), sum(slots * max(0, ?1 - max(ifnull(since_ms, ?1), ?2)))",
        "shares CROSS JOIN places USING (experiment) WHERE 1",
        now_ms,
        since_hour * HOUR_MS,
    )
    add(("waiting",), "sum(slots)", "waiting CROSS JOIN places USING (experiment) WHERE 1")
    return found


class Spent(NamedTuple):
    """An experiment that has used as much as it may."""

    experiment_id: str
    limit_ms: float
    slot_ms: int
    """Slots times milliseconds that it has used."""


def read_spent(db: sqlite3.Connection, now_ms: int) -> list[Spent]:
    """Return the experiments that have not ended and are at or above their limit, by id.

    Args:
        db: with the tables.
        now_ms: up to which shares that go on are counted, since 1970.
    """
    rows = db.execute(
        "SELECT * FROM (SELECT experiment, limit_ms,"
        " ifnull((SELECT sum(slot_ms) FROM used WHERE experiment = places.experiment), 0)"
        " + ifnull((SELECT sum(slots * max(0, ?1 - ifnull(since_ms, ?1))) FROM shares"
        " WHERE experiment = places.experiment), 0) AS slot_ms"
        " FROM places WHERE limit_ms IS NOT NULL) WHERE slot_ms >= limit_ms ORDER BY experiment",
        (now_ms,),
    )
    return [Spent(*row) for row in rows]
