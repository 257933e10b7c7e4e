"""The interface to ClickHouse, in this process or on a server."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rung.metrics.clickhouse.errors import Place
from rung.metrics.clickhouse.native import Column

T = TypeVar("T")

Parameter = str | int | float


class Tables(Place, Protocol):
    """An open database; its methods block and are called on a thread of the engine's."""

    @property
    def version(self) -> tuple[int, int]:
        """Year and number of the ClickHouse release."""
        ...

    def execute(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        ...

    def rows(self, sql: str, kind: type[T], /, **parameters: Parameter) -> list[T]:
        """Return a query's rows.

        Args:
            sql: one query with `{name:Type}` for each parameter.
            kind: of a row: a tuple, or an array-like record, of the query's columns in order.
            parameters: their values.
        """
        ...

    def insert(self, table: str, columns: Sequence[Column], *, again: bool = False) -> None:
        """Insert a block; the engine has it when this returns.

        Args:
            table: its name.
            columns: the block.
            again: also where a block like it was among the newest ones.
        """
        ...


class Engine(Place, Protocol):
    """A ClickHouse that is opened at the first use, without blocking the event loop.

    Failures are raised as `SeriesError`, those that may pass as `SeriesUnavailable`.
    """

    async def run(self, call: Callable[[Tables], T]) -> T:
        """Run a call on a thread of the engine's."""
        ...

    async def release(self) -> None:
        """Let go of it until the next use."""
        ...

    async def close(self) -> None:
        """Finish what was asked for, within a bounded time, and let go of it for good."""
        ...
