"""The vocabulary: what is on the wire is permanent, and the documents say what the code does."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import structs

from rung.events import TOPICS, decode, encode, partition_of
from rung.events.codec import PAYLOADS, decode_handled, decode_head
from rung.events.deadletter import FactDropped, FactRejected, FactRetried, KeyResumed
from rung.events.docs.asyncapi import asyncapi, events_page, example_of
from rung.events.docs.examples import EXAMPLES
from rung.events.envelope import Event, decision, fact, relayed
from rung.events.errors import UndecodableEvent
from rung.events.topic import topics_of
from rung.events.upcast import UPCASTERS

_HERE = Path(__file__).parent
_DOCS = _HERE.parents[1] / "docs"
_SCHEMAS = _HERE / "schemas"

KINDS = sorted(PAYLOADS)


def _schema_text(kind: str) -> str:
    schema = msgspec.json.schema(PAYLOADS[kind])
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def test_wire_strings_are_those_reviewed() -> None:
    """A type string, a topic or an attribute of the envelope never changes unnoticed."""
    attributes = sorted(json.loads(encode(example_of("rung.trial.requested.v1"))))
    strings = [*sorted(TOPICS), *attributes, *KINDS]

    assert strings == (_HERE / "wire_strings.txt").read_text().splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_schema_is_the_golden_one(kind: str) -> None:
    """The shape of a type's data changes only together with its golden schema."""
    assert _schema_text(kind) == (_SCHEMAS / f"{kind}.json").read_text()


def test_every_schema_still_has_a_reader() -> None:
    """A schema once published can be read for ever: by its record or through an upcaster."""
    published = {path.name.removesuffix(".json") for path in _SCHEMAS.glob("*.json")}

    assert published == set(PAYLOADS) | set(UPCASTERS)


def test_each_type_has_one_example_and_a_known_topic() -> None:
    """Writers, topics and examples are complete, so that the documents are."""
    assert sorted(example.TYPE for example in EXAMPLES) == KINDS
    assert {each for it in PAYLOADS.values() for each in topics_of(it.TOPIC)} == set(TOPICS)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str) -> None:
    """What is encoded is decoded to an equal event."""
    event = example_of(kind)

    assert event == decode(encode(event))


def test_who_asked_is_on_the_wire() -> None:
    """An actor, and for whom it acted, come back; without them the attributes are left out."""
    (data,) = [each for each in EXAMPLES if each.TYPE == "rung.experiment.kill_requested.v1"]
    asked = fact(
        data,
        source="/rung/gateway",
        origin="gateway/1",
        sequence=1,
        time="t",
        actor="u1",
        onbehalfof="u2",
    )
    plain = structs.replace(asked, actor=None, onbehalfof=None)

    assert decode(encode(asked)) == asked
    assert json.loads(encode(asked)).items() >= {"actor": "u1", "onbehalfof": "u2"}.items()
    assert decode(encode(plain)) == plain
    assert not json.loads(encode(plain)).keys() & {"actor", "onbehalfof"}


def test_a_decision_leads_to_its_actor_by_its_cause() -> None:
    """It has no actor of its own: one that nobody asked for would look the same."""
    (data,) = [each for each in EXAMPLES if each.TYPE == "rung.experiment.kill_requested.v1"]
    asked = fact(data, source="/rung/gateway", origin="g/1", sequence=1, time="t", actor="u1")
    decided = decision(data, source="/rung/searcher", cause=asked, position=0, index=0)

    assert (decided.actor, decided.cause) == (None, asked.id)


def test_decisions_topics_have_one_writer() -> None:
    """A topic of decisions is written by one service alone."""
    for name, topic in TOPICS.items():
        writers = {record.WRITER for record in PAYLOADS.values() if name == record.TOPIC}
        if topic.holds == "decisions":
            assert len(writers) == 1, name


def test_what_is_relayed_keeps_its_type_and_changes_its_topic() -> None:
    """A decision lies on its own topic; the fact that a relay makes of it where its type says."""
    for example in EXAMPLES:
        again = relayed(type(example))
        made = fact(example, source="/rung/test", origin="L/p/0/k", sequence=1, time="t")
        decided = decision(example, source="/rung/test", cause=made, position=0, index=0)

        if isinstance(example, FactRejected | KeyResumed | FactRetried | FactDropped):
            assert (decided.topic, decided.key) == (example.topic, example.key)
            assert example.topic in topics_of(example.TOPIC)
            continue
        assert decided.topic == example.TOPIC
        assert made.topic == (example.TOPIC if again is None else again.topic)
        assert made.key == getattr(example, TOPICS[made.topic].key)
        if again is not None:
            assert TOPICS[example.TOPIC].holds == "decisions"
            assert TOPICS[again.topic].holds == "facts"


def test_asyncapi_document_is_up_to_date() -> None:
    """`docs/asyncapi.json` is what the records say (`make docs` writes it)."""
    assert asyncapi() == json.loads((_DOCS / "asyncapi.json").read_text())


def test_events_page_is_up_to_date() -> None:
    """`docs/EVENTS.md` is what the records say (`make docs` writes it)."""
    assert events_page() == (_DOCS / "EVENTS.md").read_text()


def test_unknown_fields_are_ignored() -> None:
    """A reader takes an event to which a newer writer added a field."""
    wire = json.loads(encode(example_of("rung.trial.closed.v1")))
    wire["data"]["mood"] = "sunny"
    wire["tracestate"] = "vendor=1"

    assert example_of("rung.trial.closed.v1") == decode(json.dumps(wire).encode())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not an event"),
        (b"{", "not an event"),
        (b"[]", "not an event"),
        (b"\xff\xfe", "not an event"),
        (b'{"id": 3}', "not an event"),
    ],
)
def test_what_is_no_event_is_refused(value: bytes, reason: str) -> None:
    """Bytes that are no event raise an error that can be written to the dead letters."""
    with pytest.raises(UndecodableEvent, match=reason):
        decode(value)


def test_unknown_type_is_refused_by_name() -> None:
    """An event of a type that this version does not know is refused, naming the type."""
    wire = json.loads(encode(example_of("rung.trial.closed.v1")))
    wire["type"] = "rung.trial.sang.v1"

    with pytest.raises(UndecodableEvent, match=r"rung\.trial\.sang\.v1"):
        decode(json.dumps(wire).encode())


_OLDEST: Final = "rung.trial.halted.v1"


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return an event of a type that was replaced twice: by an older version of today's type."""

    def renamed(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "rung.trial.stopped.v0", {"n": int(old["number"]), **old}

    def whole_id(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "rung.trial.stopped.v1", {**old, "trial_id": f"{old['experiment_id']}.{old['n']}"}

    monkeypatch.setitem(UPCASTERS, _OLDEST, renamed)
    monkeypatch.setitem(UPCASTERS, "rung.trial.stopped.v0", whole_id)
    wire = json.loads(encode(example_of("rung.trial.stopped.v1")))
    del wire["data"]["trial_id"]
    return json.dumps(wire | {"type": _OLDEST, "data": wire["data"] | {"number": "17"}}).encode()


def test_an_old_type_is_upcast(older: bytes) -> None:
    """It is read as the newest one, also where only some types are, and it is known."""
    example = example_of("rung.trial.stopped.v1")

    assert decode(older) == example
    assert decode_handled(older, {"rung.trial.stopped.v1"}) == example
    assert decode_handled(older, {"rung.trial.closed.v1"}) is None
    assert decode_head(older).known


@pytest.mark.parametrize("old", [{}, {"number": "x"}, {"number": "17"}, []])
def test_data_that_the_old_type_never_had_are_refused(older: bytes, old: Any) -> None:
    """They are no event, and nothing else is raised."""
    wire = json.loads(older) | {"data": old}

    with pytest.raises(UndecodableEvent, match="not an event"):
        decode(json.dumps(wire).encode())


def test_ids_follow_from_what_caused_them() -> None:
    """The same decision has the same id wherever it is made; another index has another."""
    cause = example_of("rung.experiment.submitted.v1")

    def at(index: int) -> Event:
        data = example_of("rung.trial.closed.v1").data
        return decision(data, source="/rung/searcher", cause=cause, position=4, index=index)

    assert at(0) == at(0)
    assert at(0).id != at(1).id


def test_fact_carries_its_origin() -> None:
    """A fact's id is its origin with the origin's own number."""
    data = example_of("rung.trial.started.v1").data
    event = fact(data, source="/rung/agent/a", origin="agent/a/1", sequence=9, time="t")

    assert (event.id, event.subject, event.key) == ("agent/a/1#9", "k3f9x2ma.17", "k3f9x2ma")


def test_partitions_are_the_same_for_ever() -> None:
    """A key's partition is part of the format: these values may never change."""
    assert [partition_of(key, 8) for key in ("", "default", "k3f9x2ma", "ü")] == [0, 7, 2, 5]
