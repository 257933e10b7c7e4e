"""A process of its own that appends; tests start it, and kill it.

`python appender.py FOLDER KEY COUNT [die]` appends COUNT events, for ever if 0, and prints each
position once it is acknowledged. With `die` it kills itself after the last commit, before it can
notify followers.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from rung.events import topic
from rung.ledger import Draft, SqliteLedger
from rung.ledger.sqlite.notify import Notifier


def die(self: Notifier) -> None:
    """Die instead of notifying followers."""
    os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: Path, key: str, count: int) -> None:
    """Append one after the other, each batch of three in one piece."""
    ledger = await SqliteLedger.open(folder)
    number = 0
    while number < count or not count:
        drafts = [Draft(topic.EXPERIMENTS, key, b"%d" % number)] * 3
        for position in await ledger.append(drafts):
            sys.stdout.write(f"{position} {number}\n")
        sys.stdout.flush()
        number += 1
    await ledger.close()


if __name__ == "__main__":
    if sys.argv[4:] == ["die"]:
        setattr(Notifier, "notify", die)  # noqa: B010 - the type checker forbids the assignment
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
