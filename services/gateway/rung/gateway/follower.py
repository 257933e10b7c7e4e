"""Keeps one partition of a read model up to date with the ledger."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from rung.events import LedgerError
from rung.events import topic as topics
from rung.gateway.view import View
from rung.gateway.view_fold import Image, ViewFold
from rung.ledger import Ledger
from rung.runtime import Rejected, dead_letter, say_rejected

S = TypeVar("S")

READER: Final = "gateway"
_READ_MAX: Final = 2_000
_SAVES_WITHIN_S: Final = 2.0
_LOADS_WITHIN_S: Final = 15.0

_log = structlog.get_logger()


class Follower(Generic[S]):
    """Follows one partition of a view's topics; `fold` is the view as far as it was seen."""

    def __init__(
        self,
        ledger: Ledger,
        view: View[S],
        partition: int,
        *,
        snapshot_every: int,
        changed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._view = view
        self._partition = partition
        self._snapshot_every = snapshot_every
        self._changed = changed
        self._snapshotted = 0
        self.fold: ViewFold[S] = ViewFold(view)

    async def open(self) -> None:
        """Load the newest snapshot and fold what lies behind it."""
        self.fold = ViewFold(self._view, await self._load())
        self._snapshotted = self._count
        more = True
        while more:
            more = await self._advance()

    async def run(self) -> None:
        """Fold what comes until cancelled."""
        self.fold.forget_held()
        grew = asyncio.Event()
        watchers = [
            asyncio.create_task(self._watch(topic, position, grew))
            for topic, position in self.fold.positions.items()
        ]
        try:
            while True:
                grew.clear()
                while await self._advance():
                    await self._save_if_due()
                await grew.wait()
                for watcher in watchers:
                    if watcher.done():
                        watcher.result()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def save(self) -> None:
        """Save a snapshot, if anything was folded since the last one."""
        if self._count == self._snapshotted:
            return
        self._snapshotted = self._count
        value = msgspec.json.encode(self.fold.image)
        await self._ledger.save_snapshot(self._snapshot_name, self._partition, value)

    async def _watch(self, topic: str, position: int, grew: asyncio.Event) -> None:
        try:
            async for _ in self._ledger.follow(topic, self._partition, position):
                grew.set()
        finally:
            grew.set()

    async def _advance(self) -> bool:
        """Fold what is there now, or a part of it; return whether there may be more."""
        fold, facts_topic = self.fold, self._view.facts
        orphans = fold.holds
        facts = await self._ledger.read(
            facts_topic, self._partition, fold.positions[facts_topic], _READ_MAX
        )
        last = facts[-1].position if facts else fold.positions[facts_topic] - 1
        brought = [await self._bring(topic, last) for topic in self._view.decisions]
        before = self._count
        rejected = fold.fold(facts)
        if not facts and orphans and not any(brought):
            rejected += fold.fold_orphans()
        if self._count != before:
            self._changed()
        await self._reject(rejected)
        return bool(facts) or any(brought)

    async def _bring(self, topic: str, last_fact: int) -> bool:
        """Bring the decisions that the facts up to `last_fact` may follow from."""
        brought = False
        while self.fold.last_cause(topic) <= last_fact:
            records = await self._ledger.read(
                topic, self._partition, self.fold.read_up_to(topic), _READ_MAX
            )
            if not records:
                break
            self.fold.hold(records)
            brought = True
        return brought

    async def _save_if_due(self) -> None:
        """Save a snapshot now and then; where it cannot be saved, the view goes on without."""
        if self._count - self._snapshotted < self._snapshot_every:
            return
        try:
            async with asyncio.timeout(_SAVES_WITHIN_S):
                await self.save()
        except (LedgerError, TimeoutError) as error:
            _log.warning("no snapshot saved", view=self._view.name, reason=str(error))

    async def _load(self) -> Image[S] | None:
        value = await self._read_snapshot()
        if value is None:
            return None
        kind: Any = Image[self._view.state_type]  # type: ignore[name-defined]
        try:
            with _no_collection():
                image: Image[S] = msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as error:
            _log.warning("snapshot ignored", view=self._view.name, reason=str(error))
            return None
        return image if image.version == self._view.version else None

    async def _read_snapshot(self) -> bytes | None:
        """Return the newest snapshot; where it cannot be had, folding from the beginning does."""
        try:
            async with asyncio.timeout(_LOADS_WITHIN_S):
                return await self._ledger.snapshot(self._snapshot_name, self._partition)
        except (LedgerError, TimeoutError) as error:
            _log.warning("no snapshot loaded", view=self._view.name, reason=str(error))
            return None

    async def _reject(self, rejected: list[Rejected]) -> None:
        say_rejected(READER, rejected)
        drafts = [
            dead_letter(self._ledger.id, READER, item)
            for item in rejected
            if item.record.topic != topics.DEADLETTER
        ]
        if drafts:
            await self._ledger.append(drafts)

    @property
    def _count(self) -> int:
        return sum(self.fold.positions.values())

    @property
    def _snapshot_name(self) -> str:
        return f"gateway/{self._view.name}"


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector off while much is made that is no garbage: 4 times as fast."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
