"""A real agent on a ledger in memory, with real processes; the test plays the scheduler."""

import asyncio
import gzip
import hashlib
import io
import itertools
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rung.agent.agent import Agent
from rung.agent.settings import Settings
from rung.config.run_config import run_config
from rung.events import Event, LedgerUnavailable, Payload, decision, decode, fact, topic
from rung.events.allocation import (
    AgentJoined,
    AllocationGranted,
    AllocationReleased,
    AllocationSignaled,
    Share,
)
from rung.events.experiment import PauseRequested
from rung.events.metric import LogsPrinted, MetricsReported
from rung.events.trial import RunSpec, TrialExited, Withdrawal
from rung.ledger import Draft, Ledger, MemoryLedger
from rung.storage import FolderStore, ObjectStore

P = TypeVar("P", bound=Payload)
POOL = "default"
_DECISIONS = itertools.count(1_000)
"""Behind all that a scheduler beside the test decides on the same fact."""
EXPERIMENT = "exp00001"

SPEAK = """
import json, os, socket, sys
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["RUNG_SOCKET"])
def say(**message):
    channel.sendall(json.dumps(message).encode() + b"\\n")
def hello(token=os.environ["RUNG_ALLOCATION_TOKEN"]):
    say(type="hello", allocation_id=os.environ["RUNG_ALLOCATION"], token=token, rank=0,
        pid=os.getpid())
    return channel.makefile().readline()
def report(kind, step, **values):
    say(type="reported", kind=kind, step=step, time_ms=1, values=values)
"""
"""The beginning of a script that speaks with the agent by hand."""


class Rig:
    """Grants runs to an agent and waits for what it writes."""

    def __init__(
        self, folder: Path, ledger: Ledger | None = None, store: ObjectStore | None = None
    ) -> None:
        self.folder = folder
        self.ledger = ledger or MemoryLedger(partitions=1)
        self.store = store or FolderStore(folder / "objects")
        self._runs = 0
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self.agent: Agent

    def start(self, **changes: Any) -> None:
        """Start an agent; `changes` go to its settings.

        Its runs are not isolated, so that tests can look at their processes by number.
        """
        chosen: dict[str, Any] = {"slots": 4, "agent_id": "a1", "cold": True, "heartbeat_s": 60.0}
        chosen["isolation"] = "off"
        settings = Settings(
            folder=self.folder / "agent", objects_url=self.store.url, **(chosen | changes)
        )
        self.agent = Agent(settings, self.ledger)
        self._stop, self._gone = asyncio.Event(), asyncio.Event()
        self._life = asyncio.create_task(self.agent.run(self._stop, self._gone))

    async def stop(self) -> None:
        """Ask the agent to leave, and wait for it."""
        self._stop.set()
        await self.ended()

    async def abandon(self) -> None:
        """Let the agent's parent be gone, and wait for the agent."""
        self._gone.set()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the agent has ended; raises what it raised."""
        assert self._life is not None
        life, self._life = self._life, None
        await life

    async def close(self) -> None:
        """End the agent however it is."""
        if self._life is not None:
            await self.abandon()

    def code(self, **files: str) -> str:
        """Store a code archive; the names are module names. Return its digest.

        The same files are the same archive, whenever it is made: gzip writes the time otherwise.
        """
        buffer = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for name, text in files.items():
                member = tarfile.TarInfo(f"{name}.py")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        return self.archive(buffer.getvalue())

    def archive(self, data: bytes) -> str:
        """Store an archive as it is; return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        self.store.put_bytes(f"code/{digest}.tar.gz", data)
        return digest

    async def grant(
        self,
        entrypoint: Any = "python3 train.py",
        *,
        code: str | None = None,
        slots: list[int] | None = None,
        restore: Sequence[str] = (),
        inline: bool = False,
        areas: Mapping[str, str] | None = None,
        **config: Any,
    ) -> str:
        """Grant a run of the newest incarnation to the agent; return the allocation's id.

        With checkpoints to restore it is the second run of the trial that stored the first. The
        configuration is stored, or `inline`, as an earlier release granted it.
        """
        config = {"entrypoint": entrypoint, **config}
        stored = run_config(config)
        if not inline and not self.store.list(stored.name):
            self.store.put_bytes(stored.name, stored.data)
        own = str(self.folder / "agent")
        joins = await self.until(AgentJoined, lambda it: it.folder == own)
        joined = max(joins, key=lambda it: it.incarnation)
        if restore:
            index = int(restore[0].split(".")[1])
        else:
            index, self._runs = self._runs, self._runs + 1
        spec = RunSpec(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.{index}",
            trial_index=index,
            run=2 if restore else 1,
            hparams={"lr": 0.1, "global_batch_size": 8},
            seed=7,
            length=10,
            time_metric="batches",
            restore=list(restore),
            code_digest=code,
            config=config if inline else {},
            config_digest=None if inline else stored.digest,
            areas=dict(areas or {}),
        )
        share = Share(
            agent_id=joined.agent_id, incarnation=joined.incarnation, slots=slots or [index % 4]
        )
        allocation_id = f"{spec.trial_id}.{spec.run}"
        granted = AllocationGranted(
            pool=POOL, allocation_id=allocation_id, shares=[share], spec=spec
        )
        await self.decide(granted)
        return allocation_id

    async def run_script(self, script: str, **options: Any) -> "Ended":
        """Grant a run of this script and wait for its end."""
        return await self.end_of(await self.grant(code=self.code(train=script), **options))

    async def signal(self, allocation_id: str, how: Withdrawal, *, final: bool = False) -> None:
        """Signal an allocation."""
        await self.decide(
            AllocationSignaled(
                pool=POOL, allocation_id=allocation_id, agents=["a1"], how=how, final=final
            )
        )

    async def decide(self, data: Payload) -> None:
        """Write a decision of the scheduler."""
        asked = PauseRequested(experiment_id=EXPERIMENT)
        cause = fact(asked, source="/test", origin="test", sequence=1, time="2026-01-01")
        last = await self.ledger.end(topic.POOLS, 0) - 1
        event = decision(data, source="/test", cause=cause, position=last, index=next(_DECISIONS))
        await self.ledger.append([Draft.of(event)])

    async def end_of(self, allocation_id: str) -> "Ended":
        """Return what became of a run, once it is released."""
        await self.until(AllocationReleased, lambda it: it.allocation_id == allocation_id)
        return await self.ended_run(allocation_id)

    async def ended_run(self, allocation_id: str) -> "Ended":
        """Return what is in the ledger about a run."""
        trial_id = allocation_id.rpartition(".")[0]
        return Ended(trial_id, allocation_id, await self.events())

    async def events(self, name: str | None = None) -> list[Event]:
        """Return what the agent wrote, in the order of its outbox."""
        topics = [name] if name else [topic.EXPERIMENTS, topic.POOLS, topic.METRICS, topic.LOGS]
        found: list[Event] = []
        for each in topics:
            for partition in range(self.ledger.partitions(each)):
                records = await self.ledger.read(each, partition, 0, 1_000_000)
                found.extend(decode(record.value) for record in records)
        return sorted(found, key=lambda event: event.sequence or 0)

    async def until(
        self, kind: type[P], matches: Callable[[P], bool] = lambda _: True, count: int = 1
    ) -> list[P]:
        """Wait until the agent has written so many events of a kind; return all of them."""
        waiting = asyncio.ensure_future(self._until(kind, matches, count))
        life = [self._life] if self._life is not None else []
        await asyncio.wait([waiting, *life], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and life:
            waiting.cancel()
            life[0].result()
        return await waiting

    async def _until(self, kind: type[P], matches: Callable[[P], bool], count: int) -> list[P]:
        found: list[P] = []
        async for record in self._follow(kind.TOPIC):
            data = decode(record).data
            if isinstance(data, kind) and matches(data):
                found.append(data)
                if len(found) >= count:
                    break
        return [
            event.data
            for event in await self.events(kind.TOPIC)
            if isinstance(event.data, kind) and matches(event.data)
        ]

    async def until_printed(self, text: str) -> None:
        """Wait until some run has printed a line with this text."""
        await self.until(LogsPrinted, lambda it: any(text in line.text for line in it.lines))

    async def _follow(self, name: str) -> AsyncIterator[bytes]:
        async for records in self.ledger.follow(name, 0, 0):
            for record in records:
                yield record.value


class FickleLedger(MemoryLedger):
    """A ledger that is away, except for the scheduler, when told so."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.away = False
        self.refused = asyncio.Event()

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, or be away."""
        if self.away and drafts[0].topic != topic.PLACEMENTS:
            self.refused.set()
            raise LedgerUnavailable("away")
        return await super().append(drafts)


class Ended:
    """What the ledger says about a run that has ended."""

    def __init__(self, trial_id: str, allocation_id: str, events: list[Event]) -> None:
        self.allocation_id = allocation_id
        self.payloads = [
            event.data
            for event in events
            if (
                getattr(event.data, "trial_id", None) == trial_id
                and f"{trial_id}.{getattr(event.data, 'run', None)}" == allocation_id
            )
            or getattr(event.data, "allocation_id", None) == allocation_id
        ]

    def of(self, kind: type[P]) -> list[P]:
        """Return the events of a kind."""
        return [payload for payload in self.payloads if isinstance(payload, kind)]

    @property
    def exit(self) -> TrialExited:
        """How the run ended."""
        (exited,) = self.of(TrialExited)
        return exited

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        """What it printed: stream, level, text."""
        return [
            (line.stream, line.level, line.text)
            for printed in self.of(LogsPrinted)
            for line in printed.lines
        ]

    def printed(self, stream: str = "stdout") -> list[str]:
        """Return the lines of one stream."""
        return [text for name, _, text in self.lines if name == stream]

    @property
    def rows(self) -> list[tuple[str, int, dict[str, Any]]]:
        """What it reported: kind, step, values."""
        return [
            (row.kind, row.step, dict(row.values))
            for reported in self.of(MetricsReported)
            for row in reported.rows
        ]
