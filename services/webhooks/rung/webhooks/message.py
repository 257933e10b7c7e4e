"""Messages: an event as its receiver wants it."""

import base64
import html
from collections.abc import Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Final

import msgspec
from standardwebhooks import Webhook

from rung.subscription.cloud_event import TEST, CloudEvent
from rung.subscription.document import KINDS, Format

METRIC: Final = "rung.metric.passed.v1"
LINE: Final = "rung.log.printed.v1"
_WORDS: Final[Mapping[str, str]] = {
    **KINDS,
    TEST: "this is a test, sent on request",
    METRIC: "a metric has passed its threshold",
    LINE: "a printed line matched a pattern",
}
_SHOWN: Final = ("state", "outcome", "reason", "message", "metric", "value", "policy", "line")
_TEXT_MAX: Final = 1000


def body_of(format_: Format, event: CloudEvent) -> bytes:
    """Return the body of a post.

    Args:
        format_: `slack` and `teams` get a text for people, all else the event.
        event: what happened.
    """
    match format_:
        case "slack":
            return msgspec.json.encode({"text": html.escape(text_of(event), quote=False)})
        case "teams":
            card = {
                "type": "AdaptiveCard",
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "version": "1.4",
                "body": [
                    {"type": "TextBlock", "text": _plain(line), "wrap": True}
                    for line in text_of(event).splitlines()
                ],
            }
            attached = {
                "contentType": "application/vnd.microsoft.card.adaptive",
                "content": card,
            }
            return msgspec.json.encode({"type": "message", "attachments": [attached]})
        case _:
            return msgspec.json.encode(event)


def text_of(event: CloudEvent) -> str:
    """Return an event in a few lines for people."""
    data = event["data"]
    lines = [f"{event['subject']}: {_WORDS.get(event['type'], event['type'])}"]
    if data.get("experiment_name"):
        lines[0] += f" ({data['experiment_name']})"
    shown = {name: data.get(name) for name in _SHOWN}
    lines += [f"{n}: {str(it)[:_TEXT_MAX]}" for n, it in shown.items() if it not in (None, "")]
    return "\n".join(" ".join(line.split()) for line in lines)


def headers_of(
    format_: Format, event: CloudEvent, body: bytes, key: str, now_s: float
) -> dict[str, str]:
    """Return the headers of a post, signed after the Standard Webhooks specification.

    `webhook-id` is the same on every attempt, the time and so the signature are of this one.
    """
    kind = "application/cloudevents+json" if format_ == "cloudevents" else "application/json"
    moment = datetime.fromtimestamp(int(now_s), UTC)
    headers = {
        "Content-Type": f"{kind}; charset=utf-8",
        "User-Agent": "rung-webhooks",
        "webhook-id": event["id"],
        "webhook-timestamp": str(int(now_s)),
    }
    if key:
        headers["webhook-signature"] = Webhook(key).sign(event["id"], moment, body.decode())
    return headers


def usable_key(key: str) -> bool:
    """Return whether a key is one of the specification: `whsec_` and 24 to 64 bytes in base64."""
    try:
        found = base64.b64decode(key.removeprefix("whsec_"), validate=True)
    except ValueError:
        return False
    return key.startswith("whsec_") and 24 <= len(found) <= 64


def mail_of(event: CloudEvent, sender: str, to: list[str]) -> EmailMessage:
    """Return an event as an e-mail; its Message-ID is the same on every attempt."""
    text = text_of(event)
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, ", ".join(to)
    mail["Subject"] = f"[Rung] {text.splitlines()[0][:150]}"
    mail["Message-ID"] = f"<{event['id']}@rung.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text)
    return mail


def _plain(line: str) -> str:
    """Return a line in which Markdown finds no links, no pictures and no mentions."""
    return line.translate({ord(each): f"\\{each}" for each in "\\[]()<>*_`#!|"})
