"""A simulated agent: trains by drawing curves, dies and comes back as its world wants.

A run takes place on one agent here; gangs over several are for the scheduler's own tests.
"""

import asyncio
import hashlib
import json
from typing import Any, Final

from msgspec import Struct

from rung.events import Payload, topic
from rung.events.allocation import (
    AgentJoined,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    AllocationSignaled,
    Slot,
)
from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.events.metric import AgentBeat
from rung.events.trial import (
    ExitOutcome,
    MetricValue,
    RunSpec,
    TrialExited,
    TrialRestored,
    TrialStarted,
    TrialValidated,
)
from rung.sim.world import Counted, World
from rung.storage import checkpoint_prefix
from rung.storage.checkpoint.manifest import MANIFEST

_BACK_MS: Final = 500
_LOST_MS: Final = 45_000
"""Longer than the failure detector waits for a heartbeat."""
_BEAT_S: Final = 5.0
_DIVERGING: Final = 32
"""Of 256 choices of hyperparameters, so many never have a finite value."""


def curve(hparams: dict[str, Any], units: int) -> MetricValue:
    """Return the metric of a trial after so many units of training: falls towards a limit.

    With some hyperparameters it diverges at once.
    """
    digest = hashlib.sha256(json.dumps(hparams, sort_keys=True).encode()).digest()
    if digest[15] < _DIVERGING:
        return "NaN"
    limit = int.from_bytes(digest[:6]) / 2**48
    speed = 0.05 + int.from_bytes(digest[6:12]) / 2**48
    return limit + (1.0 + limit) / (1.0 + speed * units)


class _Run(Struct):
    spec: RunSpec
    units: int
    leaving: bool = False


class Agent:
    """One agent with its slots; facts go out under an origin of its own."""

    def __init__(
        self, world: World, agent_id: str, slots: int, checkpoints: dict[str, int]
    ) -> None:
        """Take what it offers; it joins when it runs.

        Args:
            world: where it runs.
            agent_id: its own.
            slots: how many it has.
            checkpoints: of all agents: id → after how many units it was stored.
        """
        self.agent_id = agent_id
        self._world = world
        self._slots = slots
        self._checkpoints = checkpoints
        self._incarnation = 0
        self._is_up = False
        self._runs: dict[str, _Run] = {}
        self._origin = f"agent/{agent_id}/sim"

    async def run(self) -> None:
        """Carry out what the scheduler decides, until cancelled."""
        world, name = self._world, topic.PLACEMENTS
        ends = [await world.ledger.end(name, it) for it in world.partitions(name)]
        self._join()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            for partition, end in enumerate(ends):
                group.create_task(self._follow(partition, end))

    async def _follow(self, partition: int, position: int) -> None:
        effective = Counted()
        async for records in self._world.follow(topic.PLACEMENTS, partition, position):
            for event in effective(records):
                if self._is_up:
                    self._take(event.data)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._is_up:
                beat = AgentBeat(
                    pool="default",
                    agent_id=self.agent_id,
                    incarnation=self._incarnation,
                    allocations=list(self._runs),
                )
                self._world.write(beat, self._origin)

    def _join(self) -> None:
        self._is_up = True
        self._incarnation += 1
        slots = [Slot(id=i, kind="cpu", name=f"CPU slot {i}") for i in range(self._slots)]
        self._world.write(
            AgentJoined(
                pool="default",
                agent_id=self.agent_id,
                incarnation=self._incarnation,
                hostname=self.agent_id,
                slots=slots,
            ),
            self._origin,
        )

    def _take(self, data: Payload) -> None:
        match data:
            case AllocationGranted() if self._is_mine(data):
                self._start(data.spec, data.allocation_id)
            case AllocationSignaled(allocation_id=allocation, how=how):
                run = self._runs.get(allocation)
                if run is not None and self.agent_id in data.agents:
                    run.leaving = True
                    if how == "kill":
                        self._exit(allocation, run, "killed")
            case AllocationLost(allocation_id=allocation) if allocation in self._runs:
                del self._runs[allocation]
                self._release(allocation)
            case _:
                pass

    def _is_mine(self, grant: AllocationGranted) -> bool:
        return any(
            (share.agent_id, share.incarnation) == (self.agent_id, self._incarnation)
            for share in grant.shares
        )

    def _start(self, spec: RunSpec, allocation: str) -> None:
        started = TrialStarted(
            experiment_id=spec.experiment_id,
            trial_id=spec.trial_id,
            run=spec.run,
            agent_id=self.agent_id,
        )
        self._world.write(started, self._origin)
        run = _Run(spec, 0)
        for checkpoint in spec.restore:
            # Two are kept to restore from, so one is gone only when both turned out damaged.
            store = self._world.objects.area(spec.area_of(spec.experiment_id))
            gone = not store.list(checkpoint_prefix(spec.experiment_id, checkpoint))
            assert not gone or self._world.faults.damage > 0, f"{checkpoint} is needed and gone"
            if gone or self._world.happens(self._world.faults.damage):
                damaged = CheckpointDamaged(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    checkpoint_id=checkpoint,
                    reason="simulated",
                )
                self._world.write(damaged, self._origin)
                continue
            run.units = self._checkpoints[checkpoint]
            restored = TrialRestored(
                experiment_id=spec.experiment_id,
                trial_id=spec.trial_id,
                run=spec.run,
                checkpoint_id=checkpoint,
                steps_completed=run.units,
            )
            self._world.write(restored, self._origin)
            break
        self._runs[allocation] = run
        self._later(allocation, run)

    def _later(self, allocation: str, run: _Run) -> None:
        incarnation = self._incarnation
        duration_ms = self._world.random.randint(10, 200)
        self._world.after(duration_ms, lambda: self._unit(allocation, run, incarnation))

    def _unit(self, allocation: str, run: _Run, incarnation: int) -> None:
        """Train one unit, or leave, or die."""
        if incarnation != self._incarnation or self._runs.get(allocation) is not run:
            return
        if self._world.happens(self._world.faults.agent_crash):
            self._crash()
            return
        if run.leaving:
            self._checkpoint(run)
            self._exit(allocation, run, "preempted")
            return
        if self._world.happens(self._world.faults.trial_crash):
            self._exit(allocation, run, "failed")
            return
        run.units += 1
        spec = run.spec
        self._world.write(
            TrialValidated(
                experiment_id=spec.experiment_id,
                trial_id=spec.trial_id,
                run=spec.run,
                steps_completed=run.units,
                metrics={"loss": curve(spec.hparams, run.units)},
            ),
            self._origin,
        )
        self._checkpoint(run)
        if spec.length is not None and run.units >= spec.length:
            self._exit(allocation, run, "finished")
        else:
            self._later(allocation, run)

    def _checkpoint(self, run: _Run) -> None:
        if run.units == 0:
            return
        name = f"c{len(self._checkpoints)}"
        self._checkpoints[name] = run.units
        prefix = checkpoint_prefix(run.spec.experiment_id, name)
        store = self._world.objects.area(run.spec.area_of(run.spec.experiment_id))
        for file in ("weights", MANIFEST):
            store.put_bytes(prefix + file, b"")
        self._world.write(
            CheckpointStored(
                experiment_id=run.spec.experiment_id,
                trial_id=run.spec.trial_id,
                run=run.spec.run,
                checkpoint_id=name,
                steps_completed=run.units,
                size_bytes=1,
                files=1,
                digest="0",
            ),
            self._origin,
        )

    def _exit(self, allocation: str, run: _Run, outcome: ExitOutcome) -> None:
        del self._runs[allocation]
        failed = outcome == "failed"
        self._world.write(
            TrialExited(
                experiment_id=run.spec.experiment_id,
                trial_id=run.spec.trial_id,
                run=run.spec.run,
                agent_id=self.agent_id,
                outcome=outcome,
                exit_code=1 if failed else 0,
                signal=None,
                message="simulated",
            ),
            self._origin,
        )
        self._release(allocation)

    def _release(self, allocation: str) -> None:
        self._world.write(
            AllocationReleased(
                pool="default",
                allocation_id=allocation,
                agent_id=self.agent_id,
                incarnation=self._incarnation,
            ),
            self._origin,
        )

    def _crash(self) -> None:
        """Lose everything that runs; come back, sometimes only after being declared lost."""
        self._is_up = False
        self._runs.clear()
        self._world.after(_LOST_MS if self._world.happens(0.5) else _BACK_MS, self._join)
