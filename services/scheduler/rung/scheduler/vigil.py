"""Who is there and how long they have been silent: the pure half of the heartbeat watch."""

from msgspec import Struct, field

from rung.events import Payload
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost
from rung.events.metric import AgentBeat
from rung.scheduler.membership import admits, speaks


class Life(Struct, kw_only=True):
    """The newest incarnation of an agent."""

    pool: str
    agent_id: str
    incarnation: int
    there: bool = True
    """It joined and has neither left nor been lost."""
    silent_s: float = 0.0
    join: AgentJoined | None = None
    """That it began with, where that has a session."""


class Vigil(Struct, kw_only=True):
    """All agents of all pools.

    The rules are the scheduler's: an incarnation begins once, by a join that is admitted; what
    names another one is ignored; and an incarnation that was lost stays lost, so it is reported
    once.
    """

    positions: list[int] = field(default_factory=list[int])
    """Of `pools`, by partition: the next record to fold."""
    lives: dict[str, Life] = field(default_factory=dict[str, Life])

    def fold(self, event: Payload) -> None:
        """Take note of what an agent did, or of what was found out about it."""
        match event:
            case AgentJoined():
                self._begin(event)
            case AgentLeft():
                life = self._life(event.pool, event.agent_id)
                if life and speaks(event, known=life.incarnation, join=life.join):
                    life.there = False
            case AgentLost():
                life = self._life(event.pool, event.agent_id)
                if life and life.incarnation == event.incarnation:
                    life.there = False
            case AgentBeat():
                life = self._life(event.pool, event.agent_id)
                if life and life.incarnation == event.incarnation:
                    life.silent_s = 0.0
            case _:
                pass

    def elapse(self, seconds: float) -> None:
        """Let time pass in which nobody was heard."""
        for life in self.lives.values():
            life.silent_s += seconds

    def forgive(self) -> None:
        """Let everybody begin anew, as when nobody listened for a while."""
        for life in self.lives.values():
            life.silent_s = 0.0

    def overdue(self, timeout: float) -> list[AgentLost]:
        """Return the losses to report of those silent for so many seconds, or longer."""
        return [
            AgentLost(
                pool=life.pool,
                agent_id=life.agent_id,
                incarnation=life.incarnation,
                silent_ms=round(life.silent_s * 1000),
            )
            for life in self.lives.values()
            if life.there and life.silent_s >= timeout
        ]

    def _begin(self, event: AgentJoined) -> None:
        life = self._life(event.pool, event.agent_id)
        known, join, there = -1, None, False
        if life is not None:
            known, join, there = life.incarnation, life.join, life.there
        if admits(event, known=known, join=join, there=there):
            self.lives[f"{event.pool}/{event.agent_id}"] = Life(
                pool=event.pool,
                agent_id=event.agent_id,
                incarnation=event.incarnation,
                join=event if event.session else None,
            )

    def _life(self, pool: str, agent_id: str) -> Life | None:
        return self.lives.get(f"{pool}/{agent_id}")
