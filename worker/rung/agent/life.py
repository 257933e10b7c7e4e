"""The life of an agent's process: from its ledger's answer to a signal, or to its parent's end."""

import asyncio
import signal
import socket
from collections.abc import Coroutine
from typing import Any

from rung.agent.agent import Agent
from rung.agent.config import Settings
from rung.ledger import Ledger
from rung.ledger.factory import open_remote_append
from rung.runtime import logs
from rung.runtime.bootstrap import Place, observed, open_when_ready
from rung.runtime.health.checks import HEALTH
from rung.runtime.health.probe import probe


async def live(place: Place, settings: Settings, parent: socket.socket | None) -> None:
    """Be an agent until SIGTERM or SIGINT, or until the process is gone that started it.

    Args:
        place: where its ledger and its objects are.
        settings: of the agent.
        parent: to that process, which appends to the ledger what this one has; None where this one
            appends by itself, and does not end with it.

    Raises:
        AgentRefused: another agent uses the folder, or it cannot be written.
        LedgerError: one that does not pass by itself.
    """
    loop = asyncio.get_running_loop()
    stop, gone = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with probe(place.probe, service="agent"):
        if parent is None:
            opening = open_when_ready(place.ledger)
        else:
            opening = open_remote_append(place.ledger, parent, gone.set)
        ledger = await _open(observed(opening), stop, gone)
        if ledger is None:
            return
        logs.bind(ledger=ledger.id)
        try:
            agent = Agent(settings, ledger)
            with HEALTH.check("pool", agent.unready):
                await agent.run(stop, gone)
        finally:
            await ledger.close()


async def _open(work: Coroutine[Any, Any, Ledger], *ends: asyncio.Event) -> Ledger | None:
    """Open the ledger, waiting for its brokers; None if the agent is told to end meanwhile."""
    opening = asyncio.create_task(work)
    waiting = [asyncio.create_task(end.wait()) for end in ends]
    await asyncio.wait([opening, *waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    return None
