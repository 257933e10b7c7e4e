"""Builds a tree of JSON values from YAML's events, within limits.

Aliases share the value that they stand for, and every use counts with its full expanded size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from rung.config.problem import PathPart, Problem, dotted, shortened
from rung.config.secret_name import HIDDEN, is_secret
from rung.config.yaml.scalar import BadScalar, checked_text, resolve

DEPTH_MAX: Final = 50
NODES_MAX: Final = 100_000
LETTERS_MAX: Final = 4 * 1024 * 1024

_CORE: Final = "tag:yaml.org,2002:"
_MERGE: Final = "<<"

Path = tuple[PathPart, ...]


class Limit(Exception):
    """The file exceeds a limit, and parsing ends."""

    def __init__(self, message: str, path: Path, line: int | None) -> None:
        self.path = path
        self.line = line
        super().__init__(message)


@dataclass(slots=True)
class _Size:
    nodes: int
    letters: int


@dataclass(slots=True)
class _Frame:
    """A map or a list that is being parsed."""

    value: dict[str, Any] | list[Any]
    path: Path
    line: int
    anchor: str | None
    size: _Size
    key: str | None = None
    """The key whose value comes next."""
    at_value: bool = False
    """In a map: the next node is a value; the key may have been refused (None)."""
    merging: bool = False
    """The key was an unquoted `<<`."""
    merged: list[dict[str, Any]] = field(default_factory=list)


class Builder:
    """Builds the tree from YAML's events in order.

    Attributes:
        root: the tree; None as long as there is none.
        lines: path of each value → its line.
        problems: of the values that were left out.
    """

    def __init__(self) -> None:
        self.root: Any = None
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, _Size] | None] = {}
        self._documents = 0
        self._nodes = 0
        self._letters = 0

    def take(self, event: yaml.Event) -> None:
        """Take the next event.

        Raises:
            Limit: it exceeds a limit.
        """
        line = event.start_mark.line + 1 if event.start_mark else 1
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise Limit("the file holds several documents (`---`); keep one", (), line)
            case yaml.MappingStartEvent():
                self._open({}, event, line)
            case yaml.SequenceStartEvent():
                self._open([], event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.AliasEvent():
                self._alias(event, line)
            case _:
                pass

    def _open(
        self,
        value: dict[str, Any] | list[Any],
        event: yaml.MappingStartEvent | yaml.SequenceStartEvent,
        line: int,
    ) -> None:
        path = self._next_path()
        if len(self._stack) >= DEPTH_MAX:
            raise Limit(f"nested more than {DEPTH_MAX} levels deep", path, line)
        kind = "map" if isinstance(value, dict) else "seq"
        if event.tag not in {None, "!", f"{_CORE}{kind}"}:
            tag = _tag(event.tag)
            self._refuse(path, line, f"the tag {tag} is not allowed here; remove it", hidden=tag)
        if event.anchor:
            self._anchors[event.anchor] = None
        self._count(1, 0, path, line)
        self._stack.append(_Frame(value, path, line, event.anchor, _Size(1, 0)))

    def _close(self) -> None:
        frame = self._stack.pop()
        if isinstance(frame.value, dict):
            for source in frame.merged:
                for key, item in source.items():
                    frame.value.setdefault(key, item)
        if frame.anchor:
            self._anchors[frame.anchor] = (frame.value, frame.size)
        self._place(frame.value, frame.size, frame.line)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        path = self._next_path()
        size = _Size(1, len(event.value))
        self._count(size.nodes, size.letters, path, line)
        top = self._stack[-1] if self._stack else None
        if top and isinstance(top.value, dict) and not top.at_value:
            if event.anchor:
                self._anchors[event.anchor] = (event.value, size)
            self._key(top, event, line)
            return
        try:
            value = _value_of(event)
        except BadScalar as bad:
            value = shortened(event.value)
            self._refuse(path, line, str(bad), value, hidden=_tag(event.tag))
            value = None
        if event.anchor:
            self._anchors[event.anchor] = (value, size)
        self._place(value, size, line)

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        path = self._next_path()
        name = HIDDEN if is_secret(path) else shortened(str(event.anchor))
        if str(event.anchor) not in self._anchors:
            raise Limit(f"the alias *{name} has no anchor before it", path, line)
        known = self._anchors[str(event.anchor)]
        if known is None:
            raise Limit(f"the alias *{name} contains itself", path, line)
        value, size = known
        self._count(size.nodes, size.letters, path, line)
        top = self._stack[-1] if self._stack else None
        if top and isinstance(top.value, dict) and not top.at_value:
            self._refuse(path, line, "a key must be written out, not an alias")
            top.key, top.at_value = None, True
            return
        self._place(value, size, line)

    def _key(self, frame: _Frame, event: yaml.ScalarEvent, line: int) -> None:
        """Take a scalar as the key of what comes next."""
        frame.at_value = True
        frame.key = None
        key, path = event.value, (*frame.path, event.value)
        frame.merging = key == _MERGE and not event.style
        if frame.merging:
            return
        try:
            named = _value_of(event)
        except BadScalar as bad:
            self._refuse(frame.path, line, f"a key {bad}", shortened(key))
            return
        if not isinstance(named, str):
            self._refuse(path, line, f'a key must be text; write "{key}" in quotes', key)
        elif path in self.lines:
            self._refuse(path, line, f"given twice, first on line {self.lines[path]}; keep one")
        else:
            self.lines[path] = line
            frame.key = key

    def _place(self, value: Any, size: _Size, line: int) -> None:
        """Put a finished value where it belongs."""
        if not self._stack:
            self.root = value
            return
        frame = self._stack[-1]
        frame.size.nodes += size.nodes
        frame.size.letters += size.letters
        if isinstance(frame.value, list):
            self.lines[*frame.path, len(frame.value)] = line
            frame.value.append(value)
        elif not frame.at_value:
            self._refuse(frame.path, line, "a key must be text, not a map or a list")
            frame.key, frame.at_value = None, True
        else:
            self._member(frame, value, line)
            frame.key, frame.at_value = None, False

    def _member(self, frame: _Frame, value: Any, line: int) -> None:
        assert isinstance(frame.value, dict)
        if frame.key is not None:
            frame.value[frame.key] = value
            return
        if not frame.merging:
            return
        frame.merging = False
        sources = value if isinstance(value, list) else [value]
        if all(isinstance(source, dict) for source in sources):
            frame.merged.extend(sources)
        else:
            self._refuse((*frame.path, _MERGE), line, "`<<` merges maps: write `<<: *name`")

    def _next_path(self) -> Path:
        if not self._stack:
            return ()
        frame = self._stack[-1]
        if isinstance(frame.value, list):
            return (*frame.path, len(frame.value))
        if not frame.at_value:
            return frame.path
        return (*frame.path, "?" if frame.key is None else frame.key)

    def _count(self, nodes: int, letters: int, path: Path, line: int) -> None:
        self._nodes += nodes
        self._letters += letters
        if self._nodes > NODES_MAX:
            raise Limit(f"more than {NODES_MAX:,} values, aliases expanded", path, line)
        if self._letters > LETTERS_MAX:
            raise Limit(f"more than {LETTERS_MAX:,} letters, aliases expanded", path, line)

    def _refuse(
        self, path: Path, line: int, message: str, value: str | None = None, *, hidden: str = ""
    ) -> None:
        """Note a problem.

        Args:
            path: of the value.
            line: in the file.
            message: what is wrong.
            value: as it was given.
            hidden: what the message says of a value, which it must not of a secret.
        """
        if is_secret(path):
            value = None if value is None else HIDDEN
            message = message.replace(hidden, HIDDEN) if hidden else message
        self.problems.append(Problem(dotted(path), message, value, line))


def _value_of(event: yaml.ScalarEvent) -> Any:
    text = checked_text(event.value)
    plain, quoted = event.implicit
    tag = event.tag
    if tag is None or (tag == "!" and quoted):
        return resolve(text) if plain and not event.style else text
    if tag in {"!", f"{_CORE}str"}:
        return text
    wanted = _TYPES.get(tag.removeprefix(_CORE)) if tag.startswith(_CORE) else None
    if wanted is None:
        raise BadScalar(f"has the tag {_tag(tag)}, which is not allowed here; remove it")
    value = resolve(text)
    if not wanted(value):
        raise BadScalar(f"is no {_tag(tag)}")
    return value


def _tag(tag: str | None) -> str:
    return shortened((tag or "").replace(_CORE, "!!"))


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def levels_of(value: Any) -> int:
    """Return how many levels deep maps and lists are nested in a value."""
    levels = 0
    inner = [value]
    while inner := [each for each in inner if isinstance(each, dict | list)]:
        levels += 1
        inner = [
            part for each in inner for part in (each.values() if isinstance(each, dict) else each)
        ]
    return levels
