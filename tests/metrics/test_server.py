"""A server that is away, stands still, refuses or is cut off: bounded, clear, nothing lost."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pytest

from metrics.report import EXPERIMENT, draft, metrics, record, row
from rung.ledger import Draft
from rung.ledger.memory import MemoryLedger
from rung.metrics import SeriesError, SeriesStore, SeriesUnavailable, Settings, serve
from rung.metrics.clickhouse.address import PASSWORD
from rung.metrics.clickhouse.engine import Tables
from servers.clickhouse import ClickHouse
from support.ledger.certificates import authority, signed

pytestmark = pytest.mark.stores

TRIAL = f"{EXPERIMENT}.0"
_BOUND_S: Final = 25.0
"""What takes half a second is over by then, also on a busy machine; what waits for a server as
long as it does by default is not."""

T = TypeVar("T")


def _open(place: str, *, read_only: bool = False) -> SeriesStore:
    return SeriesStore(place, ledger_id="ledger-1", read_only=read_only)


async def _refusal(store: SeriesStore) -> SeriesError:
    with pytest.raises(SeriesError) as refused:
        await store.names(EXPERIMENT)
    await store.close()
    return refused.value


async def test_a_wrong_password_is_named(
    server_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable to set is in the message, the password is not; waiting would not help."""
    monkeypatch.setenv(PASSWORD, "wrong-one")
    error = await _refusal(_open(server_place))
    assert "refuses the user or the password" in str(error)
    assert PASSWORD in str(error)
    assert "wrong-one" not in str(error)
    assert not error.retriable


async def test_a_database_that_is_missing_is_named(server_place: str) -> None:
    """With the statement that makes it; waiting would not help."""
    error = await _refusal(_open(f"{server_place}_none"))
    assert "CREATE DATABASE series_" in str(error)
    assert not error.retriable


async def test_the_wrong_port_is_named(server_place: str, clickhouse: ClickHouse) -> None:
    """ClickHouse's port for HTTP does not answer: the message says which port is meant."""
    place = server_place.replace(f":{clickhouse.port}/", f":{clickhouse.http_port}/")
    error = await _refusal(_open(f"{place}?timeout_s=0.5"))
    assert "speaks its own protocol (9000" in str(error)


async def test_nobody_there_may_pass(server_place: str, clickhouse: ClickHouse) -> None:
    """A port that nobody listens on: at once, and worth trying again."""
    started = time.monotonic()
    error = await _refusal(_open(server_place.replace(f":{clickhouse.port}/", ":1/")))
    assert "Connection refused" in str(error)
    assert error.retriable
    assert time.monotonic() - started < _BOUND_S


async def test_without_the_driver_the_extra_is_named(
    server_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who installed Rung for one machine is told what a server needs."""
    monkeypatch.setitem(sys.modules, "clickhouse_driver", None)
    error = await _refusal(_open(server_place))
    assert "pip install 'rung[clickhouse]'" in str(error)


@pytest.fixture
def secure(
    tmp_path: Path, clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ClickHouse, Path]]:
    """A server that speaks TLS, and the authority that signed its certificate."""
    signer = authority(tmp_path, "authority")
    server = ClickHouse(tmp_path / "server", tls=signed(signer, tmp_path, "server", "127.0.0.1"))
    server.start()
    monkeypatch.setenv(PASSWORD, server.password)
    yield server, signer.certificate
    server.kill()


async def test_a_server_is_reached_by_tls(secure: tuple[ClickHouse, Path]) -> None:
    """With the authority that signed its certificate, and not without, unless told not to ask."""
    server, signer = secure
    store = _open(f"{server.secure_url}&ca_file={signer}")
    store.absorb([record(metrics([row(1, loss=1.0)]), 0)])
    assert await store.names(EXPERIMENT) == [("training", "loss")]
    await store.close()
    error = await _refusal(_open(server.secure_url))
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    trusting = _open(f"{server.secure_url}&verify=0")
    assert await trusting.names(EXPERIMENT) == [("training", "loss")]
    await trusting.close()


async def test_a_reader_changes_nothing(server_place: str) -> None:
    """The server itself refuses whatever would write; queries answer."""
    writer = _open(server_place)
    writer.absorb([record(metrics([row(1, loss=1.0)]), 0)])
    await writer.flush()
    reader = _open(server_place, read_only=True)
    assert await reader.curve(TRIAL, "training", "loss", 10) == [(1, 1.0, 1_001)]

    def drop(tables: Tables) -> None:
        tables.execute("DROP TABLE metrics")

    with pytest.raises(SeriesError, match="lacks a right"):
        await reader._run(drop)
    assert await writer.names(EXPERIMENT) == [("training", "loss")]
    await reader.close()
    await writer.close()


async def test_a_server_that_stands_still_costs_a_bounded_time(lone: ClickHouse) -> None:
    """Many queries at once give up in time, closing does not hang; woken, it answers again."""
    patient = _open(lone.url)
    patient.absorb([record(metrics([row(1, loss=1.0)]), 0)])
    await patient.flush()
    await patient.close()
    store = _open(f"{lone.url}?timeout_s=0.5")
    assert await _at_last(lambda: store.names(EXPERIMENT)) == [("training", "loss")]
    lone.pause()
    started = time.monotonic()
    answers = await asyncio.gather(
        *(store.names(EXPERIMENT) for _ in range(12)), return_exceptions=True
    )
    assert all(isinstance(answer, SeriesUnavailable) for answer in answers)
    assert time.monotonic() - started < _BOUND_S
    lone.resume()
    assert await _at_last(lambda: store.names(EXPERIMENT)) == [("training", "loss")]
    lone.pause()
    waiting = asyncio.create_task(store.names(EXPERIMENT))
    await asyncio.sleep(0)
    started = time.monotonic()
    await store.close()
    assert time.monotonic() - started < _BOUND_S
    with pytest.raises(SeriesUnavailable):
        await waiting


async def _at_last(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what a server answers that may be too slow at first for the time it is given."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(SeriesUnavailable):
                return await ask()


async def test_a_restarted_server_is_found_again(lone: ClickHouse) -> None:
    """Connections that broke are opened again, and readiness tells what is, not what was."""
    store = _open(lone.url)
    store.absorb([record(metrics([row(1, loss=1.0)]), 0)])
    assert await store.names(EXPERIMENT) == [("training", "loss")]
    assert await store.unready() is None
    lone.kill()
    assert await store.unready()
    with pytest.raises(SeriesUnavailable):
        await store.names(EXPERIMENT)
    lone.start()
    assert await store.unready() is None
    assert await store.names(EXPERIMENT) == [("training", "loss")]
    await store.close()


async def test_while_the_server_is_away_no_more_than_a_bound_is_taken_in(
    lone: ClickHouse,
) -> None:
    """The ledger is read no further than two batches; back again, everything is stored."""
    ledger = MemoryLedger(partitions=4, ledger_id="ledger-1")
    drafts = [draft(metrics([row(step, loss=1.0)], trial=step % 40), step) for step in range(400)]
    size = max(len(item.value) for item in drafts)
    store = _open(f"{lone.url}?timeout_s=0.5")
    settings = Settings(flush_seconds=0.01, flush_bytes=20 * size)
    serving = asyncio.create_task(serve(ledger, store, settings))
    await _stored(store, ledger, drafts[:1])
    lone.pause()
    for item in drafts[1:]:
        await ledger.append([item])
        for _ in range(10):
            await asyncio.sleep(0)
    assert 40 * size - 20 * size < store.pending_bytes < 60 * size
    lone.resume()
    await _stored(store, ledger, [])
    serving.cancel()
    await asyncio.wait([serving])
    overlay = await store.overlay(EXPERIMENT, "training", "loss", 100)
    assert sum(len(curve) for curve in overlay.values()) == 400
    await store.close()


async def _stored(store: SeriesStore, ledger: MemoryLedger, drafts: list[Draft]) -> None:
    """Append and wait until everything on `metrics` is stored, which the server gets to."""
    if drafts:
        await ledger.append(drafts)
    ends = [await ledger.end("metrics", n) for n in range(ledger.partitions("metrics"))]
    async with asyncio.timeout(60):
        while sum((await _positions(store)).values()) < sum(ends):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def _positions(store: SeriesStore) -> dict[tuple[str, int], int]:
    try:
        return await store.positions()
    except SeriesUnavailable:
        return {}


async def test_serving_waits_for_a_server_that_is_not_there_yet(lone: ClickHouse) -> None:
    """Started before its server, the service goes on as soon as that is there."""
    lone.stop()
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append([draft(metrics([row(1, loss=1.0)]), 1)])
    store = _open(lone.url)
    serving = asyncio.create_task(serve(ledger, store, Settings(flush_seconds=0.01)))
    await asyncio.wait([serving], timeout=0.3)
    assert not serving.done()
    lone.start()
    await _stored(store, ledger, [])
    serving.cancel()
    await asyncio.wait([serving])
    await store.close()


async def test_a_table_that_was_dropped_says_what_to_do(server_place: str) -> None:
    """Somebody else changed the database: another is filled, and nothing else is lost with it."""
    store = _open(server_place)
    await store._run(lambda tables: tables.execute("DROP TABLE metrics"))
    with pytest.raises(SeriesError, match=r"lacks a table .* another, empty database") as no:
        await store.overlay(EXPERIMENT, "training", "loss", 10)
    assert "DROP" not in str(no.value)
    await store.close()
