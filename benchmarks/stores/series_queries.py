"""How fast curves are answered.

An experiment of 500 trials in a chDB folder, half of its rows training losses, half validations.
Beside each query: the rows that it reads, and its time as a part of that of a plain scan of the
metric's reports, in the same run. The aims, for 20 million rows: 300 ms for curves of 500 trials,
50 ms for one, for the best values and for names.

    python -m benchmarks.stores.series_queries [--rows N] [--folder DIR]
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import figure

from rung.metrics import SeriesStore
from rung.metrics.clickhouse.embedded import Embedded

TRIALS = 500
ROUNDS = 5
BLOCK = 1_000_000

_FILL = """
INSERT INTO metrics
SELECT 'exp', concat('exp.', toString(n % {trials})), '{kind}', 'loss', intDiv(n, {trials}),
    sin(n), 1760000000000 + n, 1, 1000 + n
FROM (SELECT number + {first} AS n FROM numbers({count}))
"""
_SCAN = """
SELECT trial_id, min(value), max(value), max(time_ms) FROM metrics
WHERE experiment_id = 'exp' AND kind = 'training' AND name = 'loss' GROUP BY trial_id
"""


class Counted(Embedded):
    """An engine that counts the rows that queries read from tables."""

    rows_read = 0

    def _opened(self) -> Any:
        connection = super()._opened()

        def query(*arguments: Any, **more: Any) -> Any:
            result = connection.query(*arguments, **more)
            self.rows_read += result.storage_rows_read()
            return result

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return query if name == "query" else getattr(connection, name)

        return Counting()


async def main(rows: int, folder: Path) -> int:
    """Measure it all; say by the exit code whether the aims are met."""
    engine = Counted(folder / "series")
    store = SeriesStore(engine, ledger_id="benchmark")
    await store.open()
    for kind in ("training", "validation"):
        for first in range(0, rows // 2, BLOCK):
            count = min(BLOCK, rows // 2 - first)
            sql = _FILL.format(trials=TRIALS, kind=kind, first=first, count=count)
            await engine.run(lambda tables, sql=sql: tables.execute(sql))  # type: ignore[misc]
    await engine.run(lambda tables: tables.execute("SET use_query_condition_cache = 0"))

    async def scan() -> None:
        await engine.run(lambda tables: tables.execute(_SCAN))

    asked: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {
        "curves of 500 trials": (300, lambda: store.overlay("exp", "training", "loss", 200)),
        "in 50 points": (300, lambda: store.overlay("exp", "training", "loss", 50)),
        "curve of one": (50, lambda: store.curve("exp.7", "training", "loss", 200)),
        "best validations": (50, lambda: store.best("exp", "loss", smaller_is_better=True)),
        "names": (50, lambda: store.names("exp")),
    }

    async def spent_ms(call: Callable[[], Awaitable[object]]) -> tuple[float, int]:
        spent = []
        for _ in range(ROUNDS):
            engine.rows_read = 0
            started = time.process_time()
            await call()
            spent.append(1e3 * (time.process_time() - started))
        return statistics.median(spent), engine.rows_read

    plain, read = await spent_ms(scan)
    print(f"{rows:,} rows; a plain scan of one metric: {plain:.0f} ms of CPU, {read:,} rows read")
    met = True
    for what, (aim, call) in asked.items():
        spent, read = await spent_ms(call)
        met &= figure(
            f"metrics of {rows:,} rows: {what}",
            spent,
            "ms of CPU",
            at_most=aim,
            beside=f"{read:,} rows read; {spent / plain:.3f} of a scan of one metric",
        )
    await store.close()
    return int(not met)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path, help="where to write for a while")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        sys.exit(asyncio.run(main(arguments.rows, Path(made))))
