"""A gateway in a thread, for what has no event loop: with the directory, as `rung up` has it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import structlog

from rung.gateway import serve
from rung.gateway.service import components
from rung.ledger import Ledger, MemoryLedger
from rung.runtime.service import Component
from rung.runtime.service import serve as serve_components
from rung.secrets.master_key import LocalKeys
from rung.storage import FolderStore

TOKEN = "a-token"  # noqa: S105 - of tests alone

Furnish = Callable[[Ledger, FolderStore], Awaitable[tuple[Component, ...]]]
"""Writes what is there at first; returns the components of further services."""


async def _nothing(_ledger: Ledger, _store: FolderStore) -> tuple[Component, ...]:
    return ()


@contextlib.contextmanager
def threaded(objects: Path, furnish: Furnish = _nothing) -> Iterator[str]:
    """Run a gateway in a thread; give its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    started, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        ledger, store = MemoryLedger(), FolderStore(objects)
        more = await furnish(ledger, store)
        serving = [
            asyncio.create_task(serve_components(ledger, components(store))),
            asyncio.create_task(serve_components(ledger, more)),
            asyncio.create_task(
                serve(
                    ledger,
                    store,
                    listener=listener,
                    token=TOKEN,
                    started=started.set,
                    secrets_key=LocalKeys(lambda: [b"k" * 32]),
                )
            ),
        ]
        await ended.wait()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    logging = structlog.get_config()
    structlog.configure(
        logger_factory=structlog.ReturnLoggerFactory()
    )  # not among what is printed
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(60)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()
    structlog.configure(**logging)
