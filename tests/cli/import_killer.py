"""A process that runs `rung ledger import` again and again, killed by SIGKILL at chosen points.

`python import_killer.py FILE FOLDER POINT...` imports FILE into `FOLDER/POINT` for each point, in
a forked process that kills itself before the POINTth statement that any of its connections to the
ledger's file executes (never, for 0). It prints, one JSON line a point, whether it was killed, its
exit code, and how many statements there were.

Where FOLDER is the URL of a ledger on Kafka, each import goes into that one, appends 20 records at
a time, and is killed when its POINTth append is acknowledged, or begins where POINT is negative.
"""

import itertools
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import rung.cli.operations.ledger.import_command
import rung.cli.operations.ledger.import_recovery
import rung.ledger.export.staging  # all of it is imported once, before forking
import rung.runtime.logs
from rung.cli.__main__ import run
from rung.ledger import Draft

FILE: Final = "ledger.db"


def watch(point: int, count: "itertools.count[int]") -> None:
    """Have this process kill itself before a statement on the ledger's file."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def trace(_: str) -> None:
        if next(count) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(database, *arguments, **options)
        if FILE in str(database):
            connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]


def watch_appends(point: int) -> None:
    """Have this process kill itself at an append to a ledger on Kafka."""
    from rung.ledger.kafka import KafkaLedger  # noqa: PLC0415 - an extra

    rung.ledger.export.staging._BATCH_RECORDS = 20  # type: ignore[misc]
    append = KafkaLedger.append
    appends = itertools.count(1)

    async def watched(self: KafkaLedger, drafts: Sequence[Draft]) -> list[int]:
        number = next(appends)
        if number == -point:
            os.kill(os.getpid(), signal.SIGKILL)
        positions = await append(self, drafts)
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return positions

    KafkaLedger.append = watched  # type: ignore[method-assign]


def child(file: str, folder: str, point: int) -> None:
    """Import, and leave with the number of statements in a file."""
    if folder.startswith("kafka://"):
        watch_appends(point)
        os._exit(run(["ledger", "import", file, "--ledger", folder, "--json"]))
    os.environ["RUNG_DATA"] = folder
    count = itertools.count(1)
    watch(point, count)
    code = run(["ledger", "import", file, "--json"])
    sys.stdout.flush()
    with open(f"{folder}.count", "w") as done:  # noqa: PTH123 - a child's
        done.write(str(next(count) - 1))
    os._exit(code)


def main() -> None:
    """Import for each point in turn."""
    file, folder, *points = sys.argv[1:]
    for point in points:
        target = folder if folder.startswith("kafka://") else f"{folder}/{point}"
        process = os.fork()
        if not process:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            try:
                child(file, target, int(point))
            finally:
                os._exit(70)
        _, status = os.waitpid(process, 0)
        killed = os.WIFSIGNALED(status)
        statements = None
        if not killed and Path(f"{target}.count").exists():
            with open(f"{target}.count") as done:  # noqa: PTH123 - a test's
                statements = int(done.read())
        facts = {
            "point": int(point),
            "killed": killed,
            "code": os.waitstatus_to_exitcode(status),
            "statements": statements,
        }
        print(json.dumps(facts), flush=True)  # noqa: T201 - how it answers


if __name__ == "__main__":
    main()
