"""The gateway's API, asynchronously."""

from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from msgspec import Struct

from rung import api
from rung.client._download import check_listed, download
from rung.client._error import ServerFailed
from rung.client._location import Locate, Location, of_folder
from rung.client._sse import ServerEvent, follow
from rung.client._transport import Query, Transport

A = TypeVar("A", bound=Struct)

PATIENCE_S: Final = 3.0
TIMEOUT_S: Final = 120.0
PAGE: Final = 500

Action = Literal["pause", "resume", "cancel", "kill"]
Begin = Literal["start", "now"]
Order = Literal["oldest", "newest"]
Level = Literal["debug", "info", "warning", "error", "critical"]


class AsyncClient:
    """A client of one gateway; use it with `async with`."""

    def __init__(  # noqa: PLR0913 - three ways to say where it is
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        *,
        data: Path | None = None,
        locate: Locate | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Remember where the gateway is; nothing is sent yet.

        Args:
            url: where it is.
            token: what it lets one in with.
            data: in place of the two, the data folder of a `rung up` of this user on this machine:
                it is reached by the folder's Unix socket, with the folder's token, also after it
                was started again.
            locate: finds it in place of the two, anew before each further try.
            patience_s: how long to go on trying while a server that answered before does not; one
                that never did is given up after three seconds, or at once if it cannot be
                connected to.
            timeout_s: how long to wait for one answer.
        """

        def where() -> Location:
            return Location(url, token) if data is None else of_folder(data, token)

        self._transport = Transport(locate or where, patience_s=patience_s, timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of all connections."""
        await self.close()

    async def close(self) -> None:
        """Let go of all connections."""
        await self._transport.close()

    @property
    def url(self) -> str:
        """Where the gateway is."""
        return self._transport.url

    async def submit(
        self, config: str | bytes, code: bytes | None = None, *, key: str | None = None
    ) -> api.Submitted:
        """Submit an experiment file and, if it has one, its packed code folder.

        Args:
            config: YAML.
            code: what `rung.config.code_folder.pack` returned as data.
            key: names this submission, so that a second one with it is the same; drawn if absent.
        """

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData()
            data.add_field(
                "config", config, filename="experiment.yaml", content_type="application/yaml"
            )
            if code is not None:
                data.add_field(
                    "code", code, filename="code.tar.gz", content_type="application/gzip"
                )
            return data

        body = await self._transport.post("/experiments", form, key=key)
        return _read(body, api.Submitted)

    async def validate(self, config: str | bytes) -> api.Validated:
        """Return what an experiment file would be, every default filled in."""
        data = config.encode() if isinstance(config, str) else config
        headers = {"Content-Type": "application/yaml"}
        body = await self._transport.post("/experiments/validate", lambda: data, headers=headers)
        return _read(body, api.Validated)

    async def experiments(  # noqa: PLR0913 - what a list can be asked for
        self,
        *,
        state: str | None = None,
        label: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        search: str | None = None,
        sort: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> api.ExperimentList:
        """Return a page of experiments, the newest first.

        Args:
            state: those in this state alone.
            label: those with this label alone.
            name: those of this name alone; `*` stands for any text.
            actor: those that this one submitted.
            search: words that are in the name, labels, description or hyperparameters.
            sort: `submitted`, `ended`, `name`, `state`, `actor` or `trials`; with `-` in front
                the greatest first.
            limit: so many at most.
            cursor: `next_cursor` of the page before.
        """
        query: Query = {
            "state": state,
            "label": label,
            "name": name,
            "actor": actor,
            "q": search,
            "sort": sort,
            "limit": limit,
            "cursor": cursor,
        }
        return await self._get("/experiments", api.ExperimentList, query)

    async def experiment(self, experiment_id: str) -> api.Experiment:
        """Return an experiment with its trials; the id may be shortened."""
        return await self._get(f"/experiments/{_name(experiment_id)}", api.Experiment)

    async def trial(self, trial_id: str) -> api.TrialDetail:
        """Return a trial with its checkpoints."""
        return await self._get(f"/trials/{_name(trial_id)}", api.TrialDetail)

    async def trials(self, experiment_id: str) -> list[api.Trial]:
        """Return an experiment's trials."""
        path = f"/experiments/{_name(experiment_id)}/trials"
        return await self._all(path, api.TrialList, lambda page: page.items)

    async def best(self, experiment_id: str) -> api.BestAnswer:
        """Return an experiment's best trial and the checkpoint to go on with."""
        return await self._get(f"/experiments/{_name(experiment_id)}/best", api.BestAnswer)

    async def checkpoints(self, owner_id: str) -> list[api.Checkpoint]:
        """Return the checkpoints of an experiment or of a trial."""
        return await self._all(
            f"{_owner(owner_id)}/checkpoints", api.CheckpointList, lambda page: page.items
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
            folder: where its files go.
            below: only those whose names begin so.

        Raises:
            NotFound: the checkpoint is deleted, or its files are gone.
            ClientError: the folder is in use, the connection broke, or something is damaged.
        """
        checkpoint = await self.checkpoint(checkpoint_id)
        await check_listed(self._transport, checkpoint)
        checkpoint.files = [file for file in checkpoint.files if file.name.startswith(below)]
        await download(self._transport, checkpoint, folder)
        return checkpoint

    async def ask(
        self, action: Action, experiment_id: str, *, key: str | None = None
    ) -> api.Requested:
        """Ask for an experiment to pause, resume, be canceled or be killed."""
        path = f"/experiments/{_name(experiment_id)}/{action}"
        return _read(await self._transport.post(path, key=key), api.Requested)

    async def move(
        self, trial_id: str, *, to: str | None = None, key: str | None = None
    ) -> api.MoveAsked:
        """Ask for a trial to checkpoint and go on on another agent.

        Args:
            trial_id: whose experiment may be shortened.
            to: the agent; any other if absent.
            key: names this request, so that a second one with it is the same; drawn if absent.
        """
        where = "" if to is None else f"?to={_name(to)}"
        path = f"/trials/{_name(trial_id)}/move{where}"
        return _read(await self._transport.post(path, key=key), api.MoveAsked)

    async def configure_pool(
        self,
        pool: str,
        *,
        policy: str,
        options: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> api.PoolConfigured:
        """Have a pool's slots given by a policy, from now on.

        Args:
            pool: its name.
            policy: the policy's name.
            options: the policy's own; those that are absent have their defaults.
            key: names this request, so that a second one with it is the same; drawn if absent.
        """
        data = msgspec.json.encode({"policy": policy, "options": dict(options or {})})
        headers = {"Content-Type": "application/json"}
        path = f"/pools/{_name(pool)}/configure"
        body = await self._transport.post(path, lambda: data, headers=headers, key=key)
        return _read(body, api.PoolConfigured)

    async def curves(
        self, experiment_id: str, *, kind: str, name: str, points: int = 200
    ) -> api.ExperimentCurves:
        """Return one metric of all trials, thinned to some points."""
        query: Query = {"kind": kind, "name": name, "points": points}
        path = f"/experiments/{_name(experiment_id)}/metrics"
        return await self._get(path, api.ExperimentCurves, query)

    async def curve(
        self, trial_id: str, *, kind: str, name: str, points: int = 200
    ) -> api.TrialCurve:
        """Return one metric of one trial, thinned to some points."""
        query: Query = {"kind": kind, "name": name, "points": points}
        return await self._get(f"/trials/{_name(trial_id)}/metrics", api.TrialCurve, query)

    async def logs(  # noqa: PLR0913 - what lines can be chosen by
        self,
        owner_id: str,
        *,
        rank: int | None = None,
        level: Level | None = None,
        text: str | None = None,
        since: str | None = None,
        until: str | None = None,
        after: str | None = None,
        order: Order = "oldest",
        limit: int = PAGE,
    ) -> api.LogPage:
        """Return a page of what an experiment's trials, or one trial, printed.

        Args:
            owner_id: of an experiment or a trial.
            rank: of this process of the trial only.
            level: this severe or more.
            text: containing this.
            since: from this time on (RFC 3339, or Unix time in milliseconds).
            until: before this time.
            after: `next_cursor` of the page before.
            order: the oldest lines first, or the newest.
            limit: how many lines at most, up to 20,000; fewer may come where they are long.
        """
        query: Query = {
            "rank": rank,
            "level": level,
            "text": text,
            "since": since,
            "until": until,
            "after": after,
            "order": order,
            "limit": limit,
        }
        return await self._get(f"{_owner(owner_id)}/logs", api.LogPage, query)

    async def collect_logs(
        self,
        experiment_id: str | None = None,
        *,
        before: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> api.LogsCollected:
        """Delete printed lines; give an experiment, a time, or both.

        Args:
            experiment_id: of this experiment only.
            before: printed before this time (RFC 3339, or Unix time in milliseconds).
            dry_run: only return what would be deleted.
            key: names this request, so that a second one with it is the same; drawn if absent.
        """
        given = {"experiment": experiment_id, "before": before}
        query = {name: value for name, value in given.items() if value is not None}
        path = f"/logs/collect?{urlencode(query | {'dry_run': str(dry_run).lower()})}"
        return _read(await self._transport.post(path, key=key), api.LogsCollected)

    def follow_logs(
        self, owner_id: str, query: Query | None = None, *, after: str | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield printed lines, from the beginning on; never ends.

        Each event has `{trial_id, run, lines}`; the query may have rank, level, and from=now.
        """
        return follow(self._transport, f"{_owner(owner_id)}/logs/stream", query, after)

    def follow_events(
        self, experiment_id: str, *, begin: Begin = "start", after: str | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield what happens to an experiment, as CloudEvents; never ends.

        Args:
            experiment_id: may be shortened.
            begin: with what there is already, or with what is new.
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

    async def audit(self, experiment_id: str) -> api.Audit:
        """Have every decision about an experiment decided again, and compared."""
        return await self._get(f"/experiments/{_name(experiment_id)}/audit", api.Audit)

    async def agents(self) -> api.AgentList:
        """Return all agents with their slots."""
        return await self._get("/agents", api.AgentList)

    async def queue(self) -> list[api.QueueItem]:
        """Return the runs that wait for slots, the next one first."""
        return await self._all("/queue", api.Queue, lambda page: page.items)

    async def dead_letters(
        self, limit: int = 100, *, state: api.DeadLetterState | None = None
    ) -> api.DeadLetterList:
        """Return the newest messages that a reader could not take in.

        Args:
            limit: how many at most.
            state: only those in this state.
        """
        query: Query = {"limit": limit, "state": state}
        return await self._get("/deadletters", api.DeadLetterList, query)

    async def dead_letter(self, letter_id: str) -> api.DeadLetter:
        """Return a dead letter by its id, READER/TOPIC/PARTITION/POSITION."""
        return await self._get(_letter(letter_id), api.DeadLetter)

    async def retry_dead_letter(
        self, letter_id: str, *, key: str | None = None
    ) -> api.DeadLetterAsked:
        """Ask a reader to take a message again that it rejected.

        Args:
            letter_id: READER/TOPIC/PARTITION/POSITION.
            key: names this request, so that a second one with it is the same; drawn if absent.
        """
        body = await self._transport.post(f"{_letter(letter_id)}/retry", key=key)
        return _read(body, api.DeadLetterAsked)

    async def drop_dead_letter(
        self, letter_id: str, *, key: str | None = None
    ) -> api.DeadLetterAsked:
        """Ask a reader to pass over a message that it rejected, for ever.

        Args:
            letter_id: READER/TOPIC/PARTITION/POSITION.
            key: names this request, so that a second one with it is the same; drawn if absent.
        """
        body = await self._transport.post(f"{_letter(letter_id)}/drop", key=key)
        return _read(body, api.DeadLetterAsked)

    async def status(self) -> api.Status:
        """Return the installation in numbers."""
        return await self._get("/status", api.Status)

    async def _get(self, path: str, kind: type[A], query: Query | None = None) -> A:
        return _read(await self._transport.get(path, query), kind)

    async def _all(self, path: str, kind: type[A], items: Callable[[A], list[Any]]) -> list[Any]:
        """Return the items of all pages."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self._get(path, kind, {"limit": PAGE, "cursor": cursor})
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


def _name(name: str) -> str:
    return quote(name, safe="")


def _letter(letter_id: str) -> str:
    return f"/deadletters/{quote(letter_id)}"


def _owner(name: str) -> str:
    """Return the path of a trial, whose id has a dot, or of an experiment."""
    return f"/trials/{_name(name)}" if "." in name else f"/experiments/{_name(name)}"
