"""What the processes of a run say over their sockets, and what becomes of it.

Each message is taken as the fact that it means, or goes to whom it concerns: the departure hears
that the script leaves, the delivery what is stored and fetched, the watch everything. Rank 0 alone
speaks for the run.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rung.agent.delivery import Delivery
from rung.agent.departure import Departure
from rung.agent.endpoint import Connection
from rung.agent.member import Member
from rung.agent.node import Node
from rung.agent.reports import Reports
from rung.agent.saying import fact_of, problem_with
from rung.agent.watch import Watch
from rung.core import protocol
from rung.core.protocol import Damaged, FromTrial, Reported, Restored, Stored, Welcome
from rung.events.trial import RunSpec

_SETTLE_S: Final = 10.0
_IGNORED: Final = "rung ignored what the script said on its socket"


class Concerned(NamedTuple):
    """Who hears of what is said."""

    reports: Reports
    departure: Departure
    watch: Watch
    delivery: Delivery
    begun: Callable[[], None]
    """Hears that the run has begun; before anything else that it has to say."""


class Conversation:
    """A `Speaker` for the endpoint."""

    def __init__(
        self, token: str, spec: RunSpec, rank: int, greet: Callable[[int], Welcome], to: Concerned
    ) -> None:
        """Wait for the processes of a run.

        Args:
            token: the secret that each of them must know.
            spec: of the run.
            rank: of the first of them on this agent.
            greet: gives what a process of a rank is welcomed with.
            to: who hears of what they say.
        """
        self.token: Final = token
        self.connections: Final[list[Connection]] = []
        """Of the processes that speak now."""
        self.spoke = False
        """Whether any ever did."""
        self._spec = spec
        self._rank = rank
        self._greet = greet
        self._to = to
        self._silent = asyncio.Event()
        self._silent.set()

    def connected(self, connection: Connection) -> None:
        """Welcome a process of the run."""
        self.connections.append(connection)
        self._silent.clear()
        self.spoke = True
        self._to.begun()
        connection.say(self._greet(connection.rank))
        self._to.departure.remind(connection)

    def disconnected(self, connection: Connection) -> None:
        """Note that a process of the run says no more."""
        self.connections.remove(connection)
        if not self.connections:
            self._silent.set()

    def rejected(self, reason: str) -> None:
        """Tell the run's log about something that was no message."""
        self._to.reports.note("warning", f"{_IGNORED}: {reason}", self._rank)

    def received(self, connection: Connection, message: FromTrial) -> None:
        """Take what a process of the run says."""
        self._to.watch.heard(message)
        match message:
            case protocol.Alive():
                pass
            case protocol.Hello():
                self.rejected("a second hello")
            case protocol.Acknowledged():
                self._to.departure.acknowledge()
            case protocol.HparamsRefused():
                self._to.departure.refuse(message.reason)
            case protocol.StagedPart():
                if (problem := self._to.delivery.staged_part(connection, message)) is not None:
                    self.rejected(problem)
            case protocol.Fetch():
                self._to.delivery.fetch(connection, message)
            case _:
                self._take(connection, message)

    async def ended(self, node: Node, members: Sequence[Member]) -> None:
        """Read to the end what the processes said and printed, who are all gone by now."""
        await node.endpoint.settled()
        while True:
            try:
                async with asyncio.timeout(_SETTLE_S):
                    for member in members:
                        await member.silent()
                    await self._silent.wait()
            except TimeoutError:
                if node.spool.saturated:
                    continue
                text = "a process of this run does not die; what it still says is not read"
                self._to.reports.note("error", text, self._rank)
            return

    def abort(self) -> None:
        """Hear no more of anybody."""
        for connection in list(self.connections):
            connection.abort()

    def _take(
        self, connection: Connection, message: Reported | Stored | Restored | Damaged
    ) -> None:
        """Turn a message into the fact that it means; rank 0 alone speaks for the run."""
        if connection.rank != 0:
            return
        if (problem := problem_with(self._spec, message)) is not None:
            self.rejected(problem)
            return
        reports, delivery = self._to.reports, self._to.delivery
        if isinstance(message, Reported):
            reports.reported(message)
        elif isinstance(message, Damaged):
            text = f"checkpoint {message.checkpoint_id} is damaged: {message.reason}"
            reports.note("warning", text, connection.rank)
        elif isinstance(message, Stored) and delivery.staged:
            reports.flush()
            delivery.stored(connection, message)
            return
        if (fact := fact_of(self._spec, message)) is not None:
            reports.put(fact)
