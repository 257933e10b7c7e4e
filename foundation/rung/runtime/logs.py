"""Logging of all processes, as JSON lines.

A line has `event`, `level`, `timestamp`, `service` and `ledger`; inside a loop its `loop`; and,
where they apply, `topic`, `partition`, `position`, `event_id`, `experiment`, `trial`,
`allocation`, `agent` and `trace`. What libraries log by Python's `logging`, from warnings on, has
the same form.
"""

import contextlib
import io
import logging
import os
import sys
from typing import Any, Final, TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from rung.events import RungError

LEVEL: Final = "RUNG_LOG_LEVEL"

_everywhere: Final[dict[str, str]] = {}
"""Fields of every line of this process; threads of libraries do not have our context variables."""

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Enduring(io.TextIOBase):
    """A stream that ignores errors: on a full disk lines are lost, and the process goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class LevelUnknown(RungError):
    """RUNG_LOG_LEVEL is no level."""


def log_to(stream: TextIO | None = None, **bound: str) -> None:
    """Log to a stream, by default stderr, one JSON object a line.

    `bound` are fields of every line, such as `service="searcher"`.

    Raises:
        LevelUnknown: RUNG_LOG_LEVEL is none.
    """
    stream = cast("TextIO", _Enduring(stream or sys.stderr))
    level = _level()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _say_whose,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
    )
    _bridge(stream, [*shared, _name_library], render, max(level, logging.WARNING))
    _everywhere.clear()
    bind(**bound)


def log_plainly() -> None:
    """Log warnings to stderr, in lines for people, for commands."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def bind(**bound: str) -> None:
    """Add fields to every line that this process logs from now on."""
    _everywhere.update(bound)


def _level() -> int:
    name = os.environ.get(LEVEL, "info")
    level = _LEVELS.get(name.lower())
    if level is None:
        raise LevelUnknown(f"{LEVEL} is {name!r}: give one of {', '.join(_LEVELS)}")
    return level


def _bridge(stream: TextIO, shared: list[Any], render: Any, level: int) -> None:
    """Format what libraries log by `logging` in the same way."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    for other in list(root.handlers):
        if isinstance(other.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)  # noqa: FBT003 - how the standard library takes it


def _say_whose(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    for name, value in _everywhere.items():
        line.setdefault(name, value)
    return line


def _name_library(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    record = line.get("_record")
    if isinstance(record, logging.LogRecord):
        line["library"] = record.name
    return line
