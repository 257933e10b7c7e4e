"""A clock that stands until it is turned, by which an agent measures its runs' silence."""

import asyncio
from collections.abc import Callable

from rung.events.allocation import AgentJoined
from support.agent_rig import Rig

LIMIT_S = 0.05
"""A `hang_timeout` for runs under such a clock: as often, in real time, the agent looks at it."""
_LOOK_READS = 4
"""At most: when a watch begins, once; in each of its turns once, or twice while objects move."""


class StandingClock:
    """Gives the time; the test turns it with `now_s`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._reads = 0

    def __call__(self) -> float:
        """Return the time."""
        self._reads += 1
        return self.now_s

    async def looked_at(self) -> None:
        """Wait until the watchdog of a run has seen the time, and lets the run go on."""
        enough = self._reads + _LOOK_READS
        await soon(lambda: self._reads >= enough)


async def stand(rig: Rig) -> StandingClock:
    """Give a running agent such a clock, for its next runs."""
    await rig.until(AgentJoined, lambda it: it.agent_id == rig.agent._outbox.agent_id)
    clock = StandingClock()
    rig.agent._node = rig.agent._node._replace(clock=clock)
    return clock


async def soon(holds: Callable[[], bool]) -> None:
    """Wait for something in this loop, of which nobody sends word."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)
