r"""Escapes control characters in everything that the command line prints.

Logs, labels, names, error texts and metric names come from other users, and a terminal interprets
escape sequences (OSC 52 sets the clipboard, OSC 8 hides an address behind a text), C1 controls,
bidirectional overrides (`exe.txt` for `txt.exe`) and invisible characters. All of these are
printed as Python writes them: `\x1b`, `\u202e`.

`escaped_output` wraps standard output and error, so that no command can forget it. Colours (SGR,
`ESC [ … m`) pass to a terminal and are left out elsewhere; newlines and tabs pass. Code that
bypasses the text streams (`sys.stdout.buffer`) calls `escape`, `escape_lines` or `escape_json`.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO, cast

RESET: Final = "\x1b[0m"
"""Ends all colours."""

_ASCII: Final = r"\x00-\x08\x0b-\x1f\x7f"
# C1 controls, surrogates, line and paragraph separators, interlinear marks, and the
# default-ignorable characters of Unicode, except the variation selectors U+FE00 to U+FE0F.
_OTHERS: Final = (
    r"\x80-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_COLOR: Final = r"(?:(?<=\x1b)\[[0-9;:]{0,32}m)?"
# A pattern of its own for ASCII, which is searched three times as fast.
_IN_ASCII: Final = re.compile(f"[{_ASCII}]{_COLOR}")
_IN_ANY: Final = re.compile(f"[{_ASCII}{_OTHERS}]{_COLOR}")
_IN_JSON: Final = re.compile(f"[\x7f{_OTHERS}]")


def escape(text: str, *, colors: bool = False) -> str:
    r"""Return a text with control characters made visible; newlines and tabs stay.

    Takes about 10 ns a character, in one line or a block of thousands.

    Args:
        text: any text.
        colors: whether to keep colours; they are left out otherwise.
    """
    pattern = _IN_ASCII if text.isascii() else _IN_ANY
    return pattern.sub(_colored if colors else _plain, text)


def escape_lines(texts: Sequence[str], *, colors: bool = False) -> list[str]:
    r"""Return texts, each on one line: as `escape`, and a newline within one becomes `\n`.

    A text that holds colours ends by resetting them. Many texts at once are as fast as one block.
    """
    lines = escape("\n".join(texts), colors=colors).split("\n")
    if len(lines) != max(len(texts), 1):
        lines = [escape(text, colors=colors).replace("\n", r"\n") for text in texts]
    if colors:
        lines = [f"{line}{RESET}" if "\x1b" in line else line for line in lines]
    return lines if texts else []


def escape_json(encoded: bytes) -> bytes:
    r"""Return JSON (one document or many lines) that says the same, with what `escape` makes
    visible as `\u` escapes, where the encoder left it as it is.
    """  # noqa: D205 - one sentence
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return _IN_JSON.sub(_as_json, encoded.decode()).encode()


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Escape everything that is written to standard output and error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", EscapingStream(stream)) for stream in before)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # closed
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


class EscapingStream:
    """A text stream that escapes what is written to it.

    Attributes:
        stream: the wrapped stream, for code that draws with escape sequences of its own.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._colors = stream.isatty()
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A character that the terminal's encoding lacks is escaped, too.
            reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write a text."""
        self.stream.write(escape(text, colors=self._colors))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write texts."""
        self.write("".join(texts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the wrapped stream, for drawing texts that were escaped before."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


def _plain(found: re.Match[str]) -> str:
    return "" if len(found[0]) > 1 else _visible(found[0])


def _colored(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) > 1 else _visible(found[0])


def _visible(letter: str) -> str:
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _as_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
