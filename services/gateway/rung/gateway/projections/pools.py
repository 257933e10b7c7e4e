"""The projection of resource pools: agents, the queue, running allocations.

A fold over `pools` (facts) and `placements` (decisions). An allocation waits from its request
until it is granted or dropped, and runs until its agents gave its slots back or were lost. What an
agent ran in an earlier incarnation is gone.
"""

import sqlite3
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, assert_never

import msgspec
from msgspec import Struct, field

from rung.events import Event, topic
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AgentResumed,
    AgentSuspended,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    AllocationSignaled,
    DrainRequested,
    JoinRefused,
    MoveRequested,
    PoolConfigured,
    Share,
    Slot,
)
from rung.events.experiment import ResourcesChanged
from rung.events.installation import PoolUpgraded
from rung.events.trial import RunRequested, RunWithdrawn
from rung.ledger import root_of
from rung.runtime.projection import Projection

_SCHEMA: Final = """
CREATE TABLE pools (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE running (
    pool TEXT, id TEXT, body BLOB NOT NULL, PRIMARY KEY (pool, id)
) WITHOUT ROWID;
CREATE TABLE waiting (
    pool TEXT, id TEXT, priority INTEGER NOT NULL, requested_at TEXT NOT NULL,
    experiment TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (pool, id)
) WITHOUT ROWID;
CREATE INDEX waiting_in_order ON waiting (pool, priority, requested_at, id, experiment);
CREATE TABLE queues (
    pool TEXT, experiment TEXT, allocations INTEGER NOT NULL, PRIMARY KEY (pool, experiment)
) WITHOUT ROWID;
CREATE TABLE requests (
    pool TEXT, origin TEXT, wish TEXT NOT NULL, PRIMARY KEY (pool, origin)
) WITHOUT ROWID;
"""


class Agent(Struct):
    """One agent, in its newest incarnation."""

    id: str
    hostname: str
    incarnation: int
    slots: list[Slot]
    state: Literal["joined", "suspended", "draining", "left", "lost"]
    since: str
    reason: str | None = None
    """Why it is suspended or draining, or was before it went."""
    session: str = ""
    isolation: str = ""
    """How its trials are isolated, as the agent reported it."""
    before: "Agent | None" = None
    """The agent of that id until this one joined, should its join be refused."""


class Refused(Struct):
    """An agent that uses an id that is another's."""

    agent_id: str
    reason: str
    since: str


class Waiting(Struct):
    """An allocation that has no slots yet."""

    experiment_id: str
    trial_id: str
    run: int
    slots: int
    priority: int
    requested_at: str
    withdrawn: bool = False


class Running(Struct):
    """An allocation and the slots that it still holds."""

    shares: list[Share]


class Pool(Struct, omit_defaults=True, dict=True):
    """One resource pool.

    The index of what waits by experiment is no field: it follows from `waiting`.
    """

    name: str
    policy: str = "priority"
    """By which the scheduler gives its slots."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The policy's."""
    level: int = 1
    """The logic level of the scheduler's decisions."""
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    refused: dict[str, Refused] = field(default_factory=dict[str, Refused])
    """By session."""
    waiting: dict[str, Waiting] = field(default_factory=dict[str, Waiting])
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    configured: bool = False
    """Whether somebody chose its policy."""
    requests: dict[str, str] = field(default_factory=dict[str, str])
    """Those folded since the last flush: origin (`client/<key>`) → the request in words."""

    def __post_init__(self) -> None:
        """Build the index."""
        self._of_experiment: dict[str, dict[str, Waiting]] = {}
        for allocation_id, each in self.waiting.items():
            self._of_experiment.setdefault(each.experiment_id, {})[allocation_id] = each

    def wait(self, allocation_id: str, waiting: Waiting) -> None:
        """Have an allocation wait."""
        self.waiting[allocation_id] = waiting
        self._of_experiment.setdefault(waiting.experiment_id, {})[allocation_id] = waiting

    def wait_no_more(self, allocation_id: str) -> None:
        """Drop an allocation from those that wait, if it does."""
        waiting = self.waiting.pop(allocation_id, None)
        if waiting is None:
            return
        others = self._of_experiment[waiting.experiment_id]
        del others[allocation_id]
        if not others:
            del self._of_experiment[waiting.experiment_id]

    def waiting_of(self, experiment_id: str) -> Mapping[str, Waiting]:
        """Return the allocations of an experiment that wait."""
        return self._of_experiment.get(experiment_id, {})


_pool_decoder: Final = msgspec.msgpack.Decoder(Pool)
_waiting_decoder: Final = msgspec.msgpack.Decoder(Waiting)
_running_decoder: Final = msgspec.msgpack.Decoder(Running)


_OfAgent = (
    AgentJoined
    | AgentSuspended
    | AgentResumed
    | DrainRequested
    | AgentLeft
    | AgentLost
    | JoinRefused
)
_OfAllocation = (
    RunRequested
    | RunWithdrawn
    | AllocationReleased
    | AllocationGranted
    | AllocationSignaled
    | AllocationLost
    | AllocationDropped
)


class PoolProjection(Projection):
    """The fold of the topics that are keyed by pool.

    Pools are few, and what waits and runs in them is what is alive: they are kept in memory. What
    is written is what an event named: one allocation, or the pool's agents and settings.
    """

    name = "pools"
    facts = topic.POOLS
    decisions = (topic.PLACEMENTS,)
    handles = (
        _OfAgent | MoveRequested | PoolConfigured | PoolUpgraded | ResourcesChanged | _OfAllocation
    )
    version = 5
    schema = _SCHEMA

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._changed: dict[str, None] = {}
        self._allocations: dict[tuple[str, str], None] = {}
        self._queues: dict[tuple[str, str], None] = {}

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Fold a fact or a decision."""
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = read_pool(db, key)
            self._changed[key] = None
        evolve(pool, event)
        if isinstance(event.data, _OfAllocation):
            self._allocations[key, event.data.allocation_id] = None
            self._queues[key, root_of(event.data.allocation_id)] = None
        elif isinstance(event.data, ResourcesChanged):
            for name in pool.waiting_of(event.data.experiment_id):
                self._allocations[key, name] = None
        else:
            self._changed[key] = None

    def flush(self, db: sqlite3.Connection) -> None:
        """Write the changes to the tables."""
        for name in self._changed:
            pool = self._pools[name]
            db.executemany(
                "INSERT OR IGNORE INTO requests VALUES (?, ?, ?)",
                [(name, origin, asked) for origin, asked in pool.requests.items()],
            )
            pool.requests.clear()
            body = msgspec.structs.replace(pool, waiting={}, running={})
            row = name, msgspec.msgpack.encode(body)
            db.execute("INSERT OR REPLACE INTO pools VALUES (?, ?)", row)
        for name, allocation_id in self._allocations:
            _save_allocation(db, self._pools[name], allocation_id)
        for name, experiment_id in self._queues:
            count = len(self._pools[name].waiting_of(experiment_id))
            if count:
                query = "INSERT OR REPLACE INTO queues VALUES (?, ?, ?)"
                db.execute(query, (name, experiment_id, count))
            else:
                query = "DELETE FROM queues WHERE pool = ? AND experiment = ?"
                db.execute(query, (name, experiment_id))
        self._changed.clear()
        self._allocations.clear()
        self._queues.clear()

    def forget(self) -> None:
        """Drop the pools."""
        self._pools.clear()
        self._changed.clear()
        self._allocations.clear()
        self._queues.clear()


def _save_allocation(db: sqlite3.Connection, pool: Pool, allocation_id: str) -> None:
    place = pool.name, allocation_id
    waiting, running = pool.waiting.get(allocation_id), pool.running.get(allocation_id)
    if waiting is None:
        db.execute("DELETE FROM waiting WHERE pool = ? AND id = ?", place)
    else:
        body = msgspec.msgpack.encode(waiting)
        row = *place, waiting.priority, waiting.requested_at, waiting.experiment_id, body
        db.execute("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?, ?, ?)", row)
    if running is None:
        db.execute("DELETE FROM running WHERE pool = ? AND id = ?", place)
    else:
        body = msgspec.msgpack.encode(running)
        db.execute("INSERT OR REPLACE INTO running VALUES (?, ?, ?)", (*place, body))


def read_pool(db: sqlite3.Connection, name: str, *, waiting: bool = True) -> Pool:
    """Return a pool without the requests about it; an empty one where there is none.

    Args:
        db: with the tables.
        name: of the pool.
        waiting: whether what waits is read, which may be far more than what runs.
    """
    row = db.execute("SELECT body FROM pools WHERE name = ?", (name,)).fetchone()
    pool = _pool_decoder.decode(row[0]) if row else Pool(name)
    rows = db.execute("SELECT id, body FROM running WHERE pool = ?", (name,))
    pool.running = {allocation_id: _running_decoder.decode(each) for allocation_id, each in rows}
    if waiting:
        for allocation_id, each in db.execute(
            "SELECT id, body FROM waiting WHERE pool = ?", (name,)
        ):
            pool.wait(allocation_id, _waiting_decoder.decode(each))
    return pool


def read_pools(db: sqlite3.Connection, *, waiting: bool = True) -> list[Pool]:
    """Return every resource pool, by name; `waiting` as in `read_pool`."""
    names = db.execute("SELECT name FROM pools ORDER BY name").fetchall()
    return [read_pool(db, name, waiting=waiting) for (name,) in names]


def read_waiting(db: sqlite3.Connection, pool: str, allocation_id: str) -> Waiting | None:
    """Return an allocation that waits, None if it does not."""
    query = "SELECT body FROM waiting WHERE pool = ? AND id = ?"
    row = db.execute(query, (pool, allocation_id)).fetchone()
    return None if row is None else _waiting_decoder.decode(row[0])


def count_waiting(db: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """Return how many allocations wait, by pool and experiment."""
    rows = db.execute("SELECT pool, experiment, allocations FROM queues")
    return {(pool, experiment): count for pool, experiment, count in rows}


Place = tuple[str, int, str, str]
"""Of what waits: pool, priority, time of the request, allocation id. By it the queue is sorted."""


def list_waiting(
    db: sqlite3.Connection,
    experiments: Collection[str] | None,
    after: Place | None,
    limit: int,
) -> list[tuple[Place, Waiting]]:
    """Return a part of what waits, by pool, priority and age.

    Args:
        db: with the tables.
        experiments: those whose allocations are returned; None: all.
        after: the place of the last one of the part before.
        limit: so many at most.
    """
    terms, values = ["1"], list[Any]()
    if experiments is not None:
        terms.append("experiment IN (SELECT value FROM json_each(?))")
        values.append(msgspec.json.encode(list(experiments)).decode())
    if after is not None:
        terms.append("(pool, priority, requested_at, id) > (?, ?, ?, ?)")
        values += after
    rows = db.execute(
        "SELECT pool, priority, requested_at, id, body FROM waiting"  # noqa: S608 - its parts are named above
        f" INDEXED BY waiting_in_order WHERE {' AND '.join(terms)}"
        " ORDER BY pool, priority, requested_at, id LIMIT ?",
        (*values, limit),
    )
    return [((*place,), _waiting_decoder.decode(body)) for *place, body in rows]


def read_agents(db: sqlite3.Connection) -> list[Pool]:
    """Return every resource pool by name, without its allocations."""
    rows = db.execute("SELECT body FROM pools ORDER BY name")
    return [_pool_decoder.decode(body) for (body,) in rows]


def request_of(db: sqlite3.Connection, pool: str, origin: str | None) -> str | None:
    """Return the client's request of an origin in words, None if there was none."""
    query = "SELECT wish FROM requests WHERE pool = ? AND origin = ?"
    row = db.execute(query, (pool, origin)).fetchone()
    return row[0] if row else None


def evolve(state: Pool, event: Event) -> None:
    """Fold a fact or a decision into a pool."""
    data = event.data
    if isinstance(data, _OfAgent):
        _evolve_agent(state, event, data)
    elif isinstance(data, MoveRequested | PoolConfigured):
        if isinstance(data, PoolConfigured):
            state.policy, state.options = data.policy, data.options
            state.configured = True
        if event.origin is not None and event.origin.startswith("client/"):
            state.requests.setdefault(event.origin, request_text(data))
    elif isinstance(data, PoolUpgraded):
        state.level = max(state.level, data.level)
    elif isinstance(data, ResourcesChanged):
        for waiting in state.waiting_of(data.experiment_id).values():
            waiting.priority = data.priority
    elif isinstance(data, _OfAllocation):
        _evolve_allocation(state, event, data)


def request_text(data: MoveRequested | PoolConfigured) -> str:
    """Return a request in words, by which a repetition of it is recognized."""
    if isinstance(data, PoolConfigured):
        options = msgspec.json.encode(data.options, order="sorted").decode()
        return f"configure pool {data.pool} with policy {data.policy} and options {options}"
    return f"move {data.trial_id} to {data.to or 'another agent'}"


def _evolve_agent(state: Pool, event: Event, data: _OfAgent) -> None:
    if isinstance(data, JoinRefused):
        _refuse(state, event, data)
        return
    if isinstance(data, AgentLeft) and state.refused.pop(data.session, None) is not None:
        return
    known = state.agents.get(data.agent_id)
    if known is not None and data.incarnation < known.incarnation:
        return
    if isinstance(data, AgentSuspended | AgentResumed) and (
        known is None or known.session != data.session
    ):
        return
    match data:
        case AgentJoined():
            _join(state, event, data, known)
        case _ if known is None:
            pass
        case AgentSuspended() | AgentResumed() | DrainRequested():
            _change(known, event, data)
        case AgentLeft() | AgentLost():
            known.state = "left" if isinstance(data, AgentLeft) else "lost"
            known.since = event.time
            _forget_refused(state, data.agent_id)
        case _:
            assert_never(data)


def _join(state: Pool, event: Event, data: AgentJoined, known: Agent | None) -> None:
    """Take an agent in; a refusal, if there is one, is the next event of the pool."""
    if known is not None and data.incarnation == known.incarnation:
        return
    if known is not None:
        known.before = None
    state.agents[data.agent_id] = Agent(
        data.agent_id,
        data.hostname,
        data.incarnation,
        data.slots,
        "joined",
        event.time,
        session=data.session,
        isolation=data.isolation,
        before=known,
    )


def _change(
    known: Agent, event: Event, data: AgentSuspended | AgentResumed | DrainRequested
) -> None:
    """Fold whether a living agent takes allocations; one that is drained never does again."""
    match data:
        case AgentResumed():
            if known.state == "suspended":
                known.state, known.since, known.reason = "joined", event.time, None
        case AgentSuspended() | DrainRequested():
            if known.state in {"joined", "suspended"}:
                known.state = "suspended" if isinstance(data, AgentSuspended) else "draining"
                known.since, known.reason = event.time, data.reason
        case _:
            assert_never(data)


def _refuse(state: Pool, event: Event, data: JoinRefused) -> None:
    known = state.agents.get(data.agent_id)
    if known is not None and (known.session, known.incarnation) == (
        data.session,
        data.incarnation,
    ):
        del state.agents[data.agent_id]
        if known.before is not None:
            state.agents[data.agent_id] = known.before
    if data.in_use:
        state.refused[data.session] = Refused(data.agent_id, data.reason, event.time)


def _forget_refused(state: Pool, agent_id: str) -> None:
    """Forget which agents of an id were refused: they join again, now that it is free."""
    state.refused = {
        session: each for session, each in state.refused.items() if each.agent_id != agent_id
    }


def _evolve_allocation(state: Pool, event: Event, data: _OfAllocation) -> None:
    name = data.allocation_id
    match data:
        case RunRequested():
            waiting = Waiting(
                experiment_id=data.experiment_id,
                trial_id=data.spec.trial_id,
                run=data.spec.run,
                slots=data.slots,
                priority=data.priority,
                requested_at=event.time,
            )
            state.wait(name, waiting)
        case RunWithdrawn():
            if name in state.waiting:
                state.waiting[name].withdrawn = True
        case AllocationGranted():
            state.wait_no_more(name)
            state.running[name] = Running(data.shares)
        case AllocationSignaled():
            pass  # it holds its slots until it is released
        case AllocationReleased():
            _release(state, data)
        case AllocationLost() | AllocationDropped():
            state.wait_no_more(name)
            state.running.pop(name, None)
        case _:
            assert_never(data)


def _release(state: Pool, data: AllocationReleased) -> None:
    running = state.running.get(data.allocation_id)
    if running is None:
        return
    running.shares = [share for share in running.shares if share.agent_id != data.agent_id]
    if not running.shares:
        del state.running[data.allocation_id]
