"""The projection of resource pools: agents, the queue, running allocations.

A fold over `pools` (facts) and `placements` (decisions). An allocation waits from its request
until it is granted or dropped, and runs until its agents gave its slots back or were lost. What an
agent ran in an earlier incarnation is gone.
"""

import sqlite3
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
from rung.events.installation import PoolUpgraded
from rung.events.trial import RunRequested, RunWithdrawn
from rung.runtime.projection import Projection

_SCHEMA: Final = """
CREATE TABLE pools (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE allocations (
    pool TEXT, id TEXT, body BLOB NOT NULL, PRIMARY KEY (pool, id)
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


class Pool(Struct, omit_defaults=True):
    """One resource pool."""

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
    requests: dict[str, str] = field(default_factory=dict[str, str])
    """Those folded since the last flush: origin (`client/<key>`) → the request in words."""


_pool_decoder: Final = msgspec.msgpack.Decoder(Pool)
_allocation_decoder: Final = msgspec.msgpack.Decoder(tuple[Waiting | None, Running | None])


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
    handles = _OfAgent | MoveRequested | PoolConfigured | PoolUpgraded | _OfAllocation
    version = 2
    schema = _SCHEMA

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._changed: dict[str, None] = {}
        self._allocations: dict[tuple[str, str], None] = {}

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Fold a fact or a decision."""
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = read_pool(db, key)
            self._changed[key] = None
        evolve(pool, event)
        if isinstance(event.data, _OfAllocation):
            self._allocations[key, event.data.allocation_id] = None
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
            pool = self._pools[name]
            found = pool.waiting.get(allocation_id), pool.running.get(allocation_id)
            if found == (None, None):
                query = "DELETE FROM allocations WHERE pool = ? AND id = ?"
                db.execute(query, (name, allocation_id))
            else:
                db.execute(
                    "INSERT OR REPLACE INTO allocations VALUES (?, ?, ?)",
                    (name, allocation_id, msgspec.msgpack.encode(found)),
                )
        self._changed.clear()
        self._allocations.clear()

    def forget(self) -> None:
        """Drop the pools."""
        self._pools.clear()
        self._changed.clear()
        self._allocations.clear()


def read_pool(db: sqlite3.Connection, name: str) -> Pool:
    """Return a pool without the requests about it; an empty one where there is none."""
    row = db.execute("SELECT body FROM pools WHERE name = ?", (name,)).fetchone()
    pool = _pool_decoder.decode(row[0]) if row else Pool(name)
    rows = db.execute("SELECT id, body FROM allocations WHERE pool = ?", (name,))
    for allocation_id, each in rows:
        waiting, running = _allocation_decoder.decode(each)
        if waiting is not None:
            pool.waiting[allocation_id] = waiting
        if running is not None:
            pool.running[allocation_id] = running
    return pool


def read_pools(db: sqlite3.Connection) -> list[Pool]:
    """Return every resource pool, by name."""
    names = db.execute("SELECT name FROM pools ORDER BY name").fetchall()
    return [read_pool(db, name) for (name,) in names]


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
        if event.origin is not None and event.origin.startswith("client/"):
            state.requests.setdefault(event.origin, request_text(data))
    elif isinstance(data, PoolUpgraded):
        state.level = max(state.level, data.level)
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
            state.waiting[name] = Waiting(
                experiment_id=data.experiment_id,
                trial_id=data.spec.trial_id,
                run=data.spec.run,
                slots=data.slots,
                priority=data.priority,
                requested_at=event.time,
            )
        case RunWithdrawn():
            if name in state.waiting:
                state.waiting[name].withdrawn = True
        case AllocationGranted():
            state.waiting.pop(name, None)
            state.running[name] = Running(data.shares)
        case AllocationSignaled():
            pass  # it holds its slots until it is released
        case AllocationReleased():
            _release(state, data)
        case AllocationLost() | AllocationDropped():
            state.waiting.pop(name, None)
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
