"""Whatever is altered in a sealed ledger or in an export is found, and named."""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from msgspec import structs

from rung.api import SealProblem, SealReport
from rung.events import LedgerError, topic
from rung.events.codec import PAYLOADS
from rung.events.deadletter import MessageDropped
from rung.ledger import Draft, MemoryLedger, SqliteLedger
from rung.ledger.export.export import export
from rung.ledger.export.format import TOPICS
from rung.ledger.seals import (
    SEALED,
    SealKey,
    group_name,
    parse_public,
    read_heads,
    record_trim,
    save_heads,
)
from rung.ledger.seals.exported import verify_export
from rung.ledger.seals.verify import Known, require_cover, verify
from rung.runtime.sealing.anchor import Anchor, read_anchor
from rung.runtime.sealing.sealer import Sealer
from support.ledger.events import populate, state_fact
from support.ledger.sealed import KINDS, altered, example, seal

KEY = SealKey.generate()
TIME = "2026-01-01T00:00:00.000Z"
UNSIGNED = "the export is not signed"

Row = tuple[int, str, bytes]
Found = set[tuple[str, int, int | None]]

pytestmark = pytest.mark.ledger


def named(report: SealReport) -> Found:
    """Return which records are named as altered or missing."""
    return {
        (problem.topic, problem.partition, position)
        for problem in report.problems
        if problem.first is not None and problem.last is not None
        for position in range(problem.first, problem.last + 1)
    }


class Attacker:
    """Whoever can write to a ledger's file, and puts back what it altered."""

    def __init__(self, folder: Path, ledger: SqliteLedger) -> None:
        self.ledger = ledger
        self.database = sqlite3.connect(folder / "ledger.db", isolation_level=None)
        self.database.execute("PRAGMA synchronous = OFF")
        self.topics: dict[int, str] = dict(
            self.database.execute("SELECT number, name FROM topics")
        )
        self.rows: list[Row] = list(self.database.execute("SELECT * FROM records ORDER BY id"))
        self.snapshots = list(self.database.execute("SELECT * FROM snapshots"))

    def place(self, number: int) -> tuple[str, int, int]:
        """Return topic, partition and position of a record's number."""
        return self.topics[number >> 50], number >> 40 & 1023, number & (1 << 40) - 1

    def of(self, name: str) -> list[Row]:
        """Return the records of a topic."""
        return [row for row in self.rows if self.place(row[0])[0] == name]

    def write(self, rows: list[Row]) -> None:
        """Have the ledger hold these records."""
        self.database.execute("BEGIN")
        self.database.execute("DELETE FROM records")
        self.database.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
        self.database.execute("COMMIT")

    async def verify(self, **known: Any) -> SealReport:
        """Return what verifying finds now, and put all back."""
        report = await verify(self.ledger, Known(keys=KEY.trusted, **known))
        self.write(self.rows)
        self.database.execute("DELETE FROM snapshots")
        self.database.executemany("INSERT INTO snapshots VALUES (?, ?, ?)", self.snapshots)
        return report


@pytest.fixture
async def attacker(tmp_path: Path) -> AsyncIterator[Attacker]:
    """Give a sealed ledger with records on every topic, a few of them in each range."""
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=1)
    await populate(ledger, ["aaaaaaaa", "bbbbbbbb"], rounds=2)
    populated = {name for name in SEALED if await ledger.end(name, 0)}
    for name in SEALED:
        if name not in populated:
            await ledger.append(
                [example(next(kind for kind in KINDS if name == PAYLOADS[kind].TOPIC))]
            )
    await seal(ledger, KEY, records=3)
    attacker = Attacker(tmp_path / "ledger", ledger)
    yield attacker
    attacker.database.close()
    await ledger.close()


async def test_a_ledger_as_it_was_sealed(attacker: Attacker) -> None:
    """Nothing is wrong, every record was verified, and nothing is left unsealed."""
    report = await attacker.verify()
    assert (report.problems, report.notes, report.unsealed) == ([], [], [])
    sealed = [row for row in attacker.rows if attacker.place(row[0])[0] in SEALED]
    assert report.records == len(sealed) > 20
    assert report.compared


async def test_each_field_of_each_type(tmp_path: Path) -> None:
    """Every field of every type of event, altered or removed, in the file and in an export."""
    changes: list[tuple[Draft, bytes]] = []
    for kind in KINDS:
        draft = example(kind)
        changes += [(draft, value) for _, value in altered(draft.value)]
    assert len(changes) > 1000
    ledger = await SqliteLedger.open(tmp_path, partitions=1)
    positions = await ledger.append([draft for draft, _ in changes])
    await seal(ledger, KEY, records=20)
    out = BytesIO()
    await export(ledger, out, key=KEY)
    expected = {
        (draft.topic, 0, position) for (draft, _), position in zip(changes, positions, strict=True)
    }
    values = {
        (draft.topic, 0, position): value
        for (draft, value), position in zip(changes, positions, strict=True)
    }
    attacker = Attacker(tmp_path, ledger)
    attacker.write(
        [
            (number, key, values.get(attacker.place(number), value))
            for number, key, value in attacker.rows
        ]
    )
    assert named(await attacker.verify()) == expected

    lines = out.getvalue().splitlines(keepends=True)
    forged = rewritten(
        [
            msgspec.json.encode(record | {"event": msgspec.Raw(values[place])}) + b"\n"
            if (place := place_of(line)) in values and (record := msgspec.json.decode(line))
            else line
            for line in lines[:-1]
        ],
        lines[-1],
    )
    carried = {place for place in expected if place[0] in TOPICS}
    assert carried <= named(await verify_export(forged, KEY.trusted))
    attacker.database.close()
    await ledger.close()


async def test_keys_of_records(attacker: Attacker) -> None:
    """A record whose key is another one is found, though its event is as it was."""
    for number, _, value in attacker.rows:
        if attacker.place(number)[0] in SEALED:
            attacker.write(
                [(number, "cccccccc", value) if row[0] == number else row for row in attacker.rows]
            )
            assert named(await attacker.verify()) == {attacker.place(number)}


async def test_each_record_removed_repeated_and_swapped(attacker: Attacker) -> None:
    """Each record in turn is removed, overwritten by the one before it, or swapped with it."""
    for before, row in pairwise(attacker.rows):
        place = attacker.place(row[0])
        rest = [other for other in attacker.rows if other[0] != row[0]]
        attacker.write(rest)
        removed = await attacker.verify()
        assert removed.problems, place
        if place[0] in SEALED:
            assert named(removed) == {place}
        if row[0] != before[0] + 1:
            continue
        attacker.write([*rest, (row[0], *before[1:])])
        assert place in named(await attacker.verify())
        rest.remove(before)
        attacker.write([*rest, (row[0], *before[1:]), (before[0], *row[1:])])
        assert {attacker.place(before[0]), place} <= named(await attacker.verify())


async def test_records_that_are_inserted(attacker: Attacker) -> None:
    """A record that is inserted moves those behind it: the first of them is named."""
    for name in SEALED:
        rows = attacker.of(name)
        first = rows[0][0]
        moved = [
            (number + 1, key, value) for number, key, value in rows if number >> 40 == first >> 40
        ]
        rest = [row for row in attacker.rows if row[0] >> 40 != first >> 40]
        attacker.write([*rest, rows[0], *moved])
        report = await attacker.verify()
        if len(moved) > 1:
            assert report.problems, name
        assert sum(item.count for item in report.unsealed) == 1


async def test_ends_that_are_cut_off(attacker: Attacker) -> None:
    """Records missing at each partition's end, alone and together with their seals."""
    streams: dict[int, list[Row]] = {}
    for row in attacker.rows:
        streams.setdefault(row[0] >> 40, []).append(row)
    for stream, rows in streams.items():
        for kept in range(len(rows)):
            gone = {row[0] for row in rows[kept:]}
            left = [row for row in attacker.rows if row[0] not in gone]
            attacker.write(left)
            report = await attacker.verify()
            assert report.problems, (attacker.place(stream << 40), kept)
            name, partition, _ = attacker.place(rows[0][0])
            if name in SEALED:
                assert (name, partition, kept) in named(report)
            place = f"{name}/{partition}"
            attacker.write([row for row in left if row[1] != place])
            assert (await attacker.verify()).problems, place


async def test_seals_that_are_altered(attacker: Attacker) -> None:
    """Each field of each seal, altered or removed; each two seals swapped."""
    seals = attacker.of(topic.SEALS)
    for number, key, value in (seals[0], seals[-1]):
        rest = [row for row in attacker.rows if row[0] != number]
        for path, other in altered(value):
            attacker.write([*rest, (number, key, other)])
            assert (await attacker.verify()).problems, path
        attacker.write([*rest, (number, "logs/77", value)])
        assert (await attacker.verify()).problems
    for one, after in pairwise(seals):
        rest = [row for row in attacker.rows if row[0] not in {one[0], after[0]}]
        attacker.write([*rest, (one[0], *after[1:]), (after[0], *one[1:])])
        assert (await attacker.verify()).problems


async def test_seals_or_heads_that_are_gone(attacker: Attacker) -> None:
    """Seals removed, the signed heads removed, or both; and each field of the heads altered."""
    unsealed = [row for row in attacker.rows if attacker.place(row[0])[0] != topic.SEALS]
    attacker.write(unsealed)
    assert (await attacker.verify()).problems
    attacker.database.execute("DELETE FROM snapshots")
    assert {problem.kind for problem in (await attacker.verify()).problems} == {"heads"}
    attacker.write(unsealed)
    attacker.database.execute("DELETE FROM snapshots")
    (problem,) = (await attacker.verify()).problems
    assert "there are no seals" in problem.text
    for partition in range(1):
        heads = await read_heads(attacker.ledger, partition)
        assert heads is not None
        for path, other in altered(msgspec.json.encode(heads)):
            attacker.database.execute(
                "UPDATE snapshots SET value = ? WHERE name = 'seals' AND partition = ?",
                (other, partition),
            )
            assert (await attacker.verify()).problems, path


async def test_a_foreign_key_seals_nothing(attacker: Attacker, tmp_path: Path) -> None:
    """Everything sealed anew with a key of the attacker's is found, where the key is known."""
    rows = [row for row in attacker.rows if attacker.place(row[0])[0] != topic.SEALS]
    attacker.write(rows[1:])
    attacker.database.execute("DELETE FROM snapshots")
    await seal(attacker.ledger, SealKey.generate())
    assert (await attacker.verify()).problems


async def test_an_earlier_copy_shows_by_the_anchor(attacker: Attacker, tmp_path: Path) -> None:
    """The ledger put back to an earlier copy of itself, heads and all, is found by the anchor."""
    earlier = attacker.snapshots
    await populate(attacker.ledger, ["cccccccc"])
    file = tmp_path / "anchor"
    sealer = Sealer(attacker.ledger, KEY, anchor=Anchor(str(file)))
    await sealer.finish()
    anchors = await read_anchor(str(file))
    assert (await verify(attacker.ledger, Known(keys=KEY.trusted, anchors=anchors))).whole
    attacker.snapshots = earlier
    attacker.write(attacker.rows)
    assert (await attacker.verify()).problems  # and puts the heads back, too
    assert (await attacker.verify()).whole
    report = await attacker.verify(anchors=anchors)
    assert {problem.kind for problem in report.problems} == {"heads"}


async def test_an_anchor_of_another_ledger(attacker: Attacker) -> None:
    """It shows nothing about this one, and that is said."""
    heads = await read_heads(attacker.ledger, 0)
    assert heads is not None
    (problem,) = (await attacker.verify(anchors=[structs.replace(heads, ledger="other")])).problems
    assert "none of this ledger" in problem.text


async def test_what_is_not_sealed_yet(attacker: Attacker) -> None:
    """Records behind the newest seal are named as such, which is no fault."""
    await attacker.ledger.append([example("rung.trial.closed.v1")])
    report = await attacker.verify()
    assert report.whole
    assert [(item.topic, item.count) for item in report.unsealed] == [(topic.SEARCHES, 1)]


async def test_a_record_far_behind_the_newest_seal(attacker: Attacker) -> None:
    """It is counted as one record, and those missing before it are named."""
    number, key, value = attacker.of(topic.SEARCHES)[-1]
    attacker.write([*attacker.rows, (number + 1_000_000, key, value)])
    report = await attacker.verify()
    assert [(item.topic, item.count) for item in report.unsealed] == [(topic.SEARCHES, 1)]
    first = attacker.place(number)[2] + 1
    assert [(problem.kind, problem.first, problem.last) for problem in report.problems] == [
        ("missing", first, first + 999_998)
    ]


async def test_an_old_ledger_is_sealed_from_its_beginning(tmp_path: Path) -> None:
    """A ledger without seals says so; its first seal covers what was there before."""
    ledger = MemoryLedger()
    await populate(ledger, ["aaaaaaaa"])
    report = await verify(ledger)
    assert (report.whole, report.sealed) == (True, False)
    await seal(ledger, KEY)
    report = await verify(ledger)
    assert (report.whole, report.sealed, report.unsealed) == (True, True, [])
    assert not report.compared


async def test_two_sealers_of_one_ledger() -> None:
    """Of two seals that follow the same one the first counts; the chain goes on from it."""
    ledger = MemoryLedger(partitions=1)
    one, other = Sealer(ledger, KEY), Sealer(ledger, KEY)
    await one.start()
    await other.start()
    for sealer in (one, other):
        sealer.hold_all()
    for step in range(20):
        await populate(ledger, ["aaaaaaaa"], rounds=1)
        if step % 3 == 0:  # a late replica: what it appends was decided before the other's
            late = await other.prepare()
            await one.step()
            await ledger.append(late)
        else:
            await (one, other)[step % 2].step()
    await one.finish()
    report = await verify(ledger, Known(keys=KEY.trusted))
    assert (report.problems, report.unsealed) == ([], [])
    assert any("ignored" in note for note in report.notes)


async def test_a_beginning_that_retention_removed() -> None:
    """A trim that is on record is accepted, as far as it goes; any other beginning is missing."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa"], rounds=20)
    await seal(ledger, KEY, records=4)
    assert await record_trim(ledger, KEY, topic.LOGS, 0, 3, time=TIME) == 0
    assert await record_trim(ledger, KEY, topic.LOGS, 0, 10, time=TIME) == 8
    assert (await verify(ledger, Known(keys=KEY.trusted))).whole
    cut(ledger, topic.LOGS, 8)
    report = await verify(ledger, Known(keys=KEY.trusted))
    assert report.whole
    assert report.notes == ["logs/0 begins at 8: retention removed what lies before it"]
    assert (await verify_whole_export(ledger)).whole
    cut(ledger, topic.LOGS, 4)
    report = await verify(ledger, Known(keys=KEY.trusted))
    assert named(report) == {(topic.LOGS, 0, position) for position in range(8, 12)}
    cut(ledger, topic.EXPERIMENTS, 1)
    report = await verify(ledger, Known(keys=KEY.trusted, expiring=[topic.LOGS]))
    assert {problem.topic for problem in report.problems} == {topic.EXPERIMENTS}


def cut(ledger: MemoryLedger, name: str, count: int) -> None:
    """Remove a partition's oldest records, as retention does."""
    stream = ledger._stream(name, 0)
    del stream.records[:count]
    stream.first += count


async def verify_whole_export(ledger: MemoryLedger) -> SealReport:
    """Return what is wrong with an export."""
    out = BytesIO()
    await export(ledger, out, key=KEY)
    return await verify_export(out.getvalue().splitlines(keepends=True), KEY.trusted)


# Exports -----------------------------------------------------------------------------------------


def place_of(line: bytes) -> tuple[str, int, int] | None:
    """Return where the record of a line lies, None for a header or an end."""
    record = json.loads(line)
    return (
        None if "format" in record else (record["topic"], record["partition"], record["position"])
    )


def beside_signature(report: SealReport) -> list[SealProblem]:
    """Return what is wrong but for the missing signature of the export's end."""
    return [item for item in report.problems if not item.text.startswith(UNSIGNED)]


def rewritten(lines: list[bytes], end: bytes) -> list[bytes]:
    """Return an export whose last line fits its lines, as who has no key can make it."""
    last = json.loads(end)
    last |= {"lines": len(lines), "digest": blake3(b"".join(lines)).hexdigest()}
    last |= {"key": None, "signature": None}
    return [*lines, json.dumps(last).encode() + b"\n"]


@pytest.fixture(params=[None, "aaaaaaaa"], ids=["ledger", "experiment"])
async def lines(request: pytest.FixtureRequest) -> list[bytes]:
    """Give an export, of a ledger and of one experiment."""
    ledger = MemoryLedger(partitions=2)
    await populate(ledger, ["aaaaaaaa", "bbbbbbbb"], rounds=3)
    await seal(ledger, KEY, records=4)
    out = BytesIO()
    await export(ledger, out, experiment_id=request.param, key=KEY)
    return out.getvalue().splitlines(keepends=True)


async def test_an_export_as_it_was_written(lines: list[bytes]) -> None:
    """Nothing is wrong with it, with the key and without."""
    for keys in (KEY.trusted, frozenset[str]()):
        report = await verify_export(lines, keys)
        assert (report.problems, report.unsealed, report.notes) == ([], [], [])
        assert report.records == sum(
            place is not None and place[0] != topic.SEALS for place in map(place_of, lines)
        )


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "end rewritten"])
async def test_each_line_of_an_export(lines: list[bytes], *, signed: bool) -> None:
    """Each line removed or repeated, each end cut off: with its digest rewritten to fit, too."""
    alone = json.loads(lines[0])["experiment"] is not None

    async def check(changed: list[bytes], what: object) -> None:
        export = changed if signed else rewritten(changed[:-1], lines[-1])
        assert beside_signature(await verify_export(export, KEY.trusted)), what

    for number in range(1, len(lines) - 1):
        place = place_of(lines[number])
        assert place is not None
        if signed or not (alone and place[0] == topic.SEALS):
            await check(lines[:number] + lines[number + 1 :], place)
        if signed or place[0] != topic.SEALS:
            await check(lines[: number + 1] + lines[number:], place)
        await check([*lines[:number], lines[-1]], number)
    assert (await verify_export(lines[:-1], KEY.trusted)).problems


async def test_a_record_added_to_an_export(lines: list[bytes]) -> None:
    """It is no part of what was signed; without the signature nothing covers it: that fails."""
    added = next(json.loads(line) for line in lines if b'"topic":"experiments"' in line)
    header = json.loads(lines[0])
    header["records"] += 1
    others = 1_000 if header["experiment"] else 0  # positions of other experiments
    added["position"] = (
        1 + others + max(it[2] for it in map(place_of, lines) if it and it[0] == added["topic"])
    )
    body = [json.dumps(header).encode() + b"\n", *lines[1:-1], json.dumps(added).encode() + b"\n"]
    report = await verify_export([*body, lines[-1]], KEY.trusted)
    assert not report.whole

    unsigned = rewritten(body, lines[-1])
    report = await verify_export(unsigned, KEY.trusted)
    assert UNSIGNED in report.problems[0].text
    report = await verify_export(unsigned)
    assert [(item.topic, item.count, item.signed) for item in report.unsealed] == [
        (added["topic"], 1, False)
    ]
    assert report.whole
    require_cover(report)
    assert [(problem.kind, problem.first) for problem in report.problems] == [
        ("unsealed", added["position"])
    ]


@pytest.mark.parametrize("experiment", [None, "aaaaaaaa"])
async def test_what_is_not_sealed_yet_is_covered_by_the_signature(experiment: str | None) -> None:
    """An export of a ledger in use verifies, though its newest records have no seal yet."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa"], rounds=2)
    await seal(ledger, KEY)
    await populate(ledger, ["aaaaaaaa"], rounds=1)
    out = BytesIO()
    await export(ledger, out, experiment_id=experiment, key=KEY)
    report = await verify_export(out.getvalue().splitlines(keepends=True), KEY.trusted)
    require_cover(report)
    assert report.problems == []
    assert report.unsealed
    assert all(item.signed for item in report.unsealed)


async def test_one_experiment_holds_all_that_its_seals_list(lines: list[bytes]) -> None:
    """Other records than those that were sealed for the experiment are found and named."""
    count = 0
    for number, line in enumerate(lines[1:-1], 1):
        place = place_of(line)
        assert place is not None
        record = msgspec.json.decode(line)
        for path, value in altered(msgspec.json.encode(record["event"])):
            if path not in {
                "time",
                "data.metrics.loss",
                "id",
                "data.digest",
                "data.groups.0.count",
            }:
                continue
            forged = msgspec.json.encode(record | {"event": msgspec.Raw(value)}) + b"\n"
            changed = [*lines[:number], forged, *lines[number + 1 : -1]]
            report = await verify_export(rewritten(changed, lines[-1]), KEY.trusted)
            if path == "time" and place[0] == topic.SEALS and json.loads(lines[0])["experiment"]:
                continue  # the time of a seal is only covered by the seal behind it
            assert beside_signature(report), (place, path)
            if place[0] != topic.SEALS:
                assert place in named(report)
            count += 1
    assert count > 20


async def test_exports_of_the_former_format_carry_no_seals(lines: list[bytes]) -> None:
    """They can be read; that they prove nothing is said, and with a key it is a fault."""
    records = [line for line in lines[1:-1] if (place_of(line) or [""])[0] != topic.SEALS]
    header = json.loads(lines[0])
    old = {name: header[name] for name in ("format", "ledger", "rung", "experiment", "records")}
    former = [json.dumps(old | {"version": 1}).encode() + b"\n", *records]
    report = await verify_export(former)
    assert (report.whole, report.sealed) == (True, False)
    assert "carries no seals" in report.notes[0]
    assert not (await verify_export(former, KEY.trusted)).whole


async def test_dead_letters_are_held_against_their_seals() -> None:
    """In whole exports, but for the former format without them; in others the signature counts."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa"], rounds=2)
    drop = MessageDropped(
        topic=topic.EXPERIMENTS, partition=0, position=0, key="aaaaaaaa", reader="searcher"
    )
    await state_fact(ledger, drop, 100)
    await seal(ledger, KEY, records=4)

    async def lines(experiment_id: str | None = None) -> list[bytes]:
        out = BytesIO()
        await export(ledger, out, experiment_id=experiment_id, key=KEY)
        return out.getvalue().splitlines(keepends=True)

    alone = await verify_export(await lines("aaaaaaaa"), KEY.trusted)
    assert (alone.problems, alone.unsealed) == ([], [])
    assert "signature of the export alone" in alone.notes[0]
    found = await lines()
    assert (await verify_export(found, KEY.trusted)).problems == []
    without = [line for line in found[:-1] if not line.startswith(b'{"topic":"deadletter"')]
    assert len(without) == len(found) - 2
    report = await verify_export(rewritten(without, found[-1]), KEY.trusted)
    assert (topic.DEADLETTER, 0, 0) in named(report)
    header = json.loads(without[0])
    header |= {"version": 2, "records": header["records"] - 1}
    former = [json.dumps(header).encode() + b"\n", *without[1:]]
    assert beside_signature(await verify_export(rewritten(former, found[-1]), KEY.trusted)) == []


async def test_retention_removes_no_dead_letters() -> None:
    """Audits need what was dropped: where some of it is gone, that shows."""
    ledger = MemoryLedger(partitions=1)
    for _ in range(3):
        await ledger.append([example("rung.message.dropped.v1")])
    await seal(ledger, KEY, records=1)
    with pytest.raises(AssertionError, match=topic.DEADLETTER):
        await record_trim(ledger, KEY, topic.DEADLETTER, 0, 2, time=TIME)
    cut(ledger, topic.DEADLETTER, 2)
    report = await verify(ledger, Known(keys=KEY.trusted))
    assert named(report) == {(topic.DEADLETTER, 0, 0), (topic.DEADLETTER, 0, 1)}


async def test_dead_letters_that_were_gone_before_they_were_sealed() -> None:
    """They are missing, and not merely removed by retention, as metrics may be."""
    for name, kind in (
        (topic.DEADLETTER, "rung.message.dropped.v1"),
        (topic.METRICS, "rung.metrics.reported.v1"),
    ):
        ledger = MemoryLedger(partitions=1)
        await ledger.append([example(kind)])
        await seal(ledger, KEY, records=1)
        await ledger.append([example(kind)] * 2)
        cut(ledger, name, 2)
        await seal(ledger, KEY, records=1)
        report = await verify(ledger, Known(keys=KEY.trusted))
        assert ((name, 0, 1) in named(report)) == (name == topic.DEADLETTER)


def test_seals_name_no_experiment() -> None:
    """The export of one experiment does not tell which others there are."""
    assert group_name("aaaaaaaa") == group_name("aaaaaaaa") != group_name("aaaaaaab")
    assert "aaaaaaaa" not in group_name("aaaaaaaa")


# Keys --------------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """The key of a data folder is its owner's to read, and stays the same."""
    file = tmp_path / "seal.key"
    key = SealKey.load_or_create(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert SealKey.load_or_create(file).public == key.public
    assert parse_public(str(file)) == parse_public(key.public) == {key.public}
    assert list(tmp_path.iterdir()) == [file]


def test_a_key_of_a_cluster() -> None:
    """A secret gives the same key wherever it is given; a short one is refused."""
    secret = "0123456789abcdef" * 3
    assert SealKey.parse(secret).public == SealKey.parse(secret).public
    with pytest.raises(LedgerError, match="RUNG_SEAL_KEY"):
        SealKey.parse("short")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda _: b"", "holds no private key"),
        (lambda pem: pem[:40] + b"!" + pem[41:], "cannot be read"),
    ],
)
def test_a_damaged_key(tmp_path: Path, spoil: Callable[[bytes], bytes], reason: str) -> None:
    """A key file that holds something else is named; it is not overwritten."""
    file = tmp_path / "seal.key"
    SealKey.load_or_create(file)
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(LedgerError, match=rf"seal\.key .*{reason}"):
        SealKey.load_or_create(file)


async def test_a_lost_key_seals_everything_again(attacker: Attacker) -> None:
    """A new key in place of a lost one seals the ledger again from its beginning."""
    new = SealKey.generate()
    await seal(attacker.ledger, new)
    report = await verify(attacker.ledger, Known(keys=new.trusted))
    assert report.whole
    assert report.unsealed == []
    heads = await read_heads(attacker.ledger, 0)
    assert heads is not None
    assert heads.key == new.public
    await save_heads(attacker.ledger, heads)
