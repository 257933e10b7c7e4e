"""Trials that train in no time: they answer what a searcher asks for, on a ledger."""

import asyncio
from typing import Any

import msgspec

from rung.events import Event, Payload, decode, topic
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import ExperimentEnded, ExperimentSubmitted
from rung.events.trial import RunRequested, TrialExited, TrialStarted, TrialValidated
from rung.ledger import Ledger, Record
from rung.methods.rng import uniform
from rung.runtime import FactWriter


class Trials:
    """Submits experiments, and has every run that is requested report, save and exit."""

    def __init__(self, ledger: Ledger, *, pause_s: float = 0.0) -> None:
        """Prepare it.

        Args:
            ledger: on which the searcher decides.
            pause_s: how long a run trains.
        """
        self._ledger = ledger
        self._pause_s = pause_s
        self._writer = FactWriter(ledger, source="/rung/test", origin=f"test/{id(self)}")
        self._causes: dict[str, tuple[int, int]] = {}
        self._open: set[str] = set()
        self._grew = asyncio.Event()
        self.answered: list[str] = []
        """Allocations, in the order in which they were requested."""
        self.doubled = 0
        """Decisions that lay on record twice."""

    async def submit(self, experiment_id: str, config: dict[str, Any], *, level: int = 1) -> None:
        """Submit an experiment."""
        self._open.add(experiment_id)
        await self._write(
            ExperimentSubmitted(
                experiment_id=experiment_id,
                config=config,
                source="",
                code_digest=None,
                level=level,
            )
        )

    async def run(self) -> None:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as group:
            for partition in range(self._ledger.partitions(topic.SEARCHES)):
                group.create_task(self._follow(partition, group))

    @property
    def open(self) -> frozenset[str]:
        """Experiments that were submitted and have not ended."""
        return frozenset(self._open)

    async def ended(self, *names: str) -> None:
        """Wait until these experiments have ended, or else all that were submitted."""
        while self._open.intersection(names) if names else self._open:
            self._grew.clear()
            await self._grew.wait()

    async def reached(self, count: int) -> None:
        """Wait until so many runs were answered."""
        while len(self.answered) < count:
            self._grew.clear()
            await self._grew.wait()

    async def _follow(self, partition: int, group: asyncio.TaskGroup) -> None:
        async for records in self._ledger.follow(topic.SEARCHES, partition, 0):
            for record in records:
                event = decode(record.value)
                if not self._is_later(record, event):
                    self.doubled += 1
                elif isinstance(event.data, RunRequested):
                    self.answered.append(f"{event.data.spec.trial_id}.{event.data.spec.run}")
                    group.create_task(self._train(event.data))
                elif isinstance(event.data, ExperimentEnded):
                    self._open.remove(record.key)
            self._grew.set()

    def _is_later(self, record: Record, event: Event) -> bool:
        assert event.causeposition is not None
        assert event.causeindex is not None
        cause = (event.causeposition, event.causeindex)
        if cause <= self._causes.get(record.key, (-1, -1)):
            return False
        self._causes[record.key] = cause
        return True

    async def _train(self, request: RunRequested) -> None:
        spec = request.spec
        steps = spec.length or 1
        about: dict[str, Any] = {
            "experiment_id": spec.experiment_id,
            "trial_id": spec.trial_id,
            "run": spec.run,
        }
        loss = uniform(1, "level", spec.trial_index, ()) + 1 / steps
        await self._write(TrialStarted(agent_id="a1", **about))
        await asyncio.sleep(self._pause_s)
        await self._write(
            TrialValidated(
                steps_completed=steps, metrics={"epochs": float(steps), "loss": loss}, **about
            )
        )
        await self._write(
            CheckpointStored(
                checkpoint_id=f"{spec.trial_id}-{spec.run}",
                steps_completed=steps,
                size_bytes=1,
                files=1,
                digest="",
                **about,
            )
        )
        await self._write(
            TrialExited(
                agent_id="a1", outcome="finished", exit_code=0, signal=None, message="", **about
            )
        )

    async def _write(self, data: Payload) -> None:
        await self._writer.write(data)


async def decisions_of(ledger: Ledger, experiment_id: str) -> list[bytes]:
    """Return the decisions about an experiment as every reader takes them, doubled ones once."""
    partition = topic.partition_of(experiment_id, ledger.partitions(topic.SEARCHES))
    taken: list[bytes] = []
    last = (-1, -1)
    position = 0
    while records := await ledger.read(topic.SEARCHES, partition, position, 2_000):
        position = records[-1].position + 1
        for record in records:
            event = decode(record.value)
            cause = (event.causeposition or 0, event.causeindex or 0)
            if record.key == experiment_id and cause > last:
                last = cause
                taken.append(msgspec.json.encode(event.data))
    return taken
