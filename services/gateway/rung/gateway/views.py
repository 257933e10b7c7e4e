"""All read models of the gateway, kept up to date with the ledger."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

import structlog

from rung.events import RungError, partition_of, topic
from rung.gateway.deadletter_view import Letter, Letters, LetterView
from rung.gateway.experiment import Checkpoint, Experiment, Submission
from rung.gateway.experiment_view import ExperimentView
from rung.gateway.follower import Follower
from rung.gateway.pool_view import Pool, PoolView
from rung.ledger import Ledger
from rung.runtime.retry import supervise

_SAVES_WITHIN_S: Final = 5.0

_log = structlog.get_logger()


class Ambiguous(Exception):
    """Several things have an id that begins so.

    Attributes:
        ids: some of them.
    """

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        super().__init__(", ".join(ids))


class Views:
    """What the gateway knows; everything in it comes from the ledger alone."""

    def __init__(self, ledger: Ledger, *, snapshot_every: int = 20_000) -> None:
        self._ledger = ledger
        self._tick = asyncio.Event()
        self._order: list[tuple[str, str]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] | None = None

        def follow(view: Any) -> list[Follower[Any]]:
            return [
                Follower(
                    ledger, view, number, snapshot_every=snapshot_every, changed=self._changed
                )
                for number in range(ledger.partitions(view.facts))
            ]

        self._experiments: list[Follower[Experiment]] = follow(ExperimentView())
        self._pools: list[Follower[Pool]] = follow(PoolView())
        self._letters: list[Follower[Letters]] = follow(LetterView())
        self._followers: list[Follower[Any]] = [*self._experiments, *self._pools, *self._letters]

    async def start(self) -> None:
        """Fold the ledger up to its present end, and go on in the background."""
        self._failure = asyncio.get_running_loop().create_future()
        for follower in self._followers:
            await follower.open()
        for number, follower in enumerate(self._followers):
            task = asyncio.create_task(supervise(follower.run, name=f"gateway-views/{number}"))
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def failed(self) -> None:
        """Wait for ever, or for the error that ends a follower.

        Raises:
            LedgerError: one that does not pass by itself.
        """
        assert self._failure is not None, "not started"
        await asyncio.shield(self._failure)

    async def close(self) -> None:
        """Stop following, and save snapshots."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(RungError, TimeoutError):
            async with asyncio.timeout(_SAVES_WITHIN_S):
                for follower in self._followers:
                    await follower.save()

    async def seen(self, name: str, key: str, position: int, *, wait_s: float) -> bool:
        """Wait until a key's topic was folded up to and with a position; return whether it was.

        Args:
            name: the topic.
            key: of the record at the position.
            position: of the record.
            wait_s: how long to wait at most.
        """
        followers: list[Follower[Any]]
        match name:
            case topic.POOLS:
                followers = [*self._pools]
            case topic.DEADLETTER:
                followers = [*self._letters]
            case _:
                followers = [*self._experiments]
        partition = partition_of(key, self._ledger.partitions(name))
        positions = followers[partition].fold.positions
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while positions[name] <= position:
                    await self._tick.wait()
        return positions[name] > position

    def experiment(self, experiment_id: str) -> Experiment | None:
        """Return a submitted experiment by its whole id."""
        keyed = self._fold_of(experiment_id).keys.get(experiment_id)
        return keyed.state if keyed is not None and keyed.state.submission is not None else None

    def starts(self, experiment_id: str) -> dict[str, int]:
        """Return, per topic, a position before which nothing of the experiment lies."""
        keyed = self._fold_of(experiment_id).keys.get(experiment_id)
        return dict(keyed.starts) if keyed is not None else {}

    def find_experiment(self, prefix: str) -> Experiment | None:
        """Return the one experiment whose id is, or begins with, `prefix`.

        Raises:
            Ambiguous: there are several.
        """
        exact = self.experiment(prefix)
        if exact is not None or not prefix:
            return exact
        found = [state for state in self._submitted() if state.id.startswith(prefix)]
        if len(found) > 1:
            raise Ambiguous(sorted(state.id for state in found)[:10])
        return found[0] if found else None

    def checkpoint(self, checkpoint_id: str) -> tuple[Experiment, Checkpoint] | None:
        """Return a checkpoint by its whole id, and its experiment."""
        for state in self._submitted():
            found = state.checkpoints.get(checkpoint_id)
            if found is not None:
                return state, found
        return None

    def find_checkpoint(self, prefix: str) -> tuple[Experiment, Checkpoint] | None:
        """Return the one checkpoint whose id is, or begins with, `prefix`, and its experiment.

        Raises:
            Ambiguous: there are several.
        """
        exact = self.checkpoint(prefix)
        if exact is not None or not prefix:
            return exact
        found = [
            (state, checkpoint)
            for state in self._submitted()
            for checkpoint in state.checkpoints.values()
            if checkpoint.id.startswith(prefix)
        ]
        if len(found) > 1:
            raise Ambiguous(sorted(checkpoint.id for _, checkpoint in found)[:10])
        return found[0] if found else None

    def newest_first(self) -> list[tuple[str, str]]:
        """Return time of submission and id of every experiment, the newest first."""
        count = sum(1 for _ in self._submitted())
        if count != len(self._order):
            self._order = sorted(
                ((_at(state.submission), state.id) for state in self._submitted()), reverse=True
            )
        return self._order

    def experiments(self) -> list[Experiment]:
        """Return every submitted experiment, in no order."""
        return list(self._submitted())

    def pools(self) -> list[Pool]:
        """Return every resource pool, by name."""
        found = [keyed.state for f in self._pools for keyed in f.fold.keys.values()]
        return sorted(found, key=lambda pool: pool.name)

    def letters(self) -> list[Letter]:
        """Return the dead letters at hand, the newest first."""
        found = [letter for letters in self._by_topic() for letter in letters.letters.values()]
        return sorted(found, key=lambda it: (it.at, it.topic, it.number), reverse=True)

    def letter(self, letter_id: str) -> Letter | None:
        """Return a dead letter by its id, if it is at hand."""
        for letters in self._by_topic():
            found = letters.letters.get(letter_id)
            if found is not None:
                return found
        return None

    def asked_of_letters(self, origin: str) -> str | None:
        """Return what a client's request asked for, by its origin; None: nothing so far."""
        for letters in self._by_topic():
            if origin in letters.requests:
                return letters.requests[origin]
        return None

    def open_letters(self) -> int:
        """Return how many dead letters are open."""
        return sum(letters.open for letters in self._by_topic())

    def _by_topic(self) -> Iterator[Letters]:
        for follower in self._letters:
            for keyed in follower.fold.keys.values():
                yield keyed.state

    def _fold_of(self, experiment_id: str) -> Any:
        partitions = self._ledger.partitions(topic.EXPERIMENTS)
        return self._experiments[partition_of(experiment_id, partitions)].fold

    def _submitted(self) -> Iterator[Experiment]:
        for follower in self._experiments:
            for keyed in follower.fold.keys.values():
                if keyed.state.submission is not None:
                    yield keyed.state

    def _changed(self) -> None:
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("views stopped", error=str(error))
            assert self._failure is not None
            if not self._failure.done():
                self._failure.set_exception(error)


def _at(submission: Submission | None) -> str:
    return submission.at if submission is not None else ""
