"""Logger of a run's processes and of the cache; structlog is imported with the first line.

Most runs log nothing, and that import takes half of the time that importing `rung.core` takes.
"""

from typing import Any


def log() -> Any:
    """Return the logger."""
    import structlog  # noqa: PLC0415 - as the module says

    return structlog.get_logger("rung")
