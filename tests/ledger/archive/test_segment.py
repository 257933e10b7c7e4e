"""Segments by themselves: what goes in comes out, and nothing else is taken for one."""

import contextlib
import gzip
import hashlib
import json
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from rung.events import LedgerDamaged, partition_of, topic
from rung.ledger import MemoryLedger, Record
from rung.ledger.archive.segment import Builder, Place, Segment, open_segment
from rung.ledger.export.format import parse_header, parse_line
from support.ledger.events import populate

PLACE = Place("a-ledger", topic.EXPERIMENTS, 0, 1)


def packed(records: list[Record], previous: str | None = None) -> tuple[Segment, bytes]:
    """Return a segment of some records."""
    builder = Builder(PLACE, previous, size_bytes=1 << 30)
    assert builder.add(records) == len(records)
    return builder.finish()


def parts(data: bytes) -> tuple[bytes, bytes]:
    """Return the packed header of a segment, and its packed records."""
    unpacker = zlib.decompressobj(31)
    unpacker.decompress(data)
    body = unpacker.unused_data
    return data[: -len(body)], body


def stored(values: list[bytes], key: str = "k") -> list[Record]:
    """Return records with these values."""
    return [Record(topic.EXPERIMENTS, 0, at, key, value) for at, value in enumerate(values)]


async def events() -> list[Record]:
    """Return records that hold real events."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa"])
    return await ledger.read(topic.EXPERIMENTS, 0, 0, 100)


@given(st.lists(st.binary(max_size=60), min_size=1), st.text(max_size=9))
@example([b"", b" {} ", b"\n", b"{}\r", b"null\n\n", b"\xff"], "\n世\x00\u2028")
def test_every_value_comes_back(values: list[bytes], key: str) -> None:
    """Whatever bytes and keys lie in a ledger, a segment gives them back byte for byte."""
    records = stored(values, key)
    segment, data = packed(records)
    assert open_segment(segment, data).records() == records
    assert Segment.of(segment.name) == segment


async def test_real_events_with_white_space_come_back() -> None:
    """Events with white space around them are no exception."""
    (record, *_) = await events()
    records = stored([b" " + record.value, record.value + b"\r", record.value], record.key)
    segment, data = packed(records)
    assert open_segment(segment, data).records() == records


async def test_it_is_an_export() -> None:
    """What reads exports reads an unpacked segment."""
    records = await events()
    _, data = packed(records, previous="0" * 64)
    first, *lines = gzip.decompress(data).splitlines()
    header = parse_header(first)
    assert (header.ledger, header.records) == ("a-ledger", len(records))
    parsed = [parse_line(line, number) for number, line in enumerate(lines, 2)]
    assert [it.value for it in parsed] == [record.value for record in records]


async def test_packing_is_repeatable() -> None:
    """The same records after the same segment are the same object, whenever they are packed."""
    records = await events()
    assert packed(records) == packed(records)
    assert packed(records)[0].name != packed(records, previous="0" * 64)[0].name


async def test_it_is_cut_by_size() -> None:
    """A segment takes records until it is full, and at least one."""
    records = await events()
    builder = Builder(PLACE, None, size_bytes=1)
    assert builder.add(records) == 1
    assert builder.full
    assert builder.add(records[1:]) == 0
    segment, _ = builder.finish()
    assert (segment.first, segment.last) == (0, 0)


async def test_any_other_bit_is_noticed() -> None:
    """No bit can flip without being noticed, where it matters."""
    segment, data = packed(await events())
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1 << at % 8
        with contextlib.suppress(LedgerDamaged):
            # Nothing depends on a few bits of gzip's own header, such as the kind of system.
            assert open_segment(segment, bytes(altered)) == open_segment(segment, data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "cut short"),
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: b"", "cut short"),
        (lambda data: data + b"more", "4 bytes follow its end"),
        (lambda data: data + data, "follow its end"),
        (lambda data: gzip.compress(gzip.decompress(data)), "header is not the one|more than"),
    ],
)
async def test_what_is_no_segment(change: object, message: str) -> None:
    """Each is refused with the reason."""
    segment, data = packed(await events())
    assert callable(change)
    with pytest.raises(LedgerDamaged, match=message):
        open_segment(segment, change(data))


async def test_a_bomb_is_not_unpacked() -> None:
    """A header that is larger than any, or records that are more than promised, are refused."""
    segment, data = packed(await events())
    zeros = gzip.compress(bytes(200 << 20))
    with pytest.raises(LedgerDamaged, match="more than the 65536 bytes"):
        open_segment(segment, zeros)
    with pytest.raises(LedgerDamaged, match="more than"):
        open_segment(segment, parts(data)[0] + zeros)


async def test_it_is_of_its_place() -> None:
    """Bytes of one segment under the name of another are refused."""
    records = await events()
    one, data = packed(records[:2])
    other, _ = packed(records[2:])
    with pytest.raises(LedgerDamaged, match="header is not the one"):
        open_segment(other, data)
    for wrong in (
        one._replace(last=7),
        one._replace(place=PLACE._replace(ledger="another")),
        one._replace(place=PLACE._replace(topic=topic.POOLS)),
    ):
        with pytest.raises(LedgerDamaged, match="its header says"):
            open_segment(wrong, data)


def test_records_of_elsewhere_are_not_in_it() -> None:
    """A record of another topic or partition, or out of order, is refused with the reason."""
    here = next(key for key in "abcdefgh" if partition_of(key, 2) == 1)
    there = next(key for key in "abcdefgh" if partition_of(key, 2) == 0)
    place = Place("a-ledger", topic.LOGS, 1, 2)
    right = Record(topic.LOGS, 1, 5, here, b"{}")
    for wrong, message in (
        (replace(right, topic=topic.METRICS, position=6), "of metrics/1"),
        (replace(right, partition=0, position=6), "of logs/0"),
        (right, "position 5 comes after 5"),
        (replace(right, key=there, position=6), "another partition"),
    ):
        builder = Builder(place, None, size_bytes=1 << 20)
        builder.add([right, wrong])
        opened = open_segment(*builder.finish())
        with pytest.raises(LedgerDamaged, match=message):
            opened.records()


async def test_a_newer_format_is_refused() -> None:
    """It says so, and what to do."""
    segment, data = packed(await events())
    head, body = parts(data)
    header = json.loads(gzip.decompress(head)) | {"version": 2}
    line = json.dumps(header).encode() + b"\n"
    segment = segment._replace(digest=hashlib.sha256(line).hexdigest())
    with pytest.raises(LedgerDamaged, match="format version 2: upgrade Rung"):
        open_segment(segment, gzip.compress(line) + body)


@pytest.mark.parametrize(
    "name",
    [
        "archive/x/experiments/0000-of-0001/",
        "archive/x/weather/0000-of-0001/0000000000000000-0000000000000001-"
        + "0" * 64
        + ".jsonl.gz",
        "archive/x/logs/0-of-1/0000000000000000-0000000000000001-" + "0" * 64 + ".jsonl.gz",
        "archive/x/logs/0000-of-0001/0000000000000000-0000000000000001-abc.jsonl.gz",
        "checkpoints/x/y/manifest.json",
    ],
)
def test_names_of_other_things(name: str) -> None:
    """They are not taken for segments."""
    assert Segment.of(name) is None
