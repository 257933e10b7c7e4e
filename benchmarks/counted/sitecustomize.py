"""Counts what a process reads from its ledger's file and commits to it; used by `listeners.py`.

Python imports this where the folder is on `PYTHONPATH`. The counts lie in a file of the process in
the folder that `RUNG_COUNTS` names: queries, then transactions, 8 bytes each.
"""

import mmap
import os
import sqlite3
import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any

QUERIES, TRANSACTIONS = 0, 8
STARTED = {"rung.agent", "up"}


def count(folder: str) -> None:
    """Count what is executed on SQLite connections from now on."""
    path = Path(folder) / str(os.getpid())
    path.write_bytes(bytes(16))
    with path.open("r+b") as file:
        counts = mmap.mmap(file.fileno(), 16)

    def add(offset: int) -> None:
        (known,) = struct.unpack_from("q", counts, offset)
        struct.pack_into("q", counts, offset, known + 1)

    class Counted(sqlite3.Connection):
        """A connection to any SQLite file; those that only read are opened by a URI."""

        def __init__(self, database: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(database, *arguments, **options)
            self._reads = bool(options.get("uri"))
            self._ledger = "ledger.db" in str(database)

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if self._ledger and self._reads and sql.lstrip().startswith("SELECT"):
                add(QUERIES)
            elif self._ledger and sql == "COMMIT":
                add(TRANSACTIONS)
            return super().execute(sql, *parameters)

    sqlite3.connect = partial(sqlite3.connect, factory=Counted)  # type: ignore[assignment]


if "RUNG_COUNTS" in os.environ and STARTED.intersection(sys.orig_argv):
    count(os.environ["RUNG_COUNTS"])
