"""A metrics service to be killed: `python keeper.py LEDGER_FOLDER SERIES_FOLDER`.

Writes in tiny batches, so that it is nearly always within one.
"""

import asyncio
import sys
from pathlib import Path

from rung.ledger.sqlite import SqliteLedger
from rung.metrics import SeriesStore, Settings, serve


async def _run(ledger_folder: Path, series_folder: Path) -> None:
    ledger = await SqliteLedger.open(ledger_folder)
    store = SeriesStore(series_folder, ledger_id=ledger.id)
    await store.open()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    await serve(ledger, store, Settings(flush_seconds=0.001, flush_bytes=2_000))


asyncio.run(_run(Path(sys.argv[1]), Path(sys.argv[2])))
