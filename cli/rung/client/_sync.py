"""Synchronous client, for scripts without an event loop."""

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from rung import api
from rung.client._client import (
    Action,
    ActQuery,
    AsyncClient,
    Begin,
    Describing,
    ExperimentQuery,
    Kind,
    LogQuery,
    Resourcing,
)
from rung.client._directory import (
    PlainAssignments,
    PlainGroups,
    PlainModels,
    PlainProjects,
    PlainUsers,
    PlainWebhooks,
    PlainWorkspaces,
)
from rung.client._error import ExperimentFailed, failure_of
from rung.client._handle import ExperimentHandle
from rung.client._inputs import Code, Config
from rung.client._sse import ServerEvent
from rung.client._transport import Query
from rung.client._wait import Note, Shown

T = TypeVar("T")


class Client:
    """`AsyncClient` with plain methods; an event loop of its own runs in a thread.

        client = Client()
        experiment = client.submit("experiment.yaml", "code").wait()
        print(experiment.best().params)

    As there, `Client()` finds the gateway of `RUNG_URL`, or of the data folder. `close()`, or a
    `with` block, closes its connections; so does the end of the process.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the arguments of `AsyncClient`."""
        self._client = AsyncClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rung-client", daemon=True
        )
        self._thread.start()
        # Closes it with the process at the latest; holds no reference to this object.
        self._closing = weakref.finalize(self, _close, self._client, self._loop, self._thread)

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
        self._closing()

    @property
    def url(self) -> str:
        """Of the gateway."""
        return self._client.url

    @property
    def users(self) -> PlainUsers:
        """The users of the installation."""
        return PlainUsers(self._client.users, self._run)

    @property
    def service_accounts(self) -> PlainUsers:
        """The service accounts."""
        return PlainUsers(self._client.service_accounts, self._run)

    @property
    def groups(self) -> PlainGroups:
        """The groups of users."""
        return PlainGroups(self._client.groups, self._run)

    @property
    def workspaces(self) -> PlainWorkspaces:
        """The workspaces that one may see."""
        return PlainWorkspaces(self._client.workspaces, self._run)

    @property
    def projects(self) -> PlainProjects:
        """The projects that one may see."""
        return PlainProjects(self._client.projects, self._run)

    @property
    def assignments(self) -> PlainAssignments:
        """Who has which role."""
        return PlainAssignments(self._client.assignments, self._run)

    @property
    def webhooks(self) -> PlainWebhooks:
        """The webhooks that one may see."""
        return PlainWebhooks(self._client.webhooks, self._run)

    @property
    def models(self) -> PlainModels:
        """The registered models that one may see, and their versions."""
        return PlainModels(self._client.models, self._run)

    def roles(self) -> list[api.Role]:
        """Return the roles, and what each may."""
        return self._run(self._client.roles())

    def submit(  # noqa: PLR0913 - what can be chosen
        self,
        config: Config,
        code: Code | None = None,
        *,
        follow_links: bool = False,
        parent: str | None = None,
        workspace: str | None = None,
        project: str | None = None,
        template: str | None = None,
        key: str | None = None,
    ) -> ExperimentHandle:
        """Submit an experiment and, if it has one, its code folder.

        Args:
            config: an experiment file's path, its fields as a mapping, or YAML as text.
            code: the folder, or the `data` of `rung.config.code_folder.pack`. The warnings list
                what of the folder is left out.
            follow_links: whether links that leave the folder are replaced by what they point to.
            parent: the experiment that it was made from.
            workspace: where it goes; as its file says if absent, else where `parent` is.
            project: of the workspace.
            template: of the workspace, which the file is merged with.
            key: the idempotency key.

        Raises:
            Invalid: the experiment is refused; `errors` lists every problem.
            InvalidCode: the folder cannot be packed.
            ClientError: the file cannot be read, or the request was not answered.
        """
        submitted = self._run(
            self._client.submit(
                config,
                code,
                follow_links=follow_links,
                parent=parent,
                workspace=workspace,
                project=project,
                template=template,
                key=key,
            )
        )
        return ExperimentHandle(self, submitted.experiment_id, submitted.warnings)

    def handle(self, experiment_id: str) -> ExperimentHandle:
        """Return an experiment to work with; the id may be shortened.

        Raises:
            NotFound: there is no such experiment.
        """
        return ExperimentHandle(self, self.experiment(experiment_id).id, [])

    def wait(
        self,
        experiment_id: str,
        *,
        timeout_s: float | None = None,
        note: Note | None = None,
        trials: Shown = "all",
    ) -> api.Experiment:
        """Return an experiment once it ended; `note` is called in this client's thread."""
        waiting = self._client.wait(experiment_id, timeout_s=timeout_s, note=note, trials=trials)
        return self._run(waiting)

    def failure(self, experiment: api.Experiment) -> ExperimentFailed:
        """Return the failure of an experiment, with the traceback of a failed trial."""
        return self._run(failure_of(self._client, experiment))

    def validate(self, config: Config) -> api.Validated:
        """Return an experiment's configuration with all defaults; `config` as for `submit`."""
        return self._run(self._client.validate(config))

    def experiments(self, **query: Unpack[ExperimentQuery]) -> api.ExperimentList:
        """Return a page of experiments, the newest first."""
        return self._run(self._client.experiments(**query))

    def find(self, name: str) -> api.Found:
        """Return the experiment, trial or checkpoint that an id, a part of it, or a name means."""
        return self._run(self._client.find(name))

    def kind_of(self, name: str) -> Kind:
        """Return whether a name means an experiment, a trial or a checkpoint."""
        return self._run(self._client.kind_of(name))

    def experiment(self, experiment_id: str, *, trials: Shown = "all") -> api.Experiment:
        """Return an experiment: with all its trials, with the five best (`top`), or with none."""
        return self._run(self._client.experiment(experiment_id, trials=trials))

    def trial(self, trial_id: str) -> api.TrialDetail:
        """Return a trial with its checkpoints."""
        return self._run(self._client.trial(trial_id))

    def code(self, experiment_id: str) -> bytes:
        """Return an experiment's code as it ran, a tar.gz."""
        return self._run(self._client.code(experiment_id))

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

    def extend(
        self,
        experiment_id: str,
        *,
        trials: int | None = None,
        max_time: int | None = None,
        key: str | None = None,
    ) -> api.Extended:
        """Request more trials or a longer length; a search that ended goes on as a new one."""
        return self._run(
            self._client.extend(experiment_id, trials=trials, max_time=max_time, key=key)
        )

    def kill_trial(self, trial_id: str, *, key: str | None = None) -> api.TrialAsked:
        """Request that one trial ends at once; its search goes on without it."""
        return self._run(self._client.kill_trial(trial_id, key=key))

    def delete_experiment(
        self,
        experiment_id: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        now: bool = False,
        key: str | None = None,
    ) -> api.ExperimentDeletion:
        """Delete an experiment that has ended: its checkpoints, metrics and log lines."""
        return self._run(
            self._client.delete_experiment(
                experiment_id, force=force, dry_run=dry_run, now=now, key=key
            )
        )

    def restore_experiment(self, experiment_id: str, *, key: str | None = None) -> api.Requested:
        """Take the deletion of an experiment back."""
        return self._run(self._client.restore_experiment(experiment_id, key=key))

    def delete_checkpoint(
        self,
        checkpoint_id: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        key: str | None = None,
    ) -> api.CheckpointDeletion:
        """Delete a checkpoint."""
        return self._run(
            self._client.delete_checkpoint(checkpoint_id, force=force, dry_run=dry_run, key=key)
        )

    def description(self, experiment_id: str) -> api.Description:
        """Return what an experiment is called and filed under."""
        return self._run(self._client.description(experiment_id))

    def describe(
        self,
        experiment_id: str,
        *,
        version: int | None = None,
        key: str | None = None,
        **wanted: Unpack[Describing],
    ) -> api.Description:
        """Change what an experiment is called and filed under; what is not given stays."""
        return self._run(self._client.describe(experiment_id, version=version, key=key, **wanted))

    def batch(self, wanted: api.BatchWanted, *, key: str | None = None) -> api.BatchAnswer:
        """Change many experiments, each by itself; what is refused keeps no other one back."""
        return self._run(self._client.batch(wanted, key=key))

    def resources(self, experiment_id: str) -> api.Resources:
        """Return what an experiment may have of a resource pool."""
        return self._run(self._client.resources(experiment_id))

    def set_resources(
        self,
        experiment_id: str,
        *,
        version: int | None = None,
        key: str | None = None,
        **wanted: Unpack[Resourcing],
    ) -> api.Resources:
        """Change an experiment's pool, priority, weight or limit; what is not given stays."""
        return self._run(
            self._client.set_resources(experiment_id, version=version, key=key, **wanted)
        )

    def change_retention(  # noqa: PLR0913 - the three numbers of the experiment file
        self,
        experiment_id: str,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> api.RetentionAnswer:
        """Change which checkpoints an experiment keeps; superfluous ones are deleted."""
        return self._run(
            self._client.change_retention(
                experiment_id,
                save_experiment_best=save_experiment_best,
                save_trial_best=save_trial_best,
                save_trial_latest=save_trial_latest,
                dry_run=dry_run,
                key=key,
            )
        )

    def move(
        self, trial_id: str, *, to: str | None = None, key: str | None = None
    ) -> api.MoveAsked:
        """Request that a trial checkpoints and resumes on another agent."""
        return self._run(self._client.move(trial_id, to=to, key=key))

    def move_experiment(
        self,
        experiment_id: str,
        *,
        workspace: str | None = None,
        project: str | None = None,
        key: str | None = None,
    ) -> api.Moved:
        """Move an experiment to another workspace, or to another project of its own."""
        return self._run(
            self._client.move_experiment(
                experiment_id, workspace=workspace, project=project, key=key
            )
        )

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

    def log(self, **query: Unpack[ActQuery]) -> api.ActList:
        """Return a page of who asked for what, the newest first."""
        return self._run(self._client.log(**query))

    def follow_log(
        self,
        *,
        who: str | None = None,
        experiment: str | None = None,
        what: str | None = None,
        begin: Begin = "start",
        after: str | None = None,
    ) -> Iterator[ServerEvent]:
        """Yield who asks for what, as `Act` in JSON; never ends."""
        return self._iterate(
            self._client.follow_log(
                who=who, experiment=experiment, what=what, begin=begin, after=after
            )
        )

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


def _close(client: AsyncClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
