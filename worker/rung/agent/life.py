"""The life of an agent's process: from its ledger's answer to a signal, or to its parent's end."""

import asyncio
import os
import signal

from rung.agent.agent import Agent
from rung.agent.config import Settings
from rung.ledger import Ledger
from rung.runtime import logs
from rung.runtime.bootstrap import Place, observed
from rung.runtime.health.checks import HEALTH
from rung.runtime.health.probe import probe


async def live(place: Place, settings: Settings, parent_pipe: int | None) -> None:
    """Be an agent until SIGTERM or SIGINT, or until the other end of a pipe is closed.

    Raises:
        AgentRefused: another agent uses the folder, or it cannot be written.
        LedgerError: one that does not pass by itself.
    """
    loop = asyncio.get_running_loop()
    stop, gone = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent_pipe is not None:
        loop.add_reader(parent_pipe, _hear_parent, parent_pipe, gone)
    async with probe(place.probe, service="agent"):
        ledger = await _open(place.ledger, stop, gone)
        if ledger is None:
            return
        logs.bind(ledger=ledger.id)
        try:
            agent = Agent(settings, ledger)
            with HEALTH.check("pool", agent.unready):
                await agent.run(stop, gone)
        finally:
            await ledger.close()


async def _open(url: str, *ends: asyncio.Event) -> Ledger | None:
    """Open the ledger, waiting for its brokers; None if the agent is told to end meanwhile."""
    opening = asyncio.create_task(observed(url))
    waiting = [asyncio.create_task(end.wait()) for end in ends]
    await asyncio.wait([opening, *waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    return None


def _hear_parent(pipe: int, gone: asyncio.Event) -> None:
    if not os.read(pipe, 4096):
        asyncio.get_running_loop().remove_reader(pipe)
        gone.set()
