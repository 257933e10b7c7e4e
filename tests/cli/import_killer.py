"""A process that runs `rung ledger import` again and again, killed by SIGKILL at chosen points.

`python import_killer.py FILE FOLDER POINT...` imports FILE into `FOLDER/POINT` for each point, in
a forked process that kills itself before the POINTth statement that any of its connections to the
ledger's file executes (never, for 0). It prints, one JSON line a point, whether it was killed, its
exit code, and how many statements there were.
"""

import itertools
import json
import os
import signal
import sqlite3
import sys
from typing import Any, Final

import rung.cli.handover
import rung.cli.ledger_moves
import rung.host.journal
import rung.ledger.archive  # noqa: F401 - all of it is imported once, before forking
from rung.cli.__main__ import run

FILE: Final = "ledger.db"


def watch(point: int, count: "itertools.count[int]") -> None:
    """Have this process kill itself before a statement on the ledger's file."""
    connect = sqlite3.connect

    def trace(_: str) -> None:
        if next(count) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(database, *arguments, **options)
        if FILE in str(database):
            connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = traced


def child(file: str, folder: str, point: int) -> None:
    """Import, and leave with the number of statements in a file."""
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
        target = f"{folder}/{point}"
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
        if not killed:
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
