"""Times as answers have them: RFC 3339 in UTC, with milliseconds."""

from datetime import UTC, datetime


def timestamp(ms: int) -> str:
    """Return Unix time in milliseconds as it is written in answers."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
