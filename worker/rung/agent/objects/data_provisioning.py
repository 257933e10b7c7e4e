"""Data provisioning: downloads data sources into the node's cache, before or during a run.

A run waits until its data are complete, unless a source has `stream: true`. Runs that need the
same data wait for one download, here and in other agents that share the cache folder. A run keeps
its data from being evicted until it ends. While S3 is away, or the cache is full of data of
running trials, it waits, and its log has the reason.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from rung.cache import (
    Cache,
    DataChanged,
    DataError,
    DataUnavailable,
    Held,
    Listing,
    NoRoom,
    Origin,
    Source,
    origin_of,
    sources_of,
    variable_of,
)
from rung.cache.fill import Fill
from rung.config.run_config import CONFIGS
from rung.core.ipc.environment import filling_variable_of
from rung.storage.area import AREAS

_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 30.0

Note = Callable[[str], None]
"""Writes a line into the log of a run."""

_log = structlog.get_logger(__name__)


class SharedFill:
    """The download of one tree, for all runs that need it."""

    def __init__(self, fill: Fill, origin: Origin, threads: ThreadPoolExecutor) -> None:
        self._fill = fill
        self._origin = origin
        self._threads = threads
        self.notes: list[Note] = []
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(_log_failure)

    def join(self, note: Note) -> None:
        """Add a run that waits for it, by its log."""
        self.notes.append(note)

    def leave(self, note: Note) -> None:
        """Remove a run; the download stops when none is left."""
        self.notes.remove(note)
        if not self.notes:
            self.stop()

    def stop(self) -> None:
        """Stop the download soon."""
        self._fill.stop.set()
        self._origin.close()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._fill.stop.is_set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = _RETRY_S
        try:
            while True:
                try:
                    await loop.run_in_executor(self._threads, self._fill.run)
                except DataUnavailable as error:
                    if self.stopped:
                        raise
                    if wait_s == _RETRY_S:
                        for note in self.notes:
                            note(f"waiting: {error}")
                else:
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_S_MAX)
        finally:
            self._origin.close()


def _log_failure(task: "asyncio.Task[None]") -> None:
    """Log a failure of a streamed download: the script gets the error from the tree."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("data could not be downloaded", error=str(error))


_AT_ONCE: Final = 8
_CHANGES_MAX: Final = 5
_OWN: Final = ("archive/", AREAS, "checkpoints/", "code/", CONFIGS, "snapshots/")
"""Prefixes of the platform's own objects in its object store."""

T = TypeVar("T")


class Provision:
    """The data of one run."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        """The environment variables of the run with the paths of its data."""
        self._streamed: list[SharedFill] = []
        self._resources = contextlib.ExitStack()

    async def arrived(self) -> None:
        """Return when all streamed downloads have ended, also with an error."""
        if self._streamed:
            await asyncio.wait([fill_task.task for fill_task in self._streamed])

    def stream(self, fillings: list[SharedFill]) -> None:
        """Note the downloads that go on while the run trains."""
        self._streamed = fillings

    def hold(self, close: Callable[[], None]) -> None:
        """Register a function to call when the run has ended."""
        self._resources.callback(close)

    def close(self) -> None:
        """Release everything."""
        self._resources.close()


class DataProvisioning:
    """Provides the runs of an agent with their data."""

    def __init__(
        self,
        folder: Path,
        limit_bytes: int | None,
        objects_url: str,
        hidden: Sequence[Path] = (),
    ) -> None:
        """Begin without data.

        Args:
            folder: the data cache.
            limit_bytes: its size limit; None: the default of the cache.
            objects_url: the platform's object store.
            hidden: the platform's folders, from which nothing may be cached.
        """
        self.folder = folder
        """The data cache."""
        self._cache = Cache(folder, limit_bytes)
        self._objects_url = objects_url
        self._hidden = hidden
        self._threads = ThreadPoolExecutor(_AT_ONCE, "data")
        self._fills: dict[str, SharedFill] = {}

    async def open(
        self, config: Mapping[str, Any], folder: Path, note: Note, room_s: float = math.inf
    ) -> Provision:
        """Return a run's data, once it may start with them.

        Args:
            config: the experiment's configuration.
            folder: the run's code.
            note: writes into the run's log.
            room_s: how long to wait for room in the cache that other runs hold.

        Raises:
            DataError: a source cannot be used; the message says which and why.
        """
        sources = sources_of(config)
        provision = Provision()
        try:
            kept = []
            for source in sources:
                if await _thread(_is_cached, source):
                    self._check_not_own(source)
                    kept.append(source)
                else:
                    path = await _thread(_in_place, source, folder)
                    provision.variables[variable_of(source.name)] = str(path)
            if kept:
                await self._provide_cached(kept, provision, note, room_s)
        except BaseException:
            provision.close()
            raise
        return provision

    async def close(self) -> None:
        """Stop; files that are complete stay."""
        for fill_task in self._fills.values():
            fill_task.stop()
        tasks = [fill_task.task for fill_task in self._fills.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _provide_cached(
        self, sources: list[Source], provision: Provision, note: Note, room_s: float
    ) -> None:
        for attempt in range(1, _CHANGES_MAX + 1):
            held = await self._reserved(sources, note, room_s)
            undo = contextlib.ExitStack()
            undo.callback(held.close)
            try:
                streamed = await self._filled(sources, held, undo, note)
            except DataChanged as error:
                undo.close()
                if attempt == _CHANGES_MAX:
                    raise
                note(f"listing the data again: {error}")
            except BaseException:
                undo.close()
                raise
            else:
                break
        provision.hold(undo.close)
        provision.stream(streamed)
        trees = zip(sources, held.trees, held.roots, strict=True)
        for source, tree, root in trees:
            provision.variables[variable_of(source.name)] = str(root)
            if source.stream:
                provision.variables[filling_variable_of(source.name)] = str(tree.folder)

    async def _reserved(self, sources: list[Source], note: Note, room_s: float) -> Held:
        """List the sources, with retries, and reserve room for them.

        Raises:
            NoRoom: there was none within `room_s`.
        """
        listings = [await self._listed(source, note) for source in sources]
        said, until = False, time.monotonic() + room_s
        while True:
            reserving = asyncio.ensure_future(_thread(self._cache.reserve, listings))
            try:
                return await asyncio.shield(reserving)
            except NoRoom as error:
                if time.monotonic() > until:
                    raise NoRoom(f"{error}; none did within {room_s:g} s") from error
                if not said:
                    note(str(error))
                said = True
            except asyncio.CancelledError:
                reserving.add_done_callback(_close_late)
                raise
            await asyncio.sleep(_RETRY_S)  # a run of another agent of this node may release room

    async def _listed(self, source: Source, note: Note) -> Listing:
        wait_s = _RETRY_S
        while True:
            origin = origin_of(source, hidden=self._hidden)
            try:
                return await _thread(origin.list)
            except DataUnavailable as error:
                if wait_s == _RETRY_S:
                    note(f"waiting: {error}")
            finally:
                origin.close()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    async def _filled(
        self, sources: list[Source], held: Held, undo: contextlib.ExitStack, note: Note
    ) -> list[SharedFill]:
        """Start all downloads; return when those that are not streamed are complete.

        Returns:
            The downloads that go on.
        """
        awaited = []
        streamed = []
        for number, source in enumerate(sources):
            tree, listing = held.trees[number], held.listings[number]
            if tree.complete:
                continue
            fill_task = self._filling(held, number, source)
            fill_task.join(note)
            undo.callback(fill_task.leave, note)
            note(
                f"data source {source.name}: {len(listing.entries):,} files,"
                f" {listing.size:,} bytes, downloading into the cache"
            )
            if source.stream:
                streamed.append(fill_task)
            else:
                awaited.append(fill_task.task)
        if awaited:
            begun = time.monotonic()
            await asyncio.gather(*map(asyncio.shield, awaited))
            note(f"the data are in the cache, after {time.monotonic() - begun:.1f} s")
        return streamed

    def _filling(self, held: Held, number: int, source: Source) -> SharedFill:
        """Return the download of a tree; there is one at a time."""
        key = held.listings[number].key
        fill_task = self._fills.get(key)
        if fill_task is None or fill_task.task.done() or fill_task.stopped:
            origin = origin_of(source, hidden=self._hidden)
            fill = self._cache.fill(held, number, origin)
            fill_task = self._fills[key] = SharedFill(fill, origin, self._threads)
            fill_task.task.add_done_callback(lambda _: self._forget(key, fill_task))
        return fill_task

    def _forget(self, key: str, fill_task: SharedFill) -> None:
        if self._fills.get(key) is fill_task:
            del self._fills[key]

    def _check_not_own(self, source: Source) -> None:
        """Refuse a source that would give a trial access to checkpoints and code of others."""
        own, place = self._objects_url, source.location
        if (
            not (own.startswith("s3://") and source.in_s3)
            or "RUNG_CACHE_S3_ENDPOINT" in os.environ
        ):
            return
        place = f"{place.rstrip('/')}/"
        for part in _OWN:
            mine = f"{own.rstrip('/')}/{part}"
            if place.startswith(mine) or mine.startswith(place):
                raise DataError(
                    f"data source {source.name}: {source.location} holds {part} of the platform's"
                    " own store; put data below a prefix of their own"
                )


def hidden_variables() -> frozenset[str]:
    """Return the variables with credentials of data sources, which no run must inherit."""
    return frozenset(name for name in os.environ if name.startswith("RUNG_CACHE_"))


async def _thread(call: Callable[..., T], *arguments: Any) -> T:
    """Return the result of a blocking call."""
    return await asyncio.get_running_loop().run_in_executor(None, partial(call, *arguments))


def _is_cached(source: Source) -> bool:
    return source.cached


def _in_place(source: Source, folder: Path) -> Path:
    """Return the path of a source that is used where it is."""
    path = folder / source.path
    if not path.exists():
        where = "on this machine" if source.path.is_absolute() else "among the experiment's code"
        raise DataError(f"data source {source.name}: there is no {source.path} {where}")
    return path


def _close_late(reserving: "asyncio.Future[Held]") -> None:
    if not reserving.cancelled() and reserving.exception() is None:
        reserving.result().close()
