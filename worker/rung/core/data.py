"""The trial's data: `ctx.data`.

    images = ctx.data["train"]              # a path: all of it is there
    ImageFolder(images)
    for shard in ctx.data["train"].files(): # each as soon as it is there
        ...
    labels = ctx.data["train"] / "labels.csv"

Under Rung the agent has brought the data into the node's cache, or still does, where the source
says `stream: true`; a file appears there once it is whole and verified. By hand, folders and
files are used where they are, and what is in S3 goes through a cache of the user's own.
The files are shared: do not write to them.
"""

import difflib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from rung.cache.source import Source, sources_of, variable_of
from rung.cache.tree import Tree
from rung.cache.trouble import DataError

_LOOK_S: Final = 0.02


def filling_variable_of(name: str) -> str:
    """Return the environment variable that says where a source is being filled."""
    return variable_of(name).replace("RUNG_DATA_", "RUNG_FILLING_", 1)


class DataSource(Struct, frozen=True):
    """One source; `os.fspath`, `str`, and whatever takes a path take it for its path."""

    name: str
    root: Path
    """Where it is, or will be."""
    filling: Path | None = None
    """The folder of the cache that is still being filled, if it is."""

    @property
    def path(self) -> Path:
        """The folder or file, once all of it is there.

        Raises:
            DataError: it cannot be brought.
        """
        if self.filling is not None:
            tree = Tree(self.filling)
            while not tree.complete:
                self._wait(tree)
        return self.root

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        """Return a file or folder of it, once that is there.

        Raises:
            FileNotFoundError: it will not be.
            DataError: it cannot be brought.
        """
        path = self.root / name
        for wanted in self._expected(name):
            self._await(wanted)
        if not path.exists():
            close = difflib.get_close_matches(name, [str(it) for it in self._names()], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise FileNotFoundError(f"data source {self.name} has no {name!r}{hint}")
        return path

    def files(self) -> Iterator[Path]:
        """Yield all files, sorted by name, each once it is there.

        Raises:
            DataError: one cannot be brought.
        """
        if self.root.is_file():
            yield self.root
            return
        for name in self._names():
            self._await(name)
            yield self.root / name

    def _names(self) -> list[str]:
        """Return the names of all files."""
        listing = Tree(self.filling).listing() if self.filling else None
        if listing is not None:
            return [entry.name for entry in listing.entries]
        if self.root.is_file():
            return [self.root.name]
        found = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def _expected(self, name: str) -> list[str]:
        """Return the files that a name means: itself, or all below it."""
        if self.filling is None:
            return []
        below = f"{name.rstrip('/')}/"
        return [it for it in self._names() if it == name or it.startswith(below)]

    def _await(self, name: str) -> None:
        if self.filling is None:
            return
        tree, path = Tree(self.filling), self.root / name
        if tree.files != self.root:  # a single file
            path = self.root
        while not path.exists():
            self._wait(tree)

    def _wait(self, tree: Tree) -> None:
        """Wait a little: the agent is at it, and a process of the loader's may ask."""
        if tree.failure:
            raise DataError(tree.failure)
        time.sleep(_LOOK_S)


os.PathLike.register(DataSource)


class DataContext(Mapping[str, DataSource]):
    """The sources that the experiment file names, by name."""

    def __init__(self, config: Mapping[str, Any], *, managed: bool) -> None:
        self._sources = {source.name: source for source in sources_of(config)}
        self._managed = managed
        self._found: dict[str, DataSource] = {}

    def __getitem__(self, name: str) -> DataSource:
        if name not in self._sources:
            known = ", ".join(self._sources) or "none"
            raise KeyError(f"{name!r}: the experiment's data.sources names {known}")
        if name not in self._found:
            source = self._sources[name]
            self._found[name] = _brought(source) if self._managed else _local(source)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _brought(source: Source) -> DataSource:
    """Return where the agent says that it is."""
    root = os.environ.get(variable_of(source.name))
    if not root:
        raise DataError(f"{variable_of(source.name)} is not set; the agent sets it for the script")
    filling = os.environ.get(filling_variable_of(source.name))
    return DataSource(source.name, Path(root), Path(filling) if filling else None)


def _local(source: Source) -> DataSource:
    """Return a source for a script that is run by hand."""
    if source.in_s3:
        from rung.cache.own import brought  # noqa: PLC0415 - wants the S3 client

        return DataSource(source.name, brought(source))
    path = Path.cwd() / source.path
    if not path.exists():
        raise DataError(f"data source {source.name}: there is no {path}")
    return DataSource(source.name, path)
