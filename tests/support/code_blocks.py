"""The code blocks of the documents, and whether an output has the shape that a document shows."""

import re
import textwrap
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]

PAGES: Final = sorted(
    [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/operations").glob("*.md"), ROOT / "README.md",
     ROOT / "CONTRIBUTING.md", *ROOT.glob("examples/*/README.md")]
)  # fmt: skip
"""What users and operators read."""

_FENCED: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*) ?(?P<name>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_INDENTED: Final = re.compile(r"(?<=\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)")
_ID: Final = r"[a-z0-9]{8}"
_NUMBER: Final = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_TOKENS: Final = re.compile(
    rf"(?P<gap>…)|(?P<blank> +)|(?P<id>\b(?=[a-z]*\d)(?=[0-9]*[a-z]){_ID}\b)|(?P<number>{_NUMBER})"
)


class Block(NamedTuple):
    """A code block."""

    language: str
    """Empty where none is named."""
    name: str
    """What stands after the language: the name of the file that a reader writes, or of a step."""
    text: str
    line: int
    """In the document, counted from 1."""


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a document between lines of backticks, in order."""
    text = page.read_text()
    return [
        Block(
            found["language"],
            found["name"].strip(),
            textwrap.dedent(found["text"]),
            text.count("\n", 0, found.start()) + 1,
        )
        for found in _FENCED.finditer(text)
    ]


def indented(page: Path) -> list[Block]:
    """Return the blocks of a document that are indented by four blanks, outside of lists."""
    text = _FENCED.sub(lambda it: "\n" * it[0].count("\n"), page.read_text())
    return [
        Block("", "", textwrap.dedent(found[0]), text.count("\n", 0, found.start()) + 1)
        for found in _INDENTED.finditer(text)
    ]


def missing_line(shown: str, printed: str) -> str | None:
    """Return the first line of a shown output that the printed one does not have, in order.

    Numbers and ids may be others, blanks more or fewer; `…` stands for any text, a line of it for
    any lines.
    """
    rest = printed.splitlines()
    for line in shown.splitlines():
        if not line.strip() or line.strip() == "…":
            continue
        pattern = re.compile(rf"\s*{_pattern(line.strip())}\s*")
        matching = next((at for at, it in enumerate(rest) if pattern.fullmatch(it)), None)
        if matching is None:
            return line
        del rest[: matching + 1]
    return None


def _pattern(line: str) -> str:
    parts, end = [], 0
    for found in _TOKENS.finditer(line):
        parts.append(re.escape(line[end : found.start()]))
        parts.append({"gap": ".*", "blank": r"\s+", "id": _ID, "number": _NUMBER}[found.lastgroup])  # type: ignore[index]
        end = found.end()
    return "".join([*parts, re.escape(line[end:])])
