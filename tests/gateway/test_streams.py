"""Live streams: nothing lost, nothing repeated, nobody waited for without end."""

import asyncio
import contextlib
import json
import random
import re
import tracemalloc
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from gateway.conftest import EXPERIMENT_FILE, World, patient, until
from rung.events import Event, LedgerTrimmed, Payload, decode, fact, topic
from rung.events.experiment import PauseRequested
from rung.events.metric import LogLine, LogsPrinted, MetricRow, MetricsReported
from rung.gateway.streams.feed import Frame, Interest, Source
from rung.gateway.streams.sse import _Stream
from rung.ledger import Draft, MemoryLedger, Record
from support.gateway.client import TOKEN, Client
from support.gateway.scenario import EXPERIMENT, drafts, play, submitted

EVENTS = f"/experiments/{EXPERIMENT}/events"


class Seen(NamedTuple):
    """One server-sent event."""

    id: str
    name: str
    data: Any


@contextlib.asynccontextmanager
async def opened(
    client: Client,
    path: str,
    last: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[AsyncIterator[Seen | None]]:
    """Open a stream and yield its events; None stands for a comment."""
    headers = {"Authorization": f"Bearer {TOKEN}", **(headers or {})}
    if last is not None:
        headers["Last-Event-ID"] = last
    async with client.session.get(f"{client.url}/api/v1{path}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        yield _parse(response)


async def _parse(response: aiohttp.ClientResponse) -> AsyncIterator[Seen | None]:
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line.startswith(":"):
            yield None
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Seen(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}


async def take(events: AsyncIterator[Seen | None], count: int) -> list[Seen]:
    """Return the next events."""
    seen: list[Seen] = []
    async with asyncio.timeout(20):
        while len(seen) < count:
            event = await anext(events)
            if event is not None:
                seen.append(event)
    return seen


async def test_all_events_in_order(world: World) -> None:
    """From the beginning, each topic's events come in order, as CloudEvents."""
    history = play(1)
    await world.play(history)
    written = len(history.facts) + len(history.decisions)
    async with world.gateway() as client, opened(client, EVENTS) as events:
        seen = await take(events, written)

    def of(*sources: str) -> list[str]:
        return [it.data["id"] for it in seen if (it.data["source"] in sources)]

    assert of("/rung/test") == [json.loads(it.record.value)["id"] for it in history.facts]
    assert of("/rung/searcher") == [json.loads(it.record.value)["id"] for it in history.decisions]
    assert all(it.name == it.data["type"] and it.data["specversion"] == "1.0" for it in seen)


async def test_what_is_relayed_comes_once(world: World) -> None:
    """A decision that checkpoint-gc's relay made a fact of is shown as what it is, a decision."""
    history = play(1)
    await world.play(history)
    last = decode(history.decisions[-1].record.value)
    copy = fact(last.data, source="/rung/checkpoint-gc", origin="L", sequence=1, time="t")
    pause = fact(
        PauseRequested(experiment_id=EXPERIMENT), source="/rung/t", origin="t", sequence=1, time=""
    )
    await world.ledger.append([Draft.of(it) for it in (copy, pause)])
    written = len(history.facts) + len(history.decisions)
    async with world.gateway() as client, opened(client, EVENTS) as events:
        ids = [it.data["id"] for it in await take(events, written + 1)]

    assert (copy.topic, last.topic) == (topic.EXPERIMENTS, topic.SEARCHES)
    assert last.id in ids
    assert pause.id in ids
    assert copy.id not in ids


@pytest.mark.parametrize("seed", range(5))
async def test_reconnecting_loses_and_repeats_nothing(world: World, seed: int) -> None:
    """Cut at any event, any number of times, while more is written: each event comes once."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    history = play(seed)
    pending = drafts(history)
    total = len(pending)
    await world.ledger.append(pending[:1])
    pending = pending[1:]
    seen: list[Seen] = []
    async with world.gateway() as client:
        while len(seen) < total:
            count = chance.randint(0, 30)
            await world.ledger.append(pending[:count])
            pending = pending[count:]
            left = total - len(pending) - len(seen)
            last = seen[-1].id if seen else None
            async with opened(client, EVENTS, last) as events:
                seen += await take(events, chance.randint(0, left))

    expected = [json.loads(draft.value)["id"] for draft in drafts(history)]
    assert sorted(it.data["id"] for it in seen) == sorted(expected)


async def test_only_what_is_new(world: World) -> None:
    """With from=now the past is left out."""
    await world.play(play(1))
    async with world.gateway() as client, opened(client, f"{EVENTS}?from=now") as events:
        await world.write(PauseRequested(experiment_id=EXPERIMENT))
        (seen,) = await take(events, 1)

    assert seen.name == "rung.experiment.pause_requested.v1"


async def test_other_experiments_are_left_out(world: World) -> None:
    """A stream has the events of its own experiment alone, also those of the same partition."""
    others = [f"{number:08}" for number in range(8)]
    for name in others:
        await world.write(submitted(name))
    async with world.gateway() as client:
        for name in others:
            async with opened(client, f"/experiments/{name}/events") as events:
                await world.write(PauseRequested(experiment_id=name))
                seen = await take(events, 2)
            assert {it.data["data"]["experiment_id"] for it in seen} == {name}


@pytest.mark.parametrize(
    "last", ["", "x", "1", "1.2.3.4", "-1.0.0", "1.2.x", "9.9.9", f"{2**60}.0.0", "1.2.3 "]
)
async def test_strange_last_event_id(world: World, last: str) -> None:
    """An id that is of no event of this stream is refused, named."""
    await world.write(submitted())
    async with world.gateway() as client:
        answer = await client.call("GET", EVENTS, headers={"Last-Event-ID": last})
        problem = answer.json if answer.status == 400 else None

    assert problem is not None
    assert problem["errors"][0]["path"] == "Last-Event-ID"


async def test_quiet_stream_says_that_it_lives(world: World) -> None:
    """Comments come while nothing happens."""
    world.settings = patient(heartbeat=0.02)
    await world.write(submitted())
    async with world.gateway() as client, opened(client, f"{EVENTS}?from=now") as events:
        async with asyncio.timeout(10):
            assert [await anext(events) for _ in range(3)] == [None] * 3


async def test_a_busy_partition_is_passed_over(world: World) -> None:
    """While only others' records come, comments do too, with ids behind what was passed over."""
    world.settings = patient(heartbeat=0.2)
    await world.write(submitted())
    line = LogLine(rank=0, stream="stdout", level="info", time_ms=1, text="theirs")
    theirs = LogsPrinted(experiment_id="other", trial_id="other.0", run=1, lines=[line])

    async def others() -> None:
        while True:
            await world.write(theirs)
            await asyncio.sleep(0.01)

    path = f"/experiments/{EXPERIMENT}/logs/stream"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with world.gateway() as client, asyncio.timeout(20):
        writing = asyncio.create_task(others())
        async with client.session.get(f"{client.url}/api/v1{path}", headers=headers) as response:
            said = [(await response.content.readline()).decode().strip() for _ in range(8)]
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await world.write(_printed(0, (0, "mine")))
        last = said[5].removeprefix("id: ")
        async with opened(client, path, last) as events:
            (seen,) = await take(events, 1)

    assert said[0].startswith("retry: ")
    assert (said[3], said[6]) == (": still here", ": still here")
    assert sum(map(int, last.split("."))) > sum(map(int, said[2].removeprefix("id: ").split(".")))
    assert seen.data["lines"][0]["text"] == "mine"


async def test_stop_ends_streams(world: World) -> None:
    """A server that goes down ends its streams in good order, and does not wait for clients."""
    await world.write(submitted())
    async with contextlib.AsyncExitStack() as stack:
        gateway = world.gateway()
        client = await gateway.__aenter__()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        outlasting = Client(session, client.url)
        events = await stack.enter_async_context(opened(outlasting, EVENTS))
        await take(events, 1)
        async with asyncio.timeout(4):
            await gateway.__aexit__(None, None, None)
            with pytest.raises(StopAsyncIteration):
                await anext(events)


def _printed(index: int, *lines: tuple[int, str]) -> LogsPrinted:
    return LogsPrinted(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.{index}",
        run=1,
        lines=[
            LogLine(rank=rank, stream="stdout", level="info", time_ms=1, text=text)
            for rank, text in lines
        ],
    )


async def test_slow_client_is_cut_off(world: World) -> None:
    """A client that takes nothing is disconnected; the server holds next to nothing for it."""
    world.settings = patient(write_timeout=0.3)
    await world.write(submitted())
    line = "x" * 100_000
    await world.write(*(_printed(0, (0, line)) for _ in range(200)))
    async with world.gateway() as client:
        port = int(client.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(
            f"GET /api/v1/experiments/{EXPERIMENT}/logs/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with capture_logs() as logs:
            others = [await client.call("GET", "/status") for _ in range(3)]

            async def cut() -> bool:
                await asyncio.sleep(0.01)
                return any(it["event"] == "stream cut" for it in logs)

            await until(cut, bool)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1 << 20):
                pass
        writer.close()

    assert {answer.status for answer in others} == {200}


async def test_a_client_that_falls_behind_misses_nothing(world: World) -> None:
    """What comes while a client takes nothing is more than is held for it: it gets it all."""
    await world.write(submitted())
    text = "x" * 100_000
    async with world.gateway() as client:
        path = f"/experiments/{EXPERIMENT}/logs/stream"
        async with opened(client, path) as events:
            await world.write(_printed(0, (0, "first")))
            await take(events, 1)
            for number in range(200):
                await world.write(_printed(number % 5, (number, text)))
            seen = await take(events, 200)
            await world.write(_printed(0, (0, "last")))
            (last,) = await take(events, 1)

    lines = [(it.data["trial_id"], it.data["lines"][0]["rank"]) for it in seen]
    for index in range(5):
        mine = [rank for trial_id, rank in lines if trial_id == f"{EXPERIMENT}.{index}"]
        assert mine == list(range(index, 200, 5))
    assert last.data["lines"][0]["text"] == "last"


async def test_a_client_of_http_1_0_gets_no_chunks(world: World) -> None:
    """What is sent to it live is the frames alone, as what it missed is."""
    await world.write(submitted())
    async with world.gateway() as client:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(client.url.rpartition(":")[2])
        )
        writer.write(
            f"GET /api/v1{EVENTS} HTTP/1.0\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n\r\nretry: 1000\n\n")
            frames = [await reader.readuntil(b"\n\n")]
            for _ in range(3):
                await world.write(PauseRequested(experiment_id=EXPERIMENT))
                frames.append(await reader.readuntil(b"\n\n"))
        writer.close()

    names = [frame.partition(b"\n")[0] for frame in frames]
    pause = b"event: rung.experiment.pause_requested.v1"
    assert names == [b"event: rung.experiment.submitted.v1", pause, pause, pause]


async def test_printed_lines(world: World) -> None:
    """Lines of an experiment or of one trial, of one rank, of a severity."""
    await world.play(play(1))
    warning = LogLine(rank=1, stream="stderr", level="warning", time_ms=2, text="careful")
    await world.write(
        _printed(0, (0, "a"), (1, "b")),
        _printed(1, (0, "c")),
        LogsPrinted(experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.10", run=1, lines=[warning]),
        LogsPrinted(experiment_id="other", trial_id="other.0", run=1, lines=[warning]),
    )
    async with world.gateway() as client:

        async def texts(path: str, count: int) -> list[str]:
            async with opened(client, path) as events:
                seen = await take(events, count)
            return sorted(line["text"] for it in seen for line in it.data["lines"])

        base = f"/experiments/{EXPERIMENT}/logs/stream"
        assert await texts(base, 3) == ["a", "b", "c", "careful"]
        assert await texts(f"{base}?rank=0", 2) == ["a", "c"]
        assert await texts(f"{base}?level=warning", 1) == ["careful"]
        assert await texts(f"/trials/{EXPERIMENT}.1/logs/stream", 1) == ["c"]


async def test_reported_metrics(world: World) -> None:
    """Metrics as they were reported, of one kind if wanted."""
    rows = [
        MetricRow(kind=kind, step=1, time_ms=1, values={"loss": "NaN"})
        for kind in ("training", "validation")
    ]
    reported: list[Payload] = [
        MetricsReported(experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.{n}", run=1, rows=rows)
        for n in range(5)
    ]
    await world.write(submitted(), *reported)
    async with world.gateway() as client:
        path = f"/experiments/{EXPERIMENT}/metrics/stream?kind=validation"
        async with opened(client, path) as events:
            seen = await take(events, 5)
        async with opened(client, path, seen[2].id) as events:
            rest = await take(events, 2)

    assert {it.data["trial_id"] for it in seen} == {f"{EXPERIMENT}.{n}" for n in range(5)}
    assert rest == seen[3:]
    assert seen[0].data["rows"] == [
        {"kind": "validation", "step": 1, "time_ms": 1, "values": {"loss": "NaN"}}
    ]


class _Retention(MemoryLedger):
    """Took away the records of `logs` before `first`, as a Kafka cluster does in time."""

    first = 0

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        return self.first if topic == "logs" else await super().start(topic, partition)

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on."""
        if position < await self.start(topic, partition):
            raise LedgerTrimmed(f"{position} is no longer there", first=self.first)
        async for records in super().follow(topic, partition, position):
            yield records


@pytest.mark.parametrize(
    "path", [f"/experiments/{EXPERIMENT}/logs/stream", f"/trials/{EXPERIMENT}.0/logs/stream"]
)
async def test_what_retention_took_away_is_left_out(world: World, path: str) -> None:
    """A stream from the start, or after an id of long ago, goes on with what there still is."""
    ledger = _Retention(partitions=1)
    world = World(ledger, world.store)
    await world.play(play(1))
    await world.write(*(_printed(0, (0, text)) for text in "abc"))
    async with world.gateway() as client:
        async with opened(client, path) as events:
            (oldest, _, _) = await take(events, 3)
        ledger.first = 2
        for last in (None, oldest.id):
            async with opened(client, path, last) as events:
                (seen,) = await take(events, 1)
            assert [line["text"] for line in seen.data["lines"]] == ["c"]


async def test_submission_is_streamed_live(world: World, client: Client) -> None:
    """What the searcher decides reaches a client that was there before."""
    async with world.searcher():
        experiment = (await client.submit(EXPERIMENT_FILE)).json["experiment_id"]
        async with opened(client, f"/experiments/{experiment}/events") as events:
            seen = await take(events, 6)

    assert {it.name for it in seen} == {
        "rung.experiment.submitted.v1",
        "rung.search.planned.v1",
        "rung.trial.requested.v1",
        "rung.run.requested.v1",
    }


async def test_little_is_held_for_a_client_that_takes_nothing() -> None:
    """Of a long history of large records; they are sent in order once it takes them."""
    ledger = MemoryLedger(partitions=1)
    rows = [MetricRow(kind="training", step=0, time_ms=0, values={"x" * 200: 0.0})] * 300
    for number in range(150):
        data = MetricsReported(
            experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.0", run=number, rows=rows
        )
        await ledger.append([Draft.of(_reported(data, number))])

    class Copying(MemoryLedger):
        """Gives bytes of their own to each reader, as a ledger in a file does."""

        async def read(
            self, topic: str, partition: int, position: int, limit: int
        ) -> list[Record]:
            """Return copies."""
            found = await ledger.read(topic, partition, position, limit)
            return [structs.replace(it, value=bytes(bytearray(it.value))) for it in found]

    class Client:
        quiet_s = 0.0

        def __init__(self) -> None:
            self.reached, self.takes = asyncio.Event(), asyncio.Event()
            self.runs: list[int] = []

        async def send(self, data: bytes) -> None:
            self.reached.set()
            await self.takes.wait()
            self.runs += [int(run) for run in re.findall(rb'"run":(\d+)', data)]

    def render(record: Record) -> Frame:
        return Frame("metrics", msgspec.json.encode(decode(record.value).data))

    context = SimpleNamespace(
        ledger=Copying(), closing=asyncio.Event(), settings=SimpleNamespace(heartbeat=60.0)
    )
    client = Client()
    source, interest = Source(topic.METRICS, 0), Interest(None, None, render)
    reading = _Stream(context, client, [source], [0], interest)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        task = asyncio.create_task(reading._catch_up(0, 150))
        async with asyncio.timeout(20):
            await client.reached.wait()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
    client.takes.set()
    await task
    assert client.runs == list(range(150))


def _reported(data: MetricsReported, number: int) -> Event:
    """Return a report as its agent appends it."""
    return fact(
        data,
        source="/rung/agent/a",
        origin="agent/a",
        sequence=number + 1,
        time="2026-01-01T00:00:00Z",
    )
