"""Exports, and their way back into another ledger."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rung.events import TOPICS, LedgerError, Payload, decode, partition_of, topic
from rung.events.deadletter import MessageDropped, MessageTaken
from rung.ledger import Draft, Ledger, MemoryLedger, SqliteLedger
from rung.ledger.export.export import export, history, import_
from support.ledger.conformance import draft, read_all
from support.ledger.events import populate, state_fact

EXPERIMENTS = ["aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd", "eeeeeeee"]
EXPORTED = [name for name in TOPICS if name not in {topic.HEARTBEATS, topic.DEADLETTER}]

Json = dict[str, Any]


async def exported(ledger: Ledger, experiment_id: str | None = None) -> list[bytes]:
    """Return the lines of an export."""
    out = io.BytesIO()
    await export(ledger, out, experiment_id=experiment_id)
    return out.getvalue().splitlines(keepends=True)


async def original() -> MemoryLedger:
    """Return a ledger in which five experiments were decided."""
    ledger = MemoryLedger()
    await populate(ledger, EXPERIMENTS)
    return ledger


def essence(line: bytes) -> Json:
    """Return a line's event without the positions, which each ledger has of its own."""
    event: Json = json.loads(line)["event"]
    event.pop("causeposition", None)
    return event


async def contents(ledger: Ledger) -> dict[tuple[str, int], list[tuple[str, bytes]]]:
    """Return all keys and values of a ledger, in order."""
    return {
        (name, partition): [
            (record.key, record.value) for record in await read_all(ledger, name, partition)
        ]
        for name in EXPORTED
        for partition in range(ledger.partitions(name))
    }


async def causes_hold(ledger: Ledger) -> int:
    """Check that each decision points at its fact; return how many there are."""
    decisions = 0
    async for record in history(ledger):
        event = decode(record.value)
        if event.causeposition is not None:
            facts = topic.POOLS if record.topic == topic.PLACEMENTS else topic.EXPERIMENTS
            (fact,) = await ledger.read(facts, record.partition, event.causeposition, 1)
            assert decode(fact.value).id == event.cause
            decisions += 1
    return decisions


async def test_format() -> None:
    """A header with version and count, then one JSON object per record with its event."""
    ledger = await original()
    header, *lines, end = [json.loads(line) for line in await exported(ledger)]
    assert header["format"] == "rung-ledger"
    assert (header["version"], header["ledger"], header["rung"]) == (3, ledger.id, "0.1.0")
    assert (end["format"], end["lines"]) == ("rung-ledger-end", 1 + len(lines))
    assert header["experiment"] is None
    assert header["records"] == len(lines) == 5 * (5 * 5 + 2)
    first = lines[0]
    assert list(first) == ["topic", "partition", "position", "key", "event"]
    assert first["event"]["specversion"] == "1.0"


async def test_facts_come_before_their_decisions() -> None:
    """Whoever reads an export forward knows each decision's fact, and each stream's order."""
    seen: set[str] = set()
    last: dict[tuple[str, int], int] = {}
    for line in (await exported(await original()))[1:-1]:
        record = json.loads(line)
        assert record["event"].get("cause") is None or record["event"]["cause"] in seen
        seen.add(record["event"]["id"])
        stream = (record["topic"], record["partition"])
        assert record["position"] > last.get(stream, -1)
        last[stream] = record["position"]


async def test_one_experiment() -> None:
    """Its facts, decisions, metrics and logs; nothing of others, nothing that all share."""
    ledger = await original()
    header, *lines, _ = [json.loads(line) for line in await exported(ledger, "bbbbbbbb")]
    assert header["experiment"] == "bbbbbbbb"
    assert {line["key"] for line in lines} == {"bbbbbbbb", "bbbbbbbb.0"}
    assert {line["topic"] for line in lines} == {
        *(topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS, topic.METRICS, topic.LOGS)
    }
    assert len(lines) == 25
    with pytest.raises(LedgerError, match="no experiment 'zzz'"):
        await exported(ledger, "zzz")


async def test_an_export_is_of_one_moment() -> None:
    """What is appended while it is written is left out, so that the count holds."""
    ledger = await original()
    stream = ledger._stream(topic.LOGS, partition_of("aaaaaaaa.0", 4))

    class Busy(io.BytesIO):
        """Lets the ledger grow at each line."""

        def write(self, data: Any, /) -> int:
            stream.records.append(structs.replace(stream.records[0], position=stream.end))
            return super().write(data)

    out = Busy()
    assert await export(ledger, out) == 135
    assert len(out.getvalue().splitlines()) == 137


@pytest.mark.parametrize("partitions", [1, 4, 7])
async def test_whole_round_trip(partitions: int) -> None:
    """A whole ledger comes back, in one of other partitions too, and exports the same again."""
    ledger = await original()
    again = MemoryLedger(partitions=partitions)
    imported = await import_(again, await exported(ledger))
    assert imported.records == 135
    assert imported.experiments == EXPERIMENTS
    assert await causes_hold(again) == await causes_hold(ledger) == 55
    if partitions == 4:
        assert await contents(again) == await contents(ledger)


async def dropped(ledger: Ledger) -> list[str]:
    """Return the ids of the facts that dead letters drop."""
    found = []
    for partition in range(ledger.partitions(topic.DEADLETTER)):
        for record in await read_all(ledger, topic.DEADLETTER, partition):
            data = decode(record.value).data
            assert isinstance(data, MessageDropped)
            (at,) = await ledger.read(data.topic, data.partition, data.position, 1)
            found.append(decode(at.value).id)
    return found


@pytest.mark.parametrize("experiment_id", [None, "bbbbbbbb"])
async def test_dropped_facts_are_dropped_elsewhere(experiment_id: str | None) -> None:
    """Where they lie there; other dead letters are about the former home, and stay there."""
    ledger = await original()
    partition = partition_of("bbbbbbbb", 4)
    facts = await read_all(ledger, topic.EXPERIMENTS, partition)
    fact_id = next(decode(it.value).id for it in facts if it.key == "bbbbbbbb")
    position = next(it.position for it in facts if it.key == "bbbbbbbb")
    drop = MessageDropped(
        topic=topic.EXPERIMENTS,
        partition=partition,
        position=position,
        key="bbbbbbbb",
        reader="searcher",
    )
    taken = MessageTaken(**structs.asdict(drop))
    retired = structs.replace(drop, topic=topic.RETIREMENTS)
    told: list[Payload] = [drop, taken, retired]
    for number, data in enumerate(told):
        await state_fact(ledger, data, 10_000 + number)
    lines = await exported(ledger, experiment_id)
    letters = [line for line in lines if b'"topic":"deadletter"' in line]
    assert len(letters) == (3 if experiment_id is None else 1)
    again = MemoryLedger(partitions=7)
    imported = await import_(again, lines)
    assert imported.records == json.loads(lines[0])["records"]
    assert await dropped(again) == [fact_id]


@pytest.mark.parametrize("version", [1, 2])
async def test_exports_of_former_formats(version: int) -> None:
    """They have no dead letters, and come in as ever."""
    ledger = await original()
    header, *lines, end = await exported(ledger)
    former = json.dumps(json.loads(header) | {"version": version}).encode()
    again = MemoryLedger()
    await import_(again, [former, *lines, *([end] if version == 2 else [])])
    assert await contents(again) == await contents(ledger)


async def test_what_is_no_decision_comes_back_as_it_was() -> None:
    """An event without a cause among decisions is exported, for whoever looks at what it broke."""
    ledger, again = await original(), MemoryLedger()
    (fact, *_) = await ledger.read(topic.EXPERIMENTS, partition_of("aaaaaaaa", 4), 0, 1)
    await ledger.append([Draft(topic.SEARCHES, "aaaaaaaa", fact.value)])
    assert (await import_(again, await exported(ledger))).records == 136
    place = (topic.SEARCHES, partition_of("aaaaaaaa", 4))
    assert (await read_all(again, *place))[-1].value == fact.value


@pytest.mark.ledger
async def test_experiment_into_a_ledger_in_use(tmp_path: Path) -> None:
    """One experiment comes into a ledger with others; its decisions find its facts there."""
    lines = await exported(await original(), "cccccccc")
    ledger = await SqliteLedger.open(tmp_path)
    await populate(ledger, ["xxxxxxxx", "yyyyyyyy", "zzzzzzzz", "wwwwwwww"])
    before = await causes_hold(ledger)
    imported = await import_(ledger, (line.decode() for line in lines))
    assert imported.experiments == ["cccccccc"]
    assert await causes_hold(ledger) == before + 10
    again = await exported(ledger, "cccccccc")
    assert [essence(line) for line in again[1:-1]] == [essence(line) for line in lines[1:-1]]
    await ledger.close()


async def test_unknown_fields_and_order_survive() -> None:
    """What a newer minor version added to an event stays; only the fact's position changes."""
    lines = await exported(await original(), "aaaaaaaa")
    record = json.loads(lines[2])
    record["event"]["data"]["added_later"] = {"b": 1, "a": [1.50]}
    record["event"]["weather"] = "fine"
    lines[2] = json.dumps(record).encode()
    ledger = MemoryLedger(partitions=1)
    await ledger.append([draft("other")])
    await import_(ledger, lines)
    (kept,) = await ledger.read(record["topic"], 0, 0, 1)
    expected = record["event"] | {"causeposition": 1}
    assert json.loads(kept.value) == expected
    assert list(json.loads(kept.value)) == list(expected)


async def test_what_is_no_event_survives() -> None:
    """Values that cannot be decoded, or hold a line break, are kept byte for byte."""
    ledger = await original()
    values = [b"\xff\x00 no event\n", b"{}", b'{\n"id": 1}']
    await ledger.append([draft("aaaaaaaa", value) for value in values])
    again = MemoryLedger()
    await import_(again, await exported(ledger))
    assert await contents(again) == await contents(ledger)


async def test_consumers_are_moved_behind() -> None:
    """A forwarder that had read all does not act on what was imported."""
    lines = await exported(await original(), "aaaaaaaa")
    ledger = MemoryLedger()
    consumers = [("scheduler-intake", topic.SEARCHES)]
    await import_(ledger, lines, consumers=consumers)
    for part in range(4):
        end = await ledger.end(topic.SEARCHES, part)
        assert await ledger.position("scheduler-intake", topic.SEARCHES, part) == end
    await ledger.append([draft("k", name=topic.SEARCHES)])
    with pytest.raises(LedgerError, match="scheduler-intake has not read all of searches"):
        await import_(ledger, await exported(await original(), "bbbbbbbb"), consumers=consumers)


def edit(number: int, change: Callable[[Json], object]) -> Callable[[list[bytes]], None]:
    """Return a function that changes the JSON of a line, counted from 1."""

    def apply(lines: list[bytes]) -> None:
        parsed = json.loads(lines[number - 1])
        change(parsed)
        lines[number - 1] = json.dumps(parsed).encode() + b"\n"

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (list[bytes].clear, "line 1: this is not an export"),
        (lambda lines: lines.__setitem__(0, b"\x1f\x8b"), "line 1: this is not an export"),
        (
            edit(1, lambda line: line.update(format="tar")),
            "line 1: this is not an export .* 'tar'",
        ),
        (edit(1, lambda line: line.update(version=4)), "line 1: .* format version 4.*Upgrade"),
        (edit(1, lambda line: line.pop("records")), "line 1: .*records"),
        (lambda lines: lines.__setitem__(4, lines[4][:50]), "line 5 is damaged"),
        (lambda lines: lines.__setitem__(4, b"\n"), "line 5 is damaged"),
        (edit(5, lambda line: line.update(topic="weather")), "line 5 .* unknown topic 'weather'"),
        (edit(5, lambda line: line.update(topic="heartbeats")), "line 5 .* unknown topic"),
        (edit(5, lambda line: line.update(key="other")), "line 5 .* key"),
        (edit(5, lambda line: line.pop("event")), "line 5 .*neither"),
        (edit(5, lambda line: line["event"].update(type="rung.x.v9")), "line 5 .* newer Rung"),
        (edit(5, lambda line: line["event"].pop("data")), "line 5 .*data"),
        (edit(3, lambda line: line["event"].pop("cause")), "line 3 .* without its cause"),
        (edit(3, lambda line: line["event"].update(cause="x")), "line 3: the fact .* is missing"),
        (lambda lines: lines.__delitem__(1), "line 2: the fact of this decision is missing"),
        (lambda lines: lines.insert(2, lines[1]), "line 3 is out of order"),
        (lambda lines: lines.__delitem__(-1), "not complete: its last line is missing"),
        (lambda lines: lines.__delitem__(-2), "not complete: it should hold 25 .* holds 24"),
    ],
)
async def test_damaged_exports(damage: Callable[[list[bytes]], None], message: str) -> None:
    """Each is refused with the line and the reason, and nothing is written."""
    lines = await exported(await original(), "aaaaaaaa")
    damage(lines)
    ledger = MemoryLedger()
    with pytest.raises(LedgerError, match=message):
        await import_(ledger, lines)
    assert not any((await contents(ledger)).values())


async def test_already_there() -> None:
    """An experiment is not imported twice, nor a whole ledger beside another's pools."""
    ledger = await original()
    before = await contents(ledger)
    with pytest.raises(LedgerError, match="experiment bbbbbbbb is in this ledger already"):
        await import_(ledger, await exported(ledger, "bbbbbbbb"))
    other = MemoryLedger()
    await populate(other, ["ffffffff"])
    with pytest.raises(LedgerError, match="pool 'default' has a history in this ledger"):
        await import_(ledger, await exported(other))
    assert await contents(ledger) == before
