"""The data of an agent's runs: brought into the node's cache before they start, or while they run.

A run waits until its data are there, unless a source says `stream: true`. Runs that want the same
data wait for one filler, here and in other agents that share the cache folder. A run keeps what
it uses from being evicted until it ends. While S3 is away, or the cache is full of what live
trials use, it waits, and says so in its log.
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

from rung.agent.filling import AGAIN_S, AGAIN_S_MAX, Filling, Note
from rung.cache import (
    Cache,
    DataChanged,
    DataError,
    DataUnavailable,
    Held,
    Listing,
    NoRoom,
    Source,
    origin_of,
    sources_of,
    variable_of,
)
from rung.config.run_config import CONFIGS
from rung.core.data import filling_variable_of

_AT_ONCE: Final = 8
_CHANGES_MAX: Final = 5
_OWN: Final = ("archive/", "checkpoints/", "code/", CONFIGS, "snapshots/")
"""What the platform keeps in its object store."""

T = TypeVar("T")


class Provision:
    """The data of one run."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        """What the run finds in its environment."""
        self._streamed: list[Filling] = []
        self._resources = contextlib.ExitStack()

    async def arrived(self) -> None:
        """Wait until nothing more is on its way, or what is will not come."""
        if self._streamed:
            await asyncio.wait([filling.task for filling in self._streamed])

    def stream(self, fillings: list[Filling]) -> None:
        """Note which data come while the run is under way."""
        self._streamed = fillings

    def hold(self, close: Callable[[], None]) -> None:
        """Have something let go when the run has ended."""
        self._resources.callback(close)

    def close(self) -> None:
        """Let go of everything."""
        self._resources.close()


class Supply:
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
            limit_bytes: of what it holds at most.
            objects_url: the platform's object store.
            hidden: the platform's folders, of which no file comes into the cache.
        """
        self.folder = folder
        """The data cache."""
        self._cache = Cache(folder, limit_bytes)
        self._objects_url = objects_url
        self._hidden = hidden
        self._threads = ThreadPoolExecutor(_AT_ONCE, "data")
        self._fillings: dict[str, Filling] = {}

    async def open(
        self, config: Mapping[str, Any], folder: Path, note: Note, room_s: float = math.inf
    ) -> Provision:
        """Return a run's data, once it may start with them.

        Args:
            config: the experiment's configuration.
            folder: with the run's code.
            note: tells the run's log.
            room_s: how long to wait for runs that hold the room in the cache.

        Raises:
            DataError: a source cannot be used; the message says which and why.
        """
        sources = sources_of(config)
        provision = Provision()
        try:
            kept = []
            for source in sources:
                if await _thread(_is_cached, source):
                    self._check_apart(source)
                    kept.append(source)
                else:
                    path = await _thread(_in_place, source, folder)
                    provision.variables[variable_of(source.name)] = str(path)
            if kept:
                await self._bring(kept, provision, note, room_s)
        except BaseException:
            provision.close()
            raise
        return provision

    async def close(self) -> None:
        """Stop; what has come stays."""
        for filling in self._fillings.values():
            filling.stop()
        tasks = [filling.task for filling in self._fillings.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _bring(
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
        """List the sources, however long that takes, and reserve room for them.

        Raises:
            NoRoom: there was none for too long.
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
                reserving.add_done_callback(_let_go)
                raise
            await asyncio.sleep(AGAIN_S)  # others of this node may be those that end

    async def _listed(self, source: Source, note: Note) -> Listing:
        wait_s = AGAIN_S
        while True:
            origin = origin_of(source, hidden=self._hidden)
            try:
                return await _thread(origin.list)
            except DataUnavailable as error:
                if wait_s == AGAIN_S:
                    note(f"waiting: {error}")
            finally:
                origin.close()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, AGAIN_S_MAX)

    async def _filled(
        self, sources: list[Source], held: Held, undo: contextlib.ExitStack, note: Note
    ) -> list[Filling]:
        """Have everything brought; return when all is there that is not streamed.

        Returns:
            What goes on bringing the rest.
        """
        awaited = []
        streamed = []
        for number, source in enumerate(sources):
            tree, listing = held.trees[number], held.listings[number]
            if tree.complete:
                continue
            filling = self._filling(held, number, source)
            filling.join(note)
            undo.callback(filling.leave, note)
            note(
                f"data source {source.name}: {len(listing.entries):,} files,"
                f" {listing.size:,} bytes, on their way into the cache"
            )
            if source.stream:
                streamed.append(filling)
            else:
                awaited.append(filling.task)
        if awaited:
            begun = time.monotonic()
            await asyncio.gather(*map(asyncio.shield, awaited))
            note(f"the data are in the cache, after {time.monotonic() - begun:.1f} s")
        return streamed

    def _filling(self, held: Held, number: int, source: Source) -> Filling:
        """Return the filler of a tree; there is one at a time."""
        key = held.listings[number].key
        filling = self._fillings.get(key)
        if filling is None or filling.task.done() or filling.stopped:
            origin = origin_of(source, hidden=self._hidden)
            fill = self._cache.fill(held, number, origin)
            filling = self._fillings[key] = Filling(fill, origin, self._threads)
            filling.task.add_done_callback(lambda _: self._forget(key, filling))
        return filling

    def _forget(self, key: str, filling: Filling) -> None:
        if self._fillings.get(key) is filling:
            del self._fillings[key]

    def _check_apart(self, source: Source) -> None:
        """Refuse what would show a trial the checkpoints and the code of others."""
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
    """Return the variables with keys to the data, which no run must get."""
    return frozenset(name for name in os.environ if name.startswith("RUNG_CACHE_"))


async def _thread(call: Callable[..., T], *arguments: Any) -> T:
    """Return what a call returns that may block for long."""
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


def _let_go(reserving: "asyncio.Future[Held]") -> None:
    if not reserving.cancelled() and reserving.exception() is None:
        reserving.result().close()
