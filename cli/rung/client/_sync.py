"""Synchronous client, for scripts without an event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from rung import api
from rung.client._client import Action, AsyncClient, Begin, ExperimentQuery, LogQuery
from rung.client._sse import ServerEvent
from rung.client._transport import Query

T = TypeVar("T")


class Client:
    """`AsyncClient` with plain methods; an event loop of its own runs in a thread.

    with Client("http://127.0.0.1:8080", token) as client:
        print(client.best("k3v9x2ab").value)
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the arguments of `AsyncClient`."""
        self._client = AsyncClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rung-client", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(
        self, config: str | bytes, code: bytes | None = None, *, key: str | None = None
    ) -> api.Submitted:
        """Submit an experiment file and, if it has one, its packed code folder."""
        return self._run(self._client.submit(config, code, key=key))

    def validate(self, config: str | bytes) -> api.Validated:
        """Return an experiment file's configuration with all defaults."""
        return self._run(self._client.validate(config))

    def experiments(self, **query: Unpack[ExperimentQuery]) -> api.ExperimentList:
        """Return a page of experiments, the newest first."""
        return self._run(self._client.experiments(**query))

    def experiment(self, experiment_id: str) -> api.Experiment:
        """Return an experiment with its trials; the id may be shortened."""
        return self._run(self._client.experiment(experiment_id))

    def trial(self, trial_id: str) -> api.TrialDetail:
        """Return a trial with its checkpoints."""
        return self._run(self._client.trial(trial_id))

    def trials(self, experiment_id: str) -> list[api.Trial]:
        """Return an experiment's trials."""
        return self._run(self._client.trials(experiment_id))

    def best(self, experiment_id: str) -> api.BestAnswer:
        """Return an experiment's best trial and its checkpoint."""
        return self._run(self._client.best(experiment_id))

    def checkpoints(self, owner_id: str) -> list[api.Checkpoint]:
        """Return the checkpoints of an experiment or of a trial."""
        return self._run(self._client.checkpoints(owner_id))

    def checkpoint(self, checkpoint_id: str) -> api.CheckpointDetail:
        """Return a checkpoint with its files."""
        return self._run(self._client.checkpoint(checkpoint_id))

    def download(
        self, checkpoint_id: str, folder: Path, *, below: str = ""
    ) -> api.CheckpointDetail:
        """Write a checkpoint's files to a new folder, each checked against its digest."""
        return self._run(self._client.download(checkpoint_id, folder, below=below))

    def ask(self, action: Action, experiment_id: str, *, key: str | None = None) -> api.Requested:
        """Request that an experiment pauses, resumes, is canceled or is killed."""
        return self._run(self._client.ask(action, experiment_id, key=key))

    def move(
        self, trial_id: str, *, to: str | None = None, key: str | None = None
    ) -> api.MoveAsked:
        """Request that a trial checkpoints and resumes on another agent."""
        return self._run(self._client.move(trial_id, to=to, key=key))

    def configure_pool(
        self,
        pool: str,
        *,
        policy: str,
        options: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> api.PoolConfigured:
        """Set the scheduling policy of a pool."""
        asked = self._client.configure_pool(pool, policy=policy, options=options, key=key)
        return self._run(asked)

    def curves(
        self, experiment_id: str, *, kind: str, name: str, points: int = 200
    ) -> api.ExperimentCurves:
        """Return one metric of all trials, downsampled to some points."""
        return self._run(self._client.curves(experiment_id, kind=kind, name=name, points=points))

    def curve(self, trial_id: str, *, kind: str, name: str, points: int = 200) -> api.TrialCurve:
        """Return one metric of one trial, downsampled to some points."""
        return self._run(self._client.curve(trial_id, kind=kind, name=name, points=points))

    def logs(self, owner_id: str, **query: Unpack[LogQuery]) -> api.LogPage:
        """Return a page of the log lines of an experiment's trials, or of one trial."""
        return self._run(self._client.logs(owner_id, **query))

    def collect_logs(
        self,
        experiment_id: str | None = None,
        *,
        before: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> api.LogsCollected:
        """Delete log lines of an experiment, or before a time, or both."""
        return self._run(
            self._client.collect_logs(experiment_id, before=before, dry_run=dry_run, key=key)
        )

    def follow_logs(
        self, owner_id: str, query: Query | None = None, *, after: str | None = None
    ) -> Iterator[ServerEvent]:
        """Yield log lines, stored ones and new ones; never ends."""
        return self._iterate(self._client.follow_logs(owner_id, query, after=after))

    def follow_events(
        self, experiment_id: str, *, begin: Begin = "start", after: str | None = None
    ) -> Iterator[ServerEvent]:
        """Yield the events of an experiment, as CloudEvents; never ends."""
        return self._iterate(self._client.follow_events(experiment_id, begin=begin, after=after))

    def follow_metrics(
        self, experiment_id: str, *, begin: Begin = "start", after: str | None = None
    ) -> Iterator[ServerEvent]:
        """Yield `{trial_id, run, rows}` of metrics as they are reported; never ends."""
        return self._iterate(self._client.follow_metrics(experiment_id, begin=begin, after=after))

    def audit(self, experiment_id: str) -> api.Audit:
        """Decide every decision about an experiment again, and compare."""
        return self._run(self._client.audit(experiment_id))

    def agents(self) -> api.AgentList:
        """Return all agents with their slots."""
        return self._run(self._client.agents())

    def queue(self) -> list[api.QueueItem]:
        """Return the requests for slots, the next one first."""
        return self._run(self._client.queue())

    def dead_letters(
        self, limit: int = 100, *, state: api.DeadLetterState | None = None
    ) -> api.DeadLetterList:
        """Return the newest dead letters."""
        return self._run(self._client.dead_letters(limit, state=state))

    def dead_letter(self, letter_id: str) -> api.DeadLetter:
        """Return a dead letter by its id, READER/TOPIC/PARTITION/POSITION."""
        return self._run(self._client.dead_letter(letter_id))

    def retry_dead_letter(self, letter_id: str, *, key: str | None = None) -> api.DeadLetterAsked:
        """Request that a reader processes a rejected message again."""
        return self._run(self._client.retry_dead_letter(letter_id, key=key))

    def drop_dead_letter(self, letter_id: str, *, key: str | None = None) -> api.DeadLetterAsked:
        """Request that a reader skips a rejected message for ever."""
        return self._run(self._client.drop_dead_letter(letter_id, key=key))

    def status(self) -> api.Status:
        """Return the status of the installation."""
        return self._run(self._client.status())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _iterate(self, events: AsyncGenerator[ServerEvent, None]) -> Iterator[ServerEvent]:
        async def take() -> ServerEvent:
            return await anext(events)

        try:
            while True:
                yield self._run(take())
        except StopAsyncIteration:
            return
        finally:
            if not self._loop.is_closed():
                self._run(events.aclose())
