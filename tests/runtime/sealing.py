"""A process that appends to a ledger and seals it, over and over, until it is killed."""

import asyncio
import sys
from pathlib import Path

from rung.ledger import SqliteLedger
from rung.ledger.seals import SealKey
from rung.runtime.sealing.sealer import Sealer, SealSettings, sealing
from support.ledger.events import populate


async def main(folder: Path) -> None:
    """Append and seal for ever."""
    ledger = await SqliteLedger.open(folder / "ledger", partitions=1)
    key = SealKey.load_or_create(folder / "seal.key")
    settings = SealSettings(
        every_s=0.001, heads_every_s=0.001, anchor_every_s=0.001, busy_share=1.0
    )
    async with sealing(Sealer(ledger, key, settings=settings)):
        sys.stdout.write("started\n")
        sys.stdout.flush()
        while True:
            await populate(ledger, ["aaaaaaaa", "bbbbbbbb"], rounds=1)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
