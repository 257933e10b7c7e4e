"""A metrics service to be killed: `python keeper.py LEDGER_FOLDER SERIES`.

Writes in tiny batches, so that it is nearly always within one, and says each that is stored.
"""

import asyncio
import sys
from pathlib import Path

from rung.ledger.sqlite.ledger import SqliteLedger
from rung.metrics import SeriesStore, Settings, serve


async def _run(ledger_folder: Path, series: str) -> None:
    ledger = await SqliteLedger.open(ledger_folder)
    store = SeriesStore(series, ledger_id=ledger.id)
    write = store.write

    async def say() -> bool:
        stored = await write()
        if stored:
            sys.stdout.write("stored\n")
            sys.stdout.flush()
        return stored

    store.write = say  # type: ignore[method-assign]
    await serve(ledger, store, Settings(flush_seconds=0.01, flush_bytes=10_000))


asyncio.run(_run(Path(sys.argv[1]), sys.argv[2]))
