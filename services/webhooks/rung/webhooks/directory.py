"""What the service knows: the webhooks of the directory, and where each experiment belongs.

Webhooks are few and kept in memory; experiments are many and lie in a file of this process, made
anew at each start.
"""

import asyncio
import sqlite3
from typing import Final, NamedTuple

import structlog

from rung.config.log_pattern import LogPatterns
from rung.events import Event, RungError, UndecodableEvent, partition_of, topic
from rung.events.changes import MoveProject, RemoveWebhook, SetWebhook
from rung.events.codec import decode_handled
from rung.events.directory import DIRECTORY, DirectoryChanged
from rung.events.errors import SecretError
from rung.events.experiment import ExperimentMoved, ExperimentSubmitted
from rung.ledger import Ledger
from rung.runtime.fact_writer import now
from rung.runtime.projection.projection import Projection
from rung.runtime.projection.runner import Projections
from rung.runtime.retry import supervise
from rung.secrets.master_key import ENVIRONMENT
from rung.subscription.document import Receiver, Subscription, read
from rung.subscription.sealed import Seal

NAME: Final = "webhooks-directory"
_RECEIVERS_MAX: Final = 1_000
_TYPES: Final = frozenset({DirectoryChanged.TYPE})

_log = structlog.get_logger()


class Hook(NamedTuple):
    """A webhook, as it is set now."""

    webhook_id: str
    workspace_id: str
    project_id: str | None
    experiment_id: str | None
    active: bool
    created: str
    """When it was set first: RFC 3339."""
    changed: str
    """When it was set last."""
    subscription: Subscription
    patterns: LogPatterns

    def concerns(self, experiment_id: str, place: "Place") -> bool:
        """Return whether it is told of an experiment."""
        return (
            self.workspace_id == place.workspace_id
            and self.project_id in {None, place.project_id}
            and self.experiment_id in {None, experiment_id}
        )


class Place(NamedTuple):
    """Where an experiment belongs."""

    workspace_id: str
    project_id: str
    name: str


class Places(Projection):
    """Where each experiment belongs."""

    name = NAME
    facts = topic.EXPERIMENTS
    handles = ExperimentSubmitted | ExperimentMoved
    schema = "CREATE TABLE places (id TEXT PRIMARY KEY, workspace TEXT, project TEXT, name TEXT)"

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Note where an experiment is submitted or moved to."""
        match event.data:
            case ExperimentSubmitted() as it:
                row = (key, it.workspace_id, it.project_id, str(it.config.get("name", "")))
                db.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", row)
            case ExperimentMoved() as it:
                change = "UPDATE places SET workspace = ?, project = ? WHERE id = ?"
                db.execute(change, (it.workspace_id, it.project_id, key))
            case _:
                raise AssertionError(event)


def _place(db: sqlite3.Connection, experiment_id: str) -> Place | None:
    query = "SELECT workspace, project, name FROM places WHERE id = ?"
    row = db.execute(query, (experiment_id,)).fetchone()
    return None if row is None else Place(*row)


class Directory:
    """The webhooks, and the places of experiments."""

    def __init__(self, seal: Seal | None) -> None:
        """Begin with nothing; without a seal no receiver can be read."""
        self._seal = seal
        self._places: Projections | None = None
        self._changed = asyncio.Condition()
        self._ledger: Ledger | None = None
        self._reached = 0
        """Behind the last record of the directory that was taken."""
        self._known = ""
        """Up to when all webhooks are known."""
        self._receivers: dict[tuple[str, str], Receiver] = {}
        """Id of a webhook and what its document refers to → its receiver, opened."""
        self._moved: dict[str, str] = {}
        """Id of a project that was moved → its workspace."""
        self.hooks: Final[dict[str, Hook]] = {}
        self.ready: Final = asyncio.Event()
        """Set once what the ledger held at the start is known."""

    async def run(self, ledger: Ledger) -> None:
        """Follow the ledger until cancelled.

        Raises:
            LedgerError: one that does not pass by itself.
        """
        places = Projections(ledger, [Places()], reader=NAME)
        self._ledger = ledger
        try:
            await places.start(wait_s=0.0)
            self._places = places
            async with asyncio.TaskGroup() as group:
                group.create_task(supervise(lambda: self._follow(ledger), name=NAME))
                group.create_task(places.failed())
        finally:
            self._places = None
            self.ready.clear()
            await places.close()

    async def until_known(self, time: str) -> None:
        """Return once all webhooks are known that were set before a time.

        Raises:
            LedgerError: the ledger does not answer.
        """
        await self.ready.wait()
        if time <= self._known:
            return
        assert self._ledger is not None
        asked = now()
        partition = partition_of(DIRECTORY, self._ledger.partitions(topic.DIRECTORY))
        end = await self._ledger.end(topic.DIRECTORY, partition)
        async with self._changed:
            await self._changed.wait_for(lambda: self._reached >= end)
        self._known = max(self._known, asked)

    def place_of(self, experiment_id: str) -> Place | None:
        """Return where an experiment belongs; None: not known yet."""
        if self._places is None:
            return None
        found = self._places.stores[NAME].peek(_place, experiment_id)
        if found is None:
            return None
        # Its project may have moved since, with all that is in it.
        home = self._moved.get(found.project_id, found.workspace_id)
        return found._replace(workspace_id=home)

    async def receiver_of(self, hook: Hook) -> Receiver:
        """Return what leads to the receiver of a webhook.

        Raises:
            SecretError: it cannot be opened.
            ObjectError: the object store refuses, or does not answer.
        """
        if self._seal is None:
            raise SecretError(f"this service has no key to open receivers with: {ENVIRONMENT}")
        name = hook.webhook_id, hook.subscription.sealed
        found = self._receivers.get(name)
        if found is None:
            found = await asyncio.to_thread(self._seal.open, *name)
            self._receivers[name] = found
            if len(self._receivers) > _RECEIVERS_MAX:
                self._receivers.pop(next(iter(self._receivers)))
        return found

    async def changed(self) -> None:
        """Return once a webhook was set or removed."""
        async with self._changed:
            await self._changed.wait()

    async def _follow(self, ledger: Ledger) -> None:
        partition = partition_of(DIRECTORY, ledger.partitions(topic.DIRECTORY))
        self.hooks.clear()
        self._moved.clear()
        start = await ledger.start(topic.DIRECTORY, partition)
        goal = await ledger.end(topic.DIRECTORY, partition)
        version = 0
        self._reached = start
        if start >= goal:
            self.ready.set()
        async for records in ledger.follow(topic.DIRECTORY, partition, start):
            for record in records:
                try:
                    event = decode_handled(record.value, _TYPES)
                except UndecodableEvent:
                    continue
                if event is None or not isinstance(event.data, DirectoryChanged):
                    continue
                if event.data.version > version:  # else a decision that was written late
                    version = event.data.version
                    self._take(event, event.data)
            if records[-1].position + 1 >= goal:
                self.ready.set()
            async with self._changed:
                self._reached = records[-1].position + 1
                self._changed.notify_all()

    def _take(self, event: Event, decided: DirectoryChanged) -> None:
        match decided.change:
            case SetWebhook() as it:
                try:
                    subscription = read(it.document)
                except RungError as error:
                    _log.error("webhook ignored", webhook=it.webhook_id, reason=str(error))
                    self.hooks.pop(it.webhook_id, None)
                    return
                before = self.hooks.get(it.webhook_id)
                self.hooks[it.webhook_id] = Hook(
                    webhook_id=it.webhook_id,
                    workspace_id=it.workspace_id,
                    project_id=it.project_id,
                    experiment_id=it.experiment_id,
                    active=it.active,
                    created=event.time if before is None else before.created,
                    changed=event.time,
                    subscription=subscription,
                    patterns=LogPatterns(subscription.logs),
                )
            case MoveProject() as it:
                self._moved[it.project_id] = it.workspace_id
                for hook in list(self.hooks.values()):
                    if hook.project_id == it.project_id:  # its receiver is of the other workspace
                        off = hook._replace(active=False, changed=event.time)
                        self.hooks[hook.webhook_id] = off
            case RemoveWebhook() as gone:
                self.hooks.pop(gone.webhook_id, None)
            case _:
                pass
