r"""Line splitter: cuts the output of a process into lines, each with a level.

`Splitter` takes bytes as they come from a pipe. A line ends with a newline; `\r` ends one too, for
progress bars, but of such lines at most one a second is kept, and the last one before a pause. A
line longer than 64 KiB is cut into pieces, never inside a UTF-8 character; bytes that are not
UTF-8 are replaced. Memory is bounded by one piece.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal

PIECE_BYTES_MAX: Final = 64 * 1024
PROGRESS_S: Final = 1.0

Level = Literal["debug", "info", "warning", "error", "critical"]

_LEVELS: Final[dict[str, Level]] = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "WARN": "warning",
    "ERROR": "error",
    "CRITICAL": "critical",
    "FATAL": "critical",
}
# Possessive, so that its time grows with the line's length alone, whatever a script prints.
_LEVEL: Final = re.compile(
    r"""
    (?:\x1b\[[\d;]*+m)*                              # colours
    (?:[\[(]?\d[\d:.,TZ/+-]*+[\])]?[\s|:-]*+){0,3}   # date, time, process number
    (?:[\w.]++[ ](?:-|\|)[ ])?                       # the logger's name
    (?:\x1b\[[\d;]*+m)*
    [\[(<]?(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)[\])>]?(?=[\s:|,\x1b-]|$)
    """,
    re.VERBOSE,
)
_C_LEVELS: Final[dict[str, Level]] = {
    "I": "info",
    "W": "warning",
    "E": "error",
    "F": "critical",
}
_C_LEVEL: Final = re.compile(
    r"""
    ^\[?([IWEF])\d{4}[ ]\d\d:\d\d                          # glog: PyTorch, NCCL
    | ^\d{4}-\d\d-\d\d[ ]\d\d:\d\d:[\d.]+:[ ]([IWEF])[ ]  # TensorFlow
    """,
    re.VERBOSE | re.MULTILINE,
)
_PYTHON_WARNING: Final = re.compile(r"\S+:\d+: \w*Warning: ")
_TRACEBACK: Final = "Traceback (most recent call last):"
_SIGNS: Final = (_TRACEBACK, "Warning: ", *(name for name in _LEVELS if name != "WARNING"))
"""Text without any of these has only lines of the default level."""
_PREFIX_MAX: Final = 160
_DEFAULT: Final[Level] = "info"


class Splitter:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._held: str | None = None
        self._kept_at = float("-inf")

    def feed(self, data: bytes, now: float) -> list[str]:
        """Take what was read at the time `now` (in seconds); return the lines it completes."""
        lines: list[str] = []
        buffer = self._rest + data
        if b"\r" not in buffer:
            *complete, self._rest = buffer.split(b"\n")
            if self._held is None and len(max(complete, key=len, default=b"")) <= PIECE_BYTES_MAX:
                lines = list(map(_text, complete))
            else:
                for line in complete:
                    self._take(line, lines)
        else:
            self._rest = self._split_returns(buffer, now, lines)
        if len(self._rest) > PIECE_BYTES_MAX:
            *pieces, self._rest = _pieces(self._rest)
            self._supersede(lines)
            lines.extend(_text(piece) for piece in pieces)
        return lines

    @property
    def holding(self) -> bool:
        """Whether a progress line is held back."""
        return self._held is not None

    def pause(self) -> list[str]:
        """Return the progress line that was held back, if any: the process has paused."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def end(self) -> list[str]:
        """Return what is left at the end of the stream."""
        lines = self.pause()
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        if rest:
            lines.extend(_text(piece) for piece in _pieces(rest))
        return lines

    def _split_returns(self, buffer: bytes, now: float, lines: list[str]) -> bytes:
        *complete, rest = buffer.split(b"\n")
        for line in complete:
            *updates, last = line.removesuffix(b"\r").split(b"\r")
            self._progress(updates, now, lines)
            self._take(last, lines)
        waiting = b"\r" if rest.endswith(b"\r") else b""  # a newline may follow
        *updates, last = rest.removesuffix(b"\r").split(b"\r")
        self._progress(updates, now, lines)
        return last + waiting

    def _progress(self, updates: list[bytes], now: float, lines: list[str]) -> None:
        for update in updates:
            if not update:
                continue
            if len(update) > PIECE_BYTES_MAX:
                self._supersede(lines)
                lines.extend(_text(piece) for piece in _pieces(update))
            elif now - self._kept_at >= PROGRESS_S:
                self._held, self._kept_at = None, now
                lines.append(_text(update))
            else:
                self._held = _text(update)

    def _take(self, line: bytes, lines: list[str]) -> None:
        """Keep a line that a newline ended."""
        if not line and self._held is not None:
            lines.extend(self.pause())
            return
        self._supersede(lines)
        if len(line) > PIECE_BYTES_MAX:
            lines.extend(_text(piece) for piece in _pieces(line))
        else:
            lines.append(_text(line))

    def _supersede(self, lines: list[str]) -> None:
        """Show the last state of a progress bar before what follows it."""
        lines.extend(self.pause())


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _pieces(line: bytes) -> list[bytes]:
    """Cut a long line, each piece ending where a character ends."""
    pieces = []
    start = 0
    while len(line) - start > PIECE_BYTES_MAX:
        end = start + PIECE_BYTES_MAX
        for back in range(4):
            if line[end - back] & 0xC0 != 0x80:
                end -= back
                break
        pieces.append(line[start:end])
        start = end
    pieces.append(line[start:])
    return pieces


class Severity:
    """Derives the level of each line of one stream, and keeps the last exception's message.

    The streams do not differ: progress bars and most loggers write to stderr.
    """

    def __init__(self) -> None:
        self._in_traceback = False
        self.exception = ""
        """The last line of the newest traceback."""
        self.last = ""
        """The newest line that is not blank."""

    def of_lines(self, lines: Sequence[str]) -> list[Level]:
        """Return the levels of the next lines."""
        text = "\n".join(lines)
        signs = any(sign in text for sign in _SIGNS) or _C_LEVEL.search(text)
        if self._in_traceback or signs:
            return [self.of(line) for line in lines]
        for line in reversed(lines):
            if line and not line.isspace():
                self.last = line
                break
        return [_DEFAULT] * len(lines)

    def of(self, line: str) -> Level:
        """Return the level of the next line."""
        if not line.isspace() and line:
            self.last = line
        if line.startswith(_TRACEBACK):
            self._in_traceback = True
            return "error"
        if self._in_traceback:
            if line and not line[0].isspace():
                self._in_traceback = False
                self.exception = line
            return "error"
        start = line[:_PREFIX_MAX]
        if match := _LEVEL.match(start):
            return _LEVELS[match[1]]
        if match := _C_LEVEL.match(start):
            return _C_LEVELS[match[1] or match[2]]
        return "warning" if _PYTHON_WARNING.match(start) else _DEFAULT
