"""The trial's data: `ctx.data`.

    images = ctx.data["train"]              # a path, once the data are complete
    ImageFolder(images)
    for shard in ctx.data["train"].files(): # each file as soon as it is complete
        ...
    labels = ctx.data["train"] / "labels.csv"

Under Rung the agent downloads the data into the node's cache before the run, or during it where
the source has `stream: true`; a file appears there once it is complete and verified. In unmanaged
runs, folders and files are used where they are, and data in S3 through the user's own cache. The
files are shared: do not write to them.
"""

import difflib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from rung.cache.errors import DataError
from rung.cache.source import Source, sources_of, variable_of
from rung.cache.tree import Tree
from rung.core.ipc.environment import filling_variable_of

_LOOK_S: Final = 0.02


class DataSource(Struct, frozen=True):
    """One source; an `os.PathLike` and usable wherever a path is."""

    name: str
    root: Path
    """The folder or file, whether or not it is complete."""
    filling: Path | None = None
    """The cache's folder for a download that may still go on, if there is one."""

    @property
    def path(self) -> Path:
        """The folder or file; waits until it is complete.

        Raises:
            DataError: the download failed.
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
        """Return a file or folder within it, once that is complete.

        Raises:
            FileNotFoundError: the source does not have it.
            DataError: the download failed.
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
        """Yield all files, sorted by name, each once it is complete.

        Raises:
            DataError: the download failed.
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
        """Return the files of a name: the file itself, or all below a folder."""
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
        """Wait for a moment; raise the error of a failed download.

        Polled because a DataLoader's worker, which has no connection to the agent, may wait, too.
        """
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
            self._found[name] = _at_agent_path(source) if self._managed else _local(source)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _at_agent_path(source: Source) -> DataSource:
    """Return a source at the path that the agent has set."""
    root = os.environ.get(variable_of(source.name))
    if not root:
        raise DataError(f"{variable_of(source.name)} is not set; the agent sets it for the script")
    filling = os.environ.get(filling_variable_of(source.name))
    return DataSource(source.name, Path(root), Path(filling) if filling else None)


def _local(source: Source) -> DataSource:
    """Return a source of an unmanaged run."""
    if source.in_s3:
        from rung.cache.user_cache import local_path  # noqa: PLC0415 - needs the S3 client

        return DataSource(source.name, local_path(source))
    path = Path.cwd() / source.path
    if not path.exists():
        raise DataError(f"data source {source.name}: there is no {path}")
    return DataSource(source.name, path)
