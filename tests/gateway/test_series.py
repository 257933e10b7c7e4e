"""Curves and printed lines, from whoever keeps them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from gateway.conftest import World
from rung import api
from rung.events import Event, RungError, decode
from rung.events.metric import LogLine, LogsDeleted, LogsPrinted, MetricRow, MetricsReported
from rung.gateway.series import Point, Series
from rung.metrics import SeriesStore
from rung.metrics.clickhouse.address import PASSWORD
from servers.clickhouse import ClickHouse, installed
from support.gateway.client import Client
from support.gateway.scenario import EXPERIMENT, play

TRIAL = f"{EXPERIMENT}.0"


class Kept:
    """A series in memory, which remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, object] = {}
        self.broken: Exception | None = None

    async def curve(self, trial_id: str, kind: str, name: str, points: int) -> Sequence[Point]:
        """Return three points, two of them not finite."""
        if self.broken:
            raise self.broken
        self.asked = {"kind": kind, "name": name, "points": points}
        return [(1, 0.5, 10), (2, math.nan, 20), (3, -math.inf, 30)]

    async def overlay(
        self, experiment_id: str, kind: str, name: str, points: int
    ) -> Mapping[str, Sequence[Point]]:
        """Return the curve of one trial."""
        return {TRIAL: await self.curve(TRIAL, kind, name, points)}

    async def names(self, experiment_id: str) -> Sequence[tuple[str, str]]:
        """Return one name."""
        return [("validation", "error")]

    async def logs(self, selection: api.LogSelection) -> tuple[list[api.LogLine], str | None]:
        """Return one line."""
        self.asked = selection._asdict()
        if selection.after == "bad":
            raise ValueError("after is 'bad': give the cursor that came with the page before")
        line = api.LogLine(
            trial_id=TRIAL, run=1, rank=0, stream="stdout", level="info", time_ms=10, text="hello"
        )
        return [line], "next"

    async def log_sizes(
        self, experiment_id: str | None, before_ms: int
    ) -> Sequence[api.TrialLines]:
        """Return what two trials printed."""
        self.asked = {"experiment_id": experiment_id, "before_ms": before_ms}
        return [
            api.TrialLines(EXPERIMENT, TRIAL, 3, 30, 20),
            api.TrialLines(EXPERIMENT, f"{EXPERIMENT}.1", 1, 5, 10),
        ]


def test_store_of_the_metrics_service_fits(tmp_path: Path) -> None:
    """What keeps the series in an installation has what the gateway asks for (mypy checks it)."""
    store: Series = SeriesStore(tmp_path, ledger_id="x")

    assert store


@pytest.fixture
async def kept(world: World) -> Kept:
    """Return the series of the world, which has an ended search."""
    await world.play(play(1))
    world.series = kept = Kept()
    return kept


async def test_curves(kept: Kept, client: Client) -> None:
    """Of one trial and of all; the searcher's metric unless another is named; NaN by name."""
    points = [[1, 0.5, 10], [2, "NaN", 20], [3, "-Infinity", 30]]
    one = await client.get(f"/trials/{TRIAL}/metrics?points=50")
    asked = kept.asked
    every = await client.get(f"/experiments/{EXPERIMENT}/metrics?kind=training&name=loss")

    assert one["points"] == points
    assert every["curves"] == {TRIAL: points}
    assert every["names"] == [{"kind": "validation", "name": "error"}]
    assert asked == {"kind": "validation", "name": "error", "points": 50}
    assert kept.asked == {"kind": "training", "name": "loss", "points": 200}


async def test_lines(kept: Kept, client: Client) -> None:
    """Every choice reaches the series; times are read as RFC 3339 or as milliseconds."""
    page = await client.get(
        f"/trials/{TRIAL}/logs?rank=0&level=error&text=a%20b&since=2026-01-01T00:00:00Z"
        "&until=1767225600001&after=x&limit=5&order=newest"
    )

    assert page == {
        "items": [
            {
                "trial_id": TRIAL,
                "run": 1,
                "rank": 0,
                "stream": "stdout",
                "level": "info",
                "time_ms": 10,
                "text": "hello",
            }
        ],
        "next_cursor": "next",
    }
    assert kept.asked == {
        "experiment_id": EXPERIMENT,
        "trial_id": TRIAL,
        "rank": 0,
        "level": "error",
        "text": "a b",
        "since_ms": 1_767_225_600_000,
        "until_ms": 1_767_225_600_001,
        "after": "x",
        "limit": 5,
        "order": "newest",
    }
    await client.get(f"/experiments/{EXPERIMENT}/logs")
    assert (kept.asked["trial_id"], kept.asked["limit"]) == (None, 200)
    assert kept.asked["order"] == "oldest"


async def test_lines_are_deleted_by_a_fact(kept: Kept, world: World, client: Client) -> None:
    """A dry run writes nothing; a deletion is one fact for each trial, with who asked for it."""

    async def facts() -> list[Event]:
        found = []
        for partition in range(world.ledger.partitions("logs")):
            records = await world.ledger.read("logs", partition, 0, 100)
            found += [decode(record.value) for record in records]
        return [event for event in found if isinstance(event.data, LogsDeleted)]

    path = f"/logs/collect?experiment={EXPERIMENT}&before=5000"
    said = (await client.call("POST", f"{path}&dry_run=true")).json
    assert await facts() == []
    item = {"experiment_id": EXPERIMENT, "trials": 2, "lines": 4, "size_bytes": 35}
    whole = {"before_ms": 5000, "items": [item], "lines": 4, "size_bytes": 35}
    assert said == whole | {"dry_run": True}
    said = (await client.call("POST", path)).json
    assert said == whole | {"dry_run": False}
    assert kept.asked == {"experiment_id": EXPERIMENT, "before_ms": 5000}
    written = {event.data.trial_id: event for event in await facts()}  # type: ignore[union-attr]
    assert written[TRIAL].data == LogsDeleted(
        experiment_id=EXPERIMENT, trial_id=TRIAL, before_ms=5000, lines=3, size_bytes=30
    )
    assert {event.actor for event in written.values()} == {"admin"}
    assert len(written) == 2
    refused = await client.call("POST", "/logs/collect")
    assert (refused.status, refused.json["errors"][0]["path"]) == (400, "before")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("rank=-1", "rank"),
        ("level=loud", "level"),
        ("since=yesterday", "since"),
        ("until=2026-01-01T00:00:00", "until"),
        ("since=99999999999999999999", "since"),
        ("after=bad", "after"),
        ("limit=0", "limit"),
        ("limit=20001", "limit"),
        ("order=random", "order"),
    ],
)
async def test_bad_choice(kept: Kept, client: Client, query: str, name: str) -> None:
    """A choice that cannot be is refused, named."""
    answer = await client.call("GET", f"/experiments/{EXPERIMENT}/logs?{query}")

    assert (answer.status, answer.json["errors"][0]["path"]) == (400, name)


@pytest.mark.parametrize("points", [0, 4, 10_001, "many"])
async def test_bad_number_of_points(kept: Kept, client: Client, points: object) -> None:
    """A curve has five points at least: its ends, its extremes, and one that is not finite."""
    answer = await client.call("GET", f"/trials/{TRIAL}/metrics?points={points}")

    assert (answer.status, answer.json["errors"][0]["path"]) == (400, "points")


async def test_series_that_fails(kept: Kept, client: Client) -> None:
    """What the series says about itself is passed on as 503."""
    kept.broken = RungError("series: memory is short")
    answer = await client.call("GET", f"/trials/{TRIAL}/metrics")

    assert (answer.status, answer.json["detail"]) == (503, "series: memory is short")


async def test_without_series(world: World) -> None:
    """A gateway without series answers 503 there, and everything else as ever."""
    await world.play(play(1))
    async with world.gateway() as client:
        for path in (f"/trials/{TRIAL}", f"/experiments/{EXPERIMENT}"):
            for kind in ("metrics", "logs"):
                answer = await client.call("GET", f"{path}/{kind}")
                assert (answer.status, answer.kind) == (503, "unavailable")
            assert (await client.call("GET", path)).status == 200


@pytest.fixture
def clickhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClickHouse]:
    """A server of the test's own, to be paused and killed."""
    if not installed():
        pytest.skip("no ClickHouse server: on Debian, apt-get install clickhouse-server")
    server = ClickHouse(tmp_path / "clickhouse")
    server.start()
    monkeypatch.setenv(PASSWORD, server.password)
    yield server
    server.kill()


async def test_curves_and_lines_from_a_server(world: World, clickhouse: ClickHouse) -> None:
    """What another process wrote is read; while the server is away, 503 there and there alone."""
    await world.play(play(1))
    world.series = reader = SeriesStore(
        f"{clickhouse.url}?timeout_s=0.5", ledger_id=world.ledger.id, read_only=True
    )
    curves, lines = f"/trials/{TRIAL}/metrics?kind=training&name=loss", f"/trials/{TRIAL}/logs"
    async with world.gateway() as client:

        async def statuses() -> list[int]:
            paths = (curves, lines, f"/trials/{TRIAL}")
            return [(await client.call("GET", path)).status for path in paths]

        assert await statuses() == [503, 503, 200], "nobody has made the tables"
        await _write(world, clickhouse.url)
        assert (await client.get(curves))["points"] == [[1, 0.5, 10], [2, "NaN", 20]]
        assert [line["text"] for line in (await client.get(lines))["items"]] == ["hello"]
        clickhouse.pause()
        assert await statuses() == [503, 503, 200]
        clickhouse.resume()
        assert await statuses() == [200, 200, 200]
        clickhouse.kill()
        answer = await client.call("GET", curves)
        assert (answer.status, answer.kind) == (503, "unavailable")
        assert "Connection refused" in answer.json["detail"]
        clickhouse.start()
        assert await statuses() == [200, 200, 200]
    await reader.close()


async def _write(world: World, url: str) -> None:
    """Write a curve and a line as the metrics service does."""
    rows = [
        MetricRow(kind="training", step=1, time_ms=10, values={"loss": 0.5}),
        MetricRow(kind="training", step=2, time_ms=20, values={"loss": "NaN"}),
    ]
    line = LogLine(rank=0, stream="stdout", level="info", time_ms=10, text="hello")
    await world.write(
        MetricsReported(experiment_id=EXPERIMENT, trial_id=TRIAL, run=1, rows=rows),
        LogsPrinted(experiment_id=EXPERIMENT, trial_id=TRIAL, run=1, lines=[line]),
    )
    store = SeriesStore(url, ledger_id=world.ledger.id)
    for name in ("metrics", "logs"):
        for partition in range(world.ledger.partitions(name)):
            store.absorb(await world.ledger.read(name, partition, 0, 100))
    await store.flush()
    await store.close()
