"""Messages to receivers as CloudEvents, and the one that tests a webhook."""

from typing import Any, Final

TEST: Final = "rung.webhook.test.v1"

CloudEvent = dict[str, Any]


def cloud_event(  # noqa: PLR0913, PLR0917 - the attributes of a CloudEvent
    delivery_id: str, source: str, kind: str, subject: str, time: str, data: dict[str, Any]
) -> CloudEvent:
    """Return a CloudEvent 1.0 in its JSON format."""
    return {
        "specversion": "1.0",
        "id": delivery_id,
        "source": source,
        "type": kind,
        "subject": subject,
        "time": time,
        "datacontenttype": "application/json",
        "data": data,
    }
