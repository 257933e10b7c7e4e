"""Counts the rows that queries read from tables, as the engine reports them."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from rung.metrics import SeriesStore
from rung.metrics.clickhouse.embedded import Embedded
from rung.metrics.clickhouse.server import _Connection

T = TypeVar("T")


class Reads:
    """What was read since the last count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin to count, in this process."""
        self._rows = 0
        opened, ask = Embedded._opened, _Connection._ask

        def counting(engine: Embedded) -> Any:
            return _Counting(opened(engine), self)

        def counted(connection: _Connection, *arguments: Any) -> list[Any]:
            answer = ask(connection, *arguments)
            last: Any = connection._client.last_query
            self.add(last.progress.rows)
            return answer

        monkeypatch.setattr(Embedded, "_opened", counting)
        monkeypatch.setattr(_Connection, "_ask", counted)

    def add(self, rows: int) -> None:
        """Count rows of one query."""
        self._rows += rows

    async def of(self, store: SeriesStore, call: Awaitable[T]) -> tuple[int, T]:
        """Return how many rows a call reads, and what it returns."""
        await store.flush()
        self._rows = 0
        answer = await call
        return self._rows, answer


class _Counting:
    """A connection of chDB whose queries are counted."""

    def __init__(self, connection: Any, reads: Reads) -> None:
        self._connection = connection
        self._reads = reads

    def query(self, *arguments: Any, **more: Any) -> Any:
        """Run a query."""
        result = self._connection.query(*arguments, **more)
        self._reads.add(result.storage_rows_read())
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
