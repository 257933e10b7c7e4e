"""Live streams of an experiment's events, metrics and printed lines."""

from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Struct, structs

from rung.events import Payload, UndecodableEvent, decode, encode, partition_of, topic
from rung.events.checkpoint import CheckpointDeletionRequested, CheckpointPinned, PinAnswered
from rung.events.codec import decode_head
from rung.events.experiment import DeletionRequested, DeletionScheduled, ExperimentRestored
from rung.events.metric import LogsDropped, LogsPrinted, MetricsReported, missing_text
from rung.gateway.access.authorization import access_of
from rung.gateway.context import context_of, experiment_id_of, trial_of
from rung.gateway.projections.experiments import ExperimentProjection
from rung.gateway.requests import after
from rung.gateway.requests.query import read_query
from rung.gateway.route import Route
from rung.gateway.routes.logs import Level
from rung.gateway.streams.feed import Frame, Interest, Source, end_of
from rung.gateway.streams.sse import stream
from rung.ledger import Record
from rung.runtime.projection.merge import starts_of

_TOPICS: Final = (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS)
_LEVELS: Final[dict[Level, int]] = {
    "debug": 0,
    "info": 1,
    "warning": 2,
    "error": 3,
    "critical": 4,
}

_Begin = Annotated[
    Literal["start", "now"],
    Meta(
        description="send all that there is first, or only what is new; Last-Event-ID goes first"
    ),
]


class EventQuery(Struct, forbid_unknown_fields=True, rename={"begin": "from"}):
    """Where to begin."""

    begin: _Begin = "start"


class MetricQuery(Struct, forbid_unknown_fields=True, rename={"begin": "from"}):
    """Where to begin, and which metrics."""

    begin: _Begin = "start"
    kind: Annotated[str, Meta(max_length=500, description="of this kind alone")] | None = None


class LineQuery(Struct, forbid_unknown_fields=True, rename={"begin": "from"}):
    """Where to begin, and which lines."""

    begin: _Begin = "start"
    rank: Annotated[int, Meta(ge=0, le=1_000_000, description="of this process alone")] | None = (
        None
    )
    level: Annotated[Level, Meta(description="this severe or more")] | None = None


async def stream_events(request: web.Request) -> web.StreamResponse:
    """Stream an experiment's events: CloudEvents under the name of their type.

    Events of one topic come in order; a decision may come before the fact that it answers. What
    its writer repeated is on record twice, under one CloudEvents id. What is relayed from one of
    the streamed topics to another comes once. The header `Rung-After` names the places whose
    positions an event's id holds: with these, less one, in it, a client reads what it has seen.
    """
    query = read_query(request, EventQuery)
    context, experiment_id = context_of(request), await experiment_id_of(request)
    partition = partition_of(experiment_id, context.ledger.partitions(topic.EXPERIMENTS))
    sources = [Source(name, partition) for name in _TOPICS]
    known = await context.models.read(ExperimentProjection, starts_of, experiment_id)
    starts = [known.get(name, 0) for name in _TOPICS]
    if query.begin == "now":
        starts = await end_of(context.ledger, sources)

    in_full = access_of(request).seen is None

    def render(record: Record) -> Frame | None:
        if record.key != experiment_id:
            return None
        try:
            event = decode(record.value)
        except UndecodableEvent:
            return None  # it is among the dead letters
        if not in_full and isinstance(event.data, CheckpointPinned | PinAnswered):
            return None  # by an experiment that may be another's
        repeats = record.topic != event.data.TOPIC and event.data.TOPIC in _TOPICS
        if repeats:
            return None
        data = event.data
        shown = data if in_full else _without_others(data)
        if shown is not data:
            return Frame(data.TYPE, encode(structs.replace(event, data=shown)))
        return Frame(decode_head(record.value).type, record.value)

    interest = Interest(experiment_id, ("events", in_full), render)
    places = after.token_of(context.ledger.id, {(name, partition): -1 for name in _TOPICS})
    return await stream(request, sources, starts, interest, {after.HEADER: places})


def _without_others(data: Payload) -> Payload:
    """Return what an event says without the names of other experiments."""
    match data:
        case CheckpointDeletionRequested() | DeletionRequested() | DeletionScheduled():
            return structs.replace(data, despite=[])
        case ExperimentRestored():
            return structs.replace(data, reason="")
        case _:
            return data


async def stream_metrics(request: web.Request) -> web.StreamResponse:
    """Stream what an experiment's trials report: `{trial_id, run, rows}` under `metrics`."""
    query = read_query(request, MetricQuery)
    experiment_id = await experiment_id_of(request)

    def render(record: Record) -> Frame | None:
        data = _data_of(record)
        if not isinstance(data, MetricsReported):
            return None
        rows = [row for row in data.rows if query.kind in {None, row.kind}]
        return _frame("metrics", data.trial_id, data.run, rows=rows) if rows else None

    interest = Interest(experiment_id, query.kind, render)
    return await _stream(request, topic.METRICS, query.begin, interest)


async def stream_experiment_logs(request: web.Request) -> web.StreamResponse:
    """Stream what an experiment's trials print: `{trial_id, run, lines}` under `logs`."""
    query = read_query(request, LineQuery)
    interest = _lines_of(await experiment_id_of(request), None, query)
    return await _stream(request, topic.LOGS, query.begin, interest)


async def stream_trial_logs(request: web.Request) -> web.StreamResponse:
    """Stream what a trial prints: `{trial_id, run, lines}` under `logs`."""
    query = read_query(request, LineQuery)
    experiment, trial = await trial_of(request)
    trial_id = f"{experiment.id}.{trial.index}"
    partition = partition_of(trial_id, context_of(request).ledger.partitions(topic.LOGS))
    interest = _lines_of(experiment.id, trial_id, query)
    return await _stream(request, topic.LOGS, query.begin, interest, partition)


async def _stream(
    request: web.Request,
    name: str,
    begin: Literal["start", "now"],
    interest: Interest,
    partition: int | None = None,
) -> web.StreamResponse:
    ledger = context_of(request).ledger
    chosen = range(ledger.partitions(name)) if partition is None else [partition]
    sources = [Source(name, number) for number in chosen]
    starts = await end_of(ledger, sources) if begin == "now" else [0] * len(sources)
    return await stream(request, sources, starts, interest)


def _lines_of(experiment_id: str, trial_id: str | None, query: LineQuery) -> Interest:
    """Return the interest in an experiment's lines, or in those of one of its trials."""
    least = 0 if query.level is None else _LEVELS[query.level]

    def render(record: Record) -> Frame | None:
        if trial_id not in {None, record.key}:
            return None
        data = _data_of(record)
        if isinstance(data, LogsDropped):
            shown = query.rank in {None, data.rank} and least <= _LEVELS["warning"]
            return _frame("logs", data.trial_id, data.run, lines=[_mark(data)]) if shown else None
        if not isinstance(data, LogsPrinted):
            return None
        lines = [
            line
            for line in data.lines
            if query.rank in {None, line.rank} and _LEVELS[line.level] >= least
        ]
        return _frame("logs", data.trial_id, data.run, lines=lines) if lines else None

    return Interest(experiment_id, (trial_id, query.rank, query.level), render)


def _mark(data: LogsDropped) -> dict[str, object]:
    """Return the line that says what is missing; no script can print one of this stream."""
    return {
        "rank": data.rank,
        "stream": "dropped",
        "level": "warning",
        "time_ms": data.time_ms,
        "text": missing_text(data),
    }


def _data_of(record: Record) -> object:
    try:
        return decode(record.value).data
    except UndecodableEvent:
        return None


def _frame(name: str, trial_id: str, run: int, **parts: object) -> Frame:
    return Frame(name, msgspec.json.encode({"trial_id": trial_id, "run": run, **parts}))


_SSE: Final = "text/event-stream"

ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/events",
        stream_events,
        "An experiment's events, live",
        media_type=_SSE,
        query=EventQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/metrics/stream",
        stream_metrics,
        "What an experiment's trials report, live",
        media_type=_SSE,
        query=MetricQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/logs/stream",
        stream_experiment_logs,
        "What an experiment's trials print, live",
        media_type=_SSE,
        query=LineQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "GET",
        "/trials/{trial_id}/logs/stream",
        stream_trial_logs,
        "What a trial prints, live",
        media_type=_SSE,
        query=LineQuery,
        problems=(404, 409),
        needs="experiment.view",
    ),
)
