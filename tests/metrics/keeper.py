"""A metrics service to be killed: `python keeper.py LEDGER_FOLDER SERIES`.

Writes in tiny batches, so that it is nearly always within one.
"""

import asyncio
import sys
from pathlib import Path

from rung.ledger.sqlite import SqliteLedger
from rung.metrics import Settings, open_series, serve


async def _run(ledger_folder: Path, series: str) -> None:
    ledger = await SqliteLedger.open(ledger_folder)
    store = open_series(series, ledger_id=ledger.id)
    await store.open()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    await serve(ledger, store, Settings(flush_seconds=0.01, flush_bytes=10_000))


asyncio.run(_run(Path(sys.argv[1]), sys.argv[2]))
