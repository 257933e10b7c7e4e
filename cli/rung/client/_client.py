"""Asynchronous client of the gateway's HTTP API."""

from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from msgspec import Struct

from rung import api
from rung.client._download import check_listed, download
from rung.client._error import ServerFailed
from rung.client._location import Locate, Location, of_folder
from rung.client._sse import ServerEvent, follow
from rung.client._transport import MakeBody, Query, Transport

A = TypeVar("A", bound=Struct)

PATIENCE_S: Final = 3.0
TIMEOUT_S: Final = 120.0
PAGE: Final = 500

Action = Literal["pause", "resume", "cancel", "kill"]
Begin = Literal["start", "now"]
Order = Literal["oldest", "newest"]
Level = Literal["debug", "info", "warning", "error", "critical"]


class ExperimentQuery(TypedDict, total=False):
    """Which experiments to return, and in which order."""

    state: str | None
    label: str | None
    name: str | None
    """Of this name; `*` stands for any text."""
    actor: str | None
    """Submitted by this actor."""
    search: str | None
    """Words in the name, labels, description or hyperparameters."""
    sort: str | None
    """`submitted`, `ended`, `name`, `state`, `actor` or `trials`; with `-` in front descending."""
    limit: int
    """At most so many; 100 if absent."""
    cursor: str | None
    """`next_cursor` of the page before."""


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
    order: Order
    """The oldest lines first, which is the default, or the newest."""
    limit: int
    """At most so many, up to 20,000; fewer are returned if they are long."""


class AsyncClient:
    """A client of one gateway; use it with `async with`.

    Requests that write take a `key`, by which a second one has no further effect. It is drawn if
    absent, so that retries of the client itself are safe.
    """

    def __init__(  # noqa: PLR0913 - three ways to name the gateway
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        *,
        data: Path | None = None,
        locate: Locate | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepare a client; nothing is sent yet.

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
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    @property
    def url(self) -> str:
        """Of the gateway."""
        return self._transport.url

    async def submit(
        self, config: str | bytes, code: bytes | None = None, *, key: str | None = None
    ) -> api.Submitted:
        """Submit an experiment file and, if it has one, its packed code folder.

        Args:
            config: YAML.
            code: the `data` of `rung.config.code_folder.pack`.
            key: the idempotency key.
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

        return await self._post("/experiments", api.Submitted, form, key=key)

    async def validate(self, config: str | bytes) -> api.Validated:
        """Return an experiment file's configuration with all defaults."""
        data = config.encode() if isinstance(config, str) else config
        headers = {"Content-Type": "application/yaml"}
        path = "/experiments/validate"
        return await self._post(path, api.Validated, lambda: data, headers=headers)

    async def experiments(self, **query: Unpack[ExperimentQuery]) -> api.ExperimentList:
        """Return a page of experiments, the newest first."""
        words = query.pop("search", None)
        found: Query = {"limit": 100, **query, "q": words}
        return await self._get("/experiments", api.ExperimentList, found)

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
        """Return an experiment's best trial and its checkpoint."""
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
            folder: new, or empty.
            below: only files whose names begin so.

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
        """Request that an experiment pauses, resumes, is canceled or is killed."""
        path = f"/experiments/{_name(experiment_id)}/{action}"
        return await self._post(path, api.Requested, key=key)

    async def move(
        self, trial_id: str, *, to: str | None = None, key: str | None = None
    ) -> api.MoveAsked:
        """Request that a trial checkpoints and resumes on another agent.

        Args:
            trial_id: with the experiment's id, which may be shortened.
            to: the agent; any other if absent.
            key: the idempotency key.
        """
        where = "" if to is None else f"?to={_name(to)}"
        path = f"/trials/{_name(trial_id)}/move{where}"
        return await self._post(path, api.MoveAsked, key=key)

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
        return await self._post(path, kind, lambda: data, headers=headers, key=key)

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
        return await self._get(f"{_owner(owner_id)}/logs", api.LogPage, found)

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

    def follow_logs(
        self, owner_id: str, query: Query | None = None, *, after: str | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield log lines, stored ones and new ones; never ends.

        Each event has `{trial_id, run, lines}`; the query may have rank, level, and from=now.
        """
        return follow(self._transport, f"{_owner(owner_id)}/logs/stream", query, after)

    def follow_events(
        self, experiment_id: str, *, begin: Begin = "start", after: str | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield the events of an experiment, as CloudEvents; never ends.

        Args:
            experiment_id: may be shortened.
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
        make_body: MakeBody | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> A:
        return _read(await self._transport.post(path, make_body, headers=headers, key=key), kind)

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


def _dead_letter(letter_id: str) -> str:
    return f"/deadletters/{quote(letter_id)}"


def _owner(name: str) -> str:
    """Return the path of a trial, whose id has a dot, or of an experiment."""
    return f"/trials/{_name(name)}" if "." in name else f"/experiments/{_name(name)}"
