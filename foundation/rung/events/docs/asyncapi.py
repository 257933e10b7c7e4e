"""The vocabulary as an AsyncAPI 3 document and as a page for people, made from the records."""

from typing import Any, Final

import msgspec

from rung.events.codec import PAYLOADS, encode
from rung.events.docs.examples import EXAMPLES
from rung.events.envelope import Event, decision, fact, relayed
from rung.events.topic import ANY_DECISIONS, ANY_FACTS, TOPICS, topics_of

_TIME: Final = "2026-01-01T00:00:00.000Z"
_ASKED: Final = "gateway"
"""Writes what users ask for."""

_TITLE: Final = """# Events

Made from the records in `foundation/rung/events` by `make docs`; a test holds it against them.
Every event is a CloudEvent 1.0 in structured JSON. `asyncapi.json` has the same with full schemas.

What a user asked for carries `actor`, the user's id, and `onbehalfof`, that of the user for whom
the actor acted, if any. What nobody asked for has neither: what agents report, relays copy,
failure detectors find and policies retire. A decision has none of its own; its `cause` leads, step
by step, to the fact that has it. Facts of releases that named nobody have none either.
"""


def example_of(kind: str) -> Event:
    """Return an example of a type in its envelope."""
    data = next(example for example in EXAMPLES if kind == example.TYPE)
    cause = fact(EXAMPLES[0], source="/rung/gateway", origin="gateway/1f", sequence=1, time=_TIME)
    if TOPICS[topics_of(data.TOPIC)[0]].holds == "decisions":
        return decision(data, source=f"/rung/{data.WRITER}", cause=cause, position=0, index=0)
    return fact(
        data,
        source=f"/rung/{data.WRITER}",
        origin=f"{data.WRITER}/1f",
        sequence=7,
        time=_TIME,
        actor="admin" if data.WRITER == _ASKED else None,
    )


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI 3.0 document of the ledger."""
    kinds = sorted(PAYLOADS)
    _, schemas = msgspec.json.schema_components(
        [PAYLOADS[kind] for kind in kinds], ref_template="#/components/schemas/{name}"
    )
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Rung's ledger",
            "version": "1",
            "description": "Every event that may lie in the ledger, as CloudEvents 1.0 with the"
            " extension attributes `actor` (id of the user who asked for it), `onbehalfof` (id"
            " of the user for whom the actor acted), `cause`, `causeposition`, `causeindex`,"
            " `origin`, `sequence` and `traceparent`.",
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": {
            name: {
                "address": name,
                "description": f"{topic.holds}, keyed by {topic.key}",
                "messages": {
                    kind: {"$ref": f"#/components/messages/{kind}"}
                    for kind in kinds
                    if name in dict(_writers(kind))
                },
            }
            for name, topic in TOPICS.items()
        },
        "operations": {
            f"{writer}-writes-{name}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [
                    {"$ref": f"#/channels/{name}/messages/{kind}"}
                    for kind in kinds
                    if (name, writer) in _writers(kind)
                ],
            }
            for name, writer in sorted({place for kind in kinds for place in _writers(kind)})
        },
        "components": {
            "schemas": schemas,
            "messages": {kind: _message(kind) for kind in kinds},
        },
    }


def _writers(kind: str) -> list[tuple[str, str]]:
    """Return the topics on which events of a type lie, each with its writer."""
    record = PAYLOADS[kind]
    found = [(name, record.WRITER) for name in topics_of(record.TOPIC)]
    again = relayed(record)
    return found if again is None else [*found, again]


def _message(kind: str) -> dict[str, Any]:
    record = PAYLOADS[kind]
    return {
        "name": kind,
        "summary": _summary(kind),
        "contentType": "application/cloudevents+json",
        "x-writer": record.WRITER,
        "x-readers": list(record.READERS),
        "x-key": TOPICS[record.TOPIC].key if record.TOPIC in TOPICS else "key",
        "payload": {"$ref": f"#/components/schemas/{record.__name__}"},
        "examples": [{"payload": msgspec.json.decode(encode(example_of(kind)))}],
    }


def _summary(kind: str) -> str:
    return (PAYLOADS[kind].__doc__ or "").split("\n")[0]


def events_page() -> str:
    """Return the page that lists every event, in Markdown."""
    lines = [_TITLE]
    sections = {
        ANY_DECISIONS: "Decisions of the runtime, which lie on each topic of decisions.",
        ANY_FACTS: "Facts about the runtime's decisions, which lie on each topic of facts.",
    }
    for name, topic in TOPICS.items():
        sections[name] = f"{topic.holds.capitalize()}, keyed by `{topic.key}`."
    for name, text in sections.items():
        lines += [f"## {name[0].upper() + name[1:] if ' ' in name else name}", "", text, ""]
        for kind in sorted(kind for kind, record in PAYLOADS.items() if name == record.TOPIC):
            record = PAYLOADS[kind]
            example = example_of(kind)
            body = msgspec.json.format(msgspec.json.encode(example.data), indent=2).decode()
            lines += [
                f"### `{kind}`",
                "",
                _summary(kind),
                f"Written by {record.WRITER}; read by {', '.join(record.READERS)}.",
                *(
                    f"Relayed by {again.by} to `{again.topic}`."
                    for again in [relayed(record)]
                    if again is not None
                ),
                f"Key of the example: `{example.key}`.",
                "",
                "```json",
                body,
                "```",
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"
