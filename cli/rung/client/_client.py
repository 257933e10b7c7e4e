"""Asynchronous client of the gateway's HTTP API."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from rung import api
from rung.client._data_folder import default_path
from rung.client._directory import (
    Assignments,
    DirectoryClient,
    Groups,
    Inputs,
    Models,
    Projects,
    Users,
    Webhooks,
    Workspaces,
)
from rung.client._error import ServerFailed
from rung.client._http import Part, form
from rung.client._identity import Identity
from rung.client._inputs import Code, Config, read_code, read_config
from rung.client._location import Locate, Location, of_environment, of_folder, of_url
from rung.client._sse import ServerEvent, follow
from rung.client._transport import Query, Transport
from rung.client._wait import Note, Shown, wait

A = TypeVar("A", bound=Struct)

PATIENCE_S: Final = 3.0
TIMEOUT_S: Final = 120.0
PAGE: Final = 500
_WHOLE_ID: Final = re.compile(r"[0-9a-hjkmnp-tv-z]{8}\.[0-9]+(\.[0-9]+\.[0-9]+)?")
"""The id of a trial or of a checkpoint."""

Action = Literal["pause", "resume", "cancel", "kill"]
Begin = Literal["start", "now"]
Order = Literal["oldest", "newest"]
Kind = Literal["experiment", "trial", "checkpoint"]
Level = Literal["debug", "info", "warning", "error", "critical"]


class Resourcing(TypedDict, total=False):
    """What of an experiment's resources changes."""

    pool: str
    priority: int
    """1 to 99, lower is more important."""
    weight: float
    max_slots: int
    """How many slots it may hold at once; 0: no limit."""
    max_slot_hours: float
    """How many slot-hours it may use; 0: no limit. It ends if it has used as much."""


class ExperimentQuery(TypedDict, total=False):
    """Which experiments to return, and in which order."""

    state: str | None
    label: str | None
    name: str | None
    """Of this name; `*` stands for any text."""
    actor: str | None
    """As `owner`."""
    owner: str | None
    """Submitted by this user; `me`: by oneself."""
    workspace: str | None
    """In this workspace, by name or id."""
    project: str | None
    """In projects of this name, or of this id."""
    search: str | None
    """Words in the name, labels, description or hyperparameters."""
    filter: str | None
    """Terms that all hold, such as `state:errored older:30d metric.error<0.1`: docs/FILTERS.md."""
    sort: str | None
    """`submitted`, `ended`, `name`, `state`, `actor` or `trials`; with `-` in front descending."""
    limit: int
    """At most so many; 100 if absent."""
    cursor: str | None
    """`next_cursor` of the page before."""
    deleted: bool
    """Those whose deletion can be taken back, in place of the others."""


class Describing(TypedDict, total=False):
    """What of an experiment's description changes."""

    name: str
    description: str
    labels: list[str]
    """In place of those that it has."""
    add_labels: list[str]
    remove_labels: list[str]
    notes: str
    archived: bool
    """Lists leave it out unless they are asked for it."""


class LogQuery(TypedDict, total=False):
    """Which log lines to return, and in which order."""

    rank: int | None
    """Only of this process of a trial."""
    level: Level | None
    """This severe or more."""
    text: str | None
    """Containing this text."""
    since: str | None
    """From this time on (RFC 3339, or Unix time in milliseconds)."""
    until: str | None
    """Before this time."""
    after: str | None
    """`next_cursor` of the page before."""
    deleted: bool
    """Those whose deletion can be taken back, in place of the others."""
    order: Order
    """The oldest lines first, which is the default, or the newest."""
    limit: int
    """At most so many, up to 20,000; fewer are returned if they are long."""


class ActQuery(TypedDict, total=False):
    """Which acts to return."""

    who: str | None
    """That this user asked for, or somebody on its behalf."""
    since: str | None
    """From this time on: 2026-11-23, 2026-11-23T12:00 (UTC), or 30m, 12h, 7d, 2w ago."""
    until: str | None
    """Before this time."""
    experiment: str | None
    """About this experiment."""
    what: str | None
    """The beginning of the event's type, such as `trial.kill`."""
    limit: int
    """At most so many; 100 if absent."""
    cursor: str | None
    """`next_cursor` of the page before."""
    deleted: bool
    """Those whose deletion can be taken back, in place of the others."""


class AsyncClient:
    """A client of one gateway; use it with `async with`.

    Requests that write take a `key`, by which a second one has no further effect. It is drawn if
    absent, so that retries of the client itself are safe.
    """

    def __init__(  # noqa: PLR0913 - three ways to name the gateway
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        data: str | Path | None = None,
        locate: Locate | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        Without a location it finds the gateway as the command line does: `RUNG_URL` with
        `RUNG_TOKEN`, else the `rung up` of the data folder `RUNG_DATA`, else of `~/.rung`.

        Args:
            url: of the gateway.
            token: the bearer token.
            data: in place of the two, the data folder of a `rung up` of this user on this machine.
                Requests use the folder's Unix socket and token, also after a restart.
            locate: returns the location in place of these; called again before each retry.
            patience_s: how long to retry while a server that answered before does not. One that
                never answered is retried for three seconds, one that cannot be connected to never.
            timeout_s: how long to wait for one answer.
        """

        def where() -> Location:
            if data is not None:
                return of_folder(Path(data).expanduser(), token)
            if url is None:
                found = of_environment()
                return found if token is None else found._replace(token=token)
            return of_url(url, token, default_path().absolute())

        self._transport = Transport(locate or where, patience_s=patience_s, timeout_s=timeout_s)
        self._directory = DirectoryClient(self._transport)
        self._identity = Identity(self._transport)

    @property
    def identity(self) -> Identity:
        """Signs in and out, and manages tokens."""
        return self._identity

    @property
    def users(self) -> Users:
        """The users of the installation."""
        return self._directory.users

    @property
    def service_accounts(self) -> Users:
        """The service accounts."""
        return self._directory.service_accounts

    @property
    def groups(self) -> Groups:
        """The groups of users."""
        return self._directory.groups

    @property
    def workspaces(self) -> Workspaces:
        """The workspaces that one may see."""
        return self._directory.workspaces

    @property
    def projects(self) -> Projects:
        """The projects that one may see."""
        return self._directory.projects

    @property
    def assignments(self) -> Assignments:
        """Who has which role."""
        return self._directory.assignments

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks that one may see."""
        return self._directory.webhooks

    @property
    def models(self) -> Models:
        """The registered models that one may see, and their versions."""
        return self._directory.models

    def secrets(self, workspace: str = "default") -> Inputs[api.Secret]:
        """Return the secrets of a workspace: their names."""
        path = f"/workspaces/{workspace}/secrets"
        return Inputs(self._transport, path, api.Secret, api.SecretList)

    def templates(self, workspace: str = "default") -> Inputs[api.Template]:
        """Return the templates of a workspace."""
        path = f"/workspaces/{workspace}/templates"
        return Inputs(self._transport, path, api.Template, api.TemplateList)

    @property
    def policies(self) -> Inputs[api.Policy]:
        """The policies that one may see."""
        return Inputs(self._transport, "/policies", api.Policy, api.PolicyList)

    @property
    def searches(self) -> Inputs[api.SavedSearch]:
        """One's saved searches, and shared ones that one may see."""
        return Inputs(self._transport, "/searches", api.SavedSearch, api.SavedSearchList)

    async def resolve(self, source: str, **fields: object) -> api.ResolvedConfig:
        """Return what an experiment file becomes, and where each value comes from.

        Args:
            source: the file, YAML.
            fields: `workspace`, `project`, `template`; the defaults are those of a submission.
        """
        return await self._directory.resolve(source, **fields)

    async def roles(self) -> list[api.Role]:
        """Return the roles, and what each may."""
        return await self._directory.roles()

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    @property
    def url(self) -> str:
        """Of the gateway."""
        return self._transport.url

    async def submit(  # noqa: PLR0913 - what can be chosen
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
    ) -> api.Submitted:
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
        file = await asyncio.to_thread(read_config, config)
        archive, notes = None, list[str]()
        if code is not None:
            archive, notes = await asyncio.to_thread(read_code, code, follow_links=follow_links)

        parts = [Part("config", "experiment.yaml", "application/yaml", file)]
        if archive is not None:
            parts.append(Part("code", "code.tar.gz", "application/gzip", archive))
        body, content_type = form(*parts)
        of = _given(parent=parent, workspace=workspace, project=project, template=template)
        headers = {"Content-Type": content_type}
        path = f"/experiments{of}"
        submitted = await self._post(path, api.Submitted, body, headers=headers, key=key)
        submitted.warnings += notes
        return submitted

    async def validate(self, config: Config) -> api.Validated:
        """Return an experiment's configuration with all defaults; `config` as for `submit`."""
        data = await asyncio.to_thread(read_config, config)
        headers = {"Content-Type": "application/yaml"}
        path = "/experiments/validate"
        return await self._post(path, api.Validated, data, headers=headers)

    async def experiments(self, **query: Unpack[ExperimentQuery]) -> api.ExperimentList:
        """Return a page of experiments, the newest first."""
        words = query.pop("search", None)
        deleted = "true" if query.pop("deleted", False) else None
        found: Query = {"limit": 100, **query, "q": words, "deleted": deleted}
        return await self._get("/experiments", api.ExperimentList, found)

    async def find(self, name: str) -> api.Found:
        """Return the experiment, trial or checkpoint that an id, a part of one, or a name means.

        Wherever a method takes an id, it takes as well an unambiguous beginning of it, or the
        experiment's name: `k3v9`, `mnist`, `k3v9.7`, `mnist.7`.

        Raises:
            NotFound: there is none; near ones are named.
            Conflict: it may be several; they are named.
        """
        return await self._get("/find", api.Found, {"name": name})

    async def kind_of(self, name: str) -> Kind:
        """Return whether a name means an experiment, a trial or a checkpoint.

        Only names with dots that do not look like whole ids are asked for.
        """
        if "." not in name:
            return "experiment"
        if _WHOLE_ID.fullmatch(name):
            return "trial" if name.count(".") == 1 else "checkpoint"
        return (await self.find(name)).kind

    async def experiment(self, experiment_id: str, *, trials: Shown = "all") -> api.Experiment:
        """Return an experiment.

        Args:
            experiment_id: may be shortened.
            trials: which of its trials it has: all with their validations, the five best
                (`top`), or none. Its counts are of all trials in any case.
        """
        query = None if trials == "all" else {"trials": trials}
        return await self._get(f"/experiments/{_name(experiment_id)}", api.Experiment, query)

    async def trial(self, trial_id: str) -> api.TrialDetail:
        """Return a trial with its checkpoints."""
        return await self._get(f"/trials/{_name(trial_id)}", api.TrialDetail)

    async def code(self, experiment_id: str) -> bytes:
        """Return an experiment's code as it ran, a tar.gz.

        Raises:
            NotFound: it was submitted without code, or the code is gone.
        """
        return await self._transport.get(f"/experiments/{_name(experiment_id)}/code")

    async def trials(
        self, experiment_id: str, *, validations: Literal["all", "last"] = "all"
    ) -> list[api.Trial]:
        """Return an experiment's trials by index; with the last validation of each, or all."""
        path = f"/experiments/{_name(experiment_id)}/trials"
        query: Query = {} if validations == "all" else {"validations": validations}
        return await self._all(path, api.TrialList, lambda page: page.items, query)

    async def best_trials(self, experiment_id: str, limit: int) -> list[api.Trial]:
        """Return the best trials of an experiment, at most so many, with the last validation."""
        path = f"/experiments/{_name(experiment_id)}/trials"
        query: Query = {"sort": "best", "validations": "last", "limit": min(limit, PAGE)}
        found: list[api.Trial] = []
        while True:
            page = await self._get(path, api.TrialList, query)
            found += page.items
            if page.next_cursor is None or len(found) >= limit:
                return found[:limit]
            query = {**query, "cursor": page.next_cursor}

    async def best(self, experiment_id: str) -> api.BestAnswer:
        """Return an experiment's best trial and its checkpoint."""
        return await self._get(f"/experiments/{_name(experiment_id)}/best", api.BestAnswer)

    async def checkpoints(self, owner_id: str) -> list[api.Checkpoint]:
        """Return the checkpoints of an experiment or of a trial."""
        return await self._all(
            f"{await self._owner(owner_id)}/checkpoints",
            api.CheckpointList,
            lambda page: page.items,
        )

    async def checkpoint(self, checkpoint_id: str) -> api.CheckpointDetail:
        """Return a checkpoint with its files."""
        return await self._get(f"/checkpoints/{_name(checkpoint_id)}", api.CheckpointDetail)

    async def download(
        self, checkpoint_id: str, folder: Path, *, below: str = ""
    ) -> api.CheckpointDetail:
        """Write a checkpoint's files to a new folder, each checked against its digest.

        Args:
            checkpoint_id: which checkpoint.
            folder: new, or empty.
            below: only files whose names begin so.

        Raises:
            NotFound: the checkpoint is deleted, or its files are gone.
            ClientError: the folder is in use, the connection broke, or something is damaged.
        """
        from rung.client._download import check_listed, download  # noqa: PLC0415 - 20 ms

        checkpoint = await self.checkpoint(checkpoint_id)
        path = f"/checkpoints/{checkpoint.id}"
        await check_listed(self._transport, checkpoint, path=path)
        checkpoint.files = [file for file in checkpoint.files if file.name.startswith(below)]
        await download(self._transport, checkpoint, folder, path=path)
        return checkpoint

    async def ask(
        self, action: Action, experiment_id: str, *, key: str | None = None
    ) -> api.Requested:
        """Request that an experiment pauses, resumes, is canceled or is killed."""
        path = f"/experiments/{_name(experiment_id)}/{action}"
        return await self._post(path, api.Requested, key=key)

    async def wait(
        self,
        experiment_id: str,
        *,
        timeout_s: float | None = None,
        note: Note | None = None,
        trials: Shown = "all",
    ) -> api.Experiment:
        """Return an experiment once it ended; the server may be restarted meanwhile.

        Args:
            experiment_id: may be shortened.
            timeout_s: how long to wait; without a limit if absent.
            note: called with the experiment after each change, and at least every five seconds.
            trials: which of its trials `note` gets and this returns, as for `experiment`: all of
                a large search are megabytes at each change.

        Raises:
            TimeoutError: it has not ended within the time.
        """
        async with asyncio.timeout(timeout_s):
            return await wait(self, experiment_id, note, trials)

    async def extend(
        self,
        experiment_id: str,
        *,
        trials: int | None = None,
        max_time: int | None = None,
        key: str | None = None,
    ) -> api.Extended:
        """Request more trials or a longer length; a search that ended goes on as a new one.

        Args:
            experiment_id: which experiment.
            trials: how many there are to be in all.
            max_time: in place of that, how far each is to train.
            key: the idempotency key.
        """
        given = {"trials": trials, "max_time": max_time}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        path = f"/experiments/{_name(experiment_id)}/extend?{query}"
        return await self._post(path, api.Extended, key=key)

    async def kill_trial(self, trial_id: str, *, key: str | None = None) -> api.TrialAsked:
        """Request that one trial ends at once; its search goes on without it."""
        return await self._post(f"/trials/{_name(trial_id)}/kill", api.TrialAsked, key=key)

    async def delete_experiment(
        self,
        experiment_id: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        now: bool = False,
        key: str | None = None,
    ) -> api.ExperimentDeletion:
        """Delete an experiment that has ended: its checkpoints, metrics and log lines.

        It is hidden at once; `restore_experiment` takes that back until `restorable_until` of the
        answer.

        Args:
            experiment_id: may be shortened.
            force: also if experiments that have ended started from its checkpoints.
            dry_run: only return what would be deleted, and what depends on it.
            now: at once, also one that could be restored: nothing brings it back.
            key: the idempotency key.

        Raises:
            Conflict: it has not ended, or something depends on it.
        """
        flags = _flags(force=force, dry_run=dry_run, now=now)
        path = f"/experiments/{_name(experiment_id)}/delete{flags}"
        return await self._post(path, api.ExperimentDeletion, key=key)

    async def restore_experiment(
        self, experiment_id: str, *, key: str | None = None
    ) -> api.Requested:
        """Take the deletion of an experiment back.

        Args:
            experiment_id: in full.
            key: the idempotency key.

        Raises:
            Conflict: it is not deleted.
            NotFound: it is deleted for good.
        """
        return await self._post(
            f"/experiments/{_name(experiment_id)}/restore", api.Requested, key=key
        )

    async def delete_checkpoint(
        self,
        checkpoint_id: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        key: str | None = None,
    ) -> api.CheckpointDeletion:
        """Delete a checkpoint.

        Args:
            checkpoint_id: may be shortened.
            force: also if experiments that have ended started from it.
            dry_run: only return what would be deleted, and what depends on it.
            key: the idempotency key.

        Raises:
            Conflict: a trial may resume from it, or something else depends on it.
        """
        path = f"/checkpoints/{_name(checkpoint_id)}/delete{_flags(force=force, dry_run=dry_run)}"
        return await self._post(path, api.CheckpointDeletion, key=key)

    async def description(self, experiment_id: str) -> api.Description:
        """Return what an experiment is called and filed under."""
        return await self._get(f"/experiments/{_name(experiment_id)}/description", api.Description)

    async def describe(
        self,
        experiment_id: str,
        *,
        version: int | None = None,
        key: str | None = None,
        **wanted: Unpack[Describing],
    ) -> api.Description:
        """Change what an experiment is called and filed under; what is not given stays.

        Args:
            experiment_id: may be shortened.
            version: of the description that the change is of; None: whichever there is.
            key: the idempotency key.
            wanted: what changes.

        Raises:
            Conflict: it has another version by now.
        """
        data = msgspec.json.encode(wanted)
        headers = {"Content-Type": "application/json"}
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        path = f"/experiments/{_name(experiment_id)}/description"
        return await self._post(path, api.Description, data, headers=headers, key=key)

    async def batch(self, wanted: api.BatchWanted, *, key: str | None = None) -> api.BatchAnswer:
        """Change many experiments, each by itself; what is refused keeps no other one back.

        Args:
            wanted: which ones, at most 1,000, and what is to happen to them.
            key: the idempotency key.
        """
        data = msgspec.json.encode(wanted)
        headers = {"Content-Type": "application/json"}
        return await self._post(
            "/experiments:batch", api.BatchAnswer, data, headers=headers, key=key
        )

    async def resources(self, experiment_id: str) -> api.Resources:
        """Return what an experiment may have of a resource pool."""
        return await self._get(f"/experiments/{_name(experiment_id)}/resources", api.Resources)

    async def set_resources(
        self,
        experiment_id: str,
        *,
        version: int | None = None,
        key: str | None = None,
        **wanted: Unpack[Resourcing],
    ) -> api.Resources:
        """Change an experiment's pool, priority, weight or limits; what is not given stays.

        Args:
            experiment_id: may be shortened.
            version: of the resources that the change is of; None: whichever there are.
            key: the idempotency key.
            wanted: what changes.

        Raises:
            Conflict: it has ended, or could never be placed so, or has another version by now.
        """
        data = msgspec.json.encode(wanted)
        headers = {"Content-Type": "application/json"}
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        path = f"/experiments/{_name(experiment_id)}/resources"
        return await self._post(path, api.Resources, data, headers=headers, key=key)

    async def change_retention(  # noqa: PLR0913 - the three numbers of the experiment file
        self,
        experiment_id: str,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> api.RetentionAnswer:
        """Change which checkpoints an experiment keeps; superfluous ones are deleted.

        Args:
            experiment_id: may be shortened.
            save_experiment_best: how many of the best of all trials; None: as it was.
            save_trial_best: how many of the best of each trial; None: as it was.
            save_trial_latest: how many of the latest of each trial; None: as it was.
            dry_run: only return what would be deleted.
            key: the idempotency key.
        """
        wanted = api.RetentionWanted(
            save_experiment_best=save_experiment_best,
            save_trial_best=save_trial_best,
            save_trial_latest=save_trial_latest,
        )
        data = msgspec.json.encode(wanted)
        headers = {"Content-Type": "application/json"}
        path = f"/experiments/{_name(experiment_id)}/retention{_flags(dry_run=dry_run)}"
        return await self._post(path, api.RetentionAnswer, data, headers=headers, key=key)

    async def move(
        self, trial_id: str, *, to: str | None = None, key: str | None = None
    ) -> api.MoveAsked:
        """Request that a trial checkpoints and resumes on another agent.

        Args:
            trial_id: which trial.
            to: the agent; any other if absent.
            key: the idempotency key.
        """
        where = "" if to is None else f"?to={_name(to)}"
        path = f"/trials/{_name(trial_id)}/move{where}"
        return await self._post(path, api.MoveAsked, key=key)

    async def move_experiment(
        self,
        experiment_id: str,
        *,
        workspace: str | None = None,
        project: str | None = None,
        key: str | None = None,
    ) -> api.Moved:
        """Move an experiment to another workspace, or to another project of its own.

        Args:
            experiment_id: which experiment.
            workspace: where to; its own if absent.
            project: of that workspace; absent: its only one, or the one called `default`.
            key: the idempotency key.
        """
        path = f"/experiments/{_name(experiment_id)}/move"
        where = _given(workspace=workspace, project=project)
        return await self._post(f"{path}{where}", api.Moved, key=key)

    async def configure_pool(
        self,
        pool: str,
        *,
        policy: str,
        options: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> api.PoolConfigured:
        """Set the scheduling policy of a pool.

        Args:
            pool: its name.
            policy: the policy's name.
            options: of the policy; absent ones have their defaults.
            key: the idempotency key.
        """
        data = msgspec.json.encode({"policy": policy, "options": dict(options or {})})
        headers = {"Content-Type": "application/json"}
        path = f"/pools/{_name(pool)}/configure"
        kind = api.PoolConfigured
        return await self._post(path, kind, data, headers=headers, key=key)

    async def curves(
        self, experiment_id: str, *, kind: str, name: str, points: int = 200
    ) -> api.ExperimentCurves:
        """Return one metric of all trials, downsampled to some points."""
        query: Query = {"kind": kind, "name": name, "points": points}
        path = f"/experiments/{_name(experiment_id)}/metrics"
        return await self._get(path, api.ExperimentCurves, query)

    async def curve(
        self, trial_id: str, *, kind: str, name: str, points: int = 200
    ) -> api.TrialCurve:
        """Return one metric of one trial, downsampled to some points."""
        query: Query = {"kind": kind, "name": name, "points": points}
        return await self._get(f"/trials/{_name(trial_id)}/metrics", api.TrialCurve, query)

    async def logs(self, owner_id: str, **query: Unpack[LogQuery]) -> api.LogPage:
        """Return a page of the log lines of an experiment's trials, or of one trial."""
        found: Query = {"order": "oldest", "limit": PAGE, **query}
        return await self._get(f"{await self._owner(owner_id)}/logs", api.LogPage, found)

    async def collect_logs(
        self,
        experiment_id: str | None = None,
        *,
        before: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> api.LogsCollected:
        """Delete log lines of an experiment, or before a time, or both.

        Args:
            experiment_id: of this experiment only.
            before: printed before this time (RFC 3339, or Unix time in milliseconds).
            dry_run: only return what would be deleted.
            key: the idempotency key.
        """
        given = {"experiment": experiment_id, "before": before}
        query = {name: value for name, value in given.items() if value is not None}
        path = f"/logs/collect?{urlencode(query | {'dry_run': str(dry_run).lower()})}"
        return await self._post(path, api.LogsCollected, key=key)

    async def follow_logs(
        self, owner_id: str, query: Query | None = None, *, after: str | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield log lines, stored ones and new ones; never ends.

        Each event has `{trial_id, run, lines}`; the query may have rank, level, and from=now.
        """
        path = f"{await self._owner(owner_id)}/logs/stream"
        async with contextlib.aclosing(follow(self._transport, path, query, after)) as events:
            async for event in events:
                yield event

    def follow_events(
        self, experiment_id: str, *, begin: Begin = "start", after: str | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield the events of an experiment, as CloudEvents; never ends.

        Args:
            experiment_id: which experiment.
            begin: with stored events, or with new ones.
            after: the id of the last event seen, in place of `begin`.
        """
        path = f"/experiments/{_name(experiment_id)}/events"
        return follow(self._transport, path, {"from": begin}, after)

    def follow_metrics(
        self, experiment_id: str, *, begin: Begin = "start", after: str | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield `{trial_id, run, rows}` of metrics as they are reported; never ends."""
        path = f"/experiments/{_name(experiment_id)}/metrics/stream"
        return follow(self._transport, path, {"from": begin}, after)

    async def log(self, **query: Unpack[ActQuery]) -> api.ActList:
        """Return a page of who asked for what, the newest first."""
        found: Query = {"limit": 100, **query}
        return await self._get("/log", api.ActList, found)

    def follow_log(
        self,
        *,
        who: str | None = None,
        experiment: str | None = None,
        what: str | None = None,
        begin: Begin = "start",
        after: str | None = None,
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield who asks for what, as `api.Act` in JSON; never ends.

        Args:
            who: as for `log`.
            experiment: as for `log`.
            what: as for `log`.
            begin: with what is on record, or with what is new.
            after: the id of the last event seen, or a list's `last_event_id`, in place of `begin`.
        """
        query = {"from": begin, "who": who, "experiment": experiment, "what": what}
        return follow(self._transport, "/log/stream", query, after)

    async def audit(self, experiment_id: str) -> api.Audit:
        """Decide every decision about an experiment again, and compare."""
        return await self._get(f"/experiments/{_name(experiment_id)}/audit", api.Audit)

    async def agents(self) -> api.AgentList:
        """Return all agents with their slots."""
        return await self._get("/agents", api.AgentList)

    async def queue(self) -> list[api.QueueItem]:
        """Return the requests for slots, the next one first."""
        return await self._all("/queue", api.Queue, lambda page: page.items)

    async def dead_letters(
        self, limit: int = 100, *, state: api.DeadLetterState | None = None
    ) -> api.DeadLetterList:
        """Return the newest dead letters.

        Args:
            limit: how many at most.
            state: only those in this state.
        """
        query: Query = {"limit": limit, "state": state}
        return await self._get("/deadletters", api.DeadLetterList, query)

    async def dead_letter(self, letter_id: str) -> api.DeadLetter:
        """Return a dead letter by its id, READER/TOPIC/PARTITION/POSITION."""
        return await self._get(_dead_letter(letter_id), api.DeadLetter)

    async def retry_dead_letter(
        self, letter_id: str, *, key: str | None = None
    ) -> api.DeadLetterAsked:
        """Request that a reader processes a rejected message again.

        Args:
            letter_id: READER/TOPIC/PARTITION/POSITION.
            key: the idempotency key.
        """
        path = f"{_dead_letter(letter_id)}/retry"
        return await self._post(path, api.DeadLetterAsked, key=key)

    async def drop_dead_letter(
        self, letter_id: str, *, key: str | None = None
    ) -> api.DeadLetterAsked:
        """Request that a reader skips a rejected message for ever.

        Args:
            letter_id: READER/TOPIC/PARTITION/POSITION.
            key: the idempotency key.
        """
        path = f"{_dead_letter(letter_id)}/drop"
        return await self._post(path, api.DeadLetterAsked, key=key)

    async def status(self) -> api.Status:
        """Return the status of the installation."""
        return await self._get("/status", api.Status)

    async def _get(self, path: str, kind: type[A], query: Query | None = None) -> A:
        return _read(await self._transport.get(path, query), kind)

    async def _post(
        self,
        path: str,
        kind: type[A],
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> A:
        return _read(await self._transport.post(path, body, headers=headers, key=key), kind)

    async def _owner(self, name: str) -> str:
        """Return the path of a trial or of an experiment."""
        of_trial = await self.kind_of(name) == "trial"
        return f"/{'trials' if of_trial else 'experiments'}/{_name(name)}"

    async def _all(
        self,
        path: str,
        kind: type[A],
        items: Callable[[A], list[Any]],
        query: Query | None = None,
    ) -> list[Any]:
        """Return the items of all pages."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self._get(path, kind, {**(query or {}), "limit": PAGE, "cursor": cursor})
            found += items(page)
            cursor = getattr(page, "next_cursor", None)
            if cursor is None:
                return found


def _read(body: bytes, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ServerFailed(
            f"the server's answer is not understood ({error}): is it a Rung of another version?"
        ) from error


def _flags(**given: bool) -> str:
    """Return those that are set as the query of a path."""
    chosen = [f"{name}=true" for name, value in given.items() if value]
    return f"?{'&'.join(chosen)}" if chosen else ""


def _given(**values: str | None) -> str:
    """Return the parameters that are given, as a query."""
    parts = [f"{name}={_name(value)}" for name, value in values.items() if value is not None]
    return "?" + "&".join(parts) if parts else ""


def _name(name: str) -> str:
    return quote(name, safe="")


def _dead_letter(letter_id: str) -> str:
    return f"/deadletters/{quote(letter_id)}"
