"""Reads a Dockerfile as far as the tests need it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_FROM: Final = re.compile(r"(?P<base>\S+)(?:\s+AS\s+(?P<name>\S+))?", re.IGNORECASE)


@dataclass
class Stage:
    """A stage: its base and what is done in it."""

    name: str
    base: str
    done: list[tuple[str, str]] = field(default_factory=list)
    """Instructions with their arguments, in order."""

    def of(self, instruction: str) -> list[str]:
        """Return the arguments of each such instruction."""
        return [words for name, words in self.done if name == instruction]


def stages(path: Path) -> dict[str, Stage]:
    """Return the stages by name; each has what the stages that it is built on do, too."""
    found: dict[str, Stage] = {}
    current = Stage("", "")
    for name, words in _instructions(path):
        if name == "FROM":
            match = _FROM.fullmatch(words)
            assert match is not None, words
            base = found.get(match["base"])
            current = Stage(match["name"], match["base"], list(base.done) if base else [])
            found[current.name] = current
        else:
            current.done.append((name, words))
    return found


def _instructions(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [
        (name.upper(), words.strip())
        for name, _, words in (line.strip().partition(" ") for line in whole.splitlines() if line)
    ]
