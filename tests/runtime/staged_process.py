"""A process that decides and relays on a SQLite ledger; a test starts it, and kills it.

`python staged_process.py FOLDER FIRST` appends facts numbered from FIRST for ever, several at a
time, and prints each number once its fact is acknowledged.
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

from rung.events import Payload
from rung.events.allocation import AllocationLost
from rung.events.experiment import ExperimentPaused
from rung.ledger import Draft, SqliteLedger
from rung.runtime import host
from rung.runtime.relay import Relay, relay
from runtime.tally import Tally, pause

WRITERS = 3


def to_loss(data: ExperimentPaused) -> list[Payload]:
    """Relay each pause as the end of a trial."""
    key = data.experiment_id
    trial = f"{key}.0"
    return [
        AllocationLost(
            pool="p", allocation_id="a", experiment_id=key, trial_id=trial, run=1, reason=""
        )
    ]


LOSSES = Relay("t", "searches", "/rung/x", ExperimentPaused, ("experiments",), to_loss)


async def main(folder: Path, first: int) -> None:
    """Run until killed."""
    ledger = await SqliteLedger.open(folder, partitions=1)

    async def write(key: str) -> None:
        for number in count(first):
            event = pause(number, key)
            await ledger.append([Draft.of(event)])
            sys.stdout.write(f"acknowledged {key} {number}\n")
            sys.stdout.flush()

    async with asyncio.TaskGroup() as group:
        group.create_task(host(ledger, Tally(), snapshot_every=20))
        group.create_task(relay(ledger, LOSSES))
        for key in "abc"[:WRITERS]:
            group.create_task(write(key))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
