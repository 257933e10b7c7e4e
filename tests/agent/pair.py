"""Two real agents on one ledger in memory, and one store."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from rung.events.allocation import (
    AgentJoined,
    AllocationGranted,
    AllocationReleased,
    AllocationSignaled,
    DrainRequested,
    Share,
)
from rung.events.trial import RunSpec
from rung.storage import ObjectStore
from support.agent_rig import EXPERIMENT, POOL, Ended, Rig


class Pair:
    """Two agents of a pool; the test, and a small scheduler, play the rest."""

    def __init__(self, first: Rig, second: Rig) -> None:
        self.first = first
        self.second = second
        self._grants = 0

    async def grant(self, script: str, *, restore: Sequence[str] = (), **config: Any) -> str:
        """Grant a run to two slots of each agent; return the allocation's id.

        With checkpoints to restore it is the second run of the trial that stored the first.
        """
        joined = {each.agent_id: each for each in await self.first.until(AgentJoined, count=2)}
        trial = f"{EXPERIMENT}.{restore[0].split('.')[1] if restore else self._grants}"
        self._grants += 1
        run = 2 if restore else 1
        spec = RunSpec(
            experiment_id=EXPERIMENT,
            trial_id=trial,
            trial_index=0,
            run=run,
            hparams={},
            seed=7,
            length=10,
            time_metric="batches",
            restore=list(restore),
            code_digest=self.first.code(train=script),
            config={"entrypoint": "python3 train.py", **config},
        )
        shares = [
            Share(agent_id=name, incarnation=joined[name].incarnation, slots=[0, 1])
            for name in ("a1", "a2")
        ]
        allocation = f"{trial}.{run}"
        await self.first.decide(
            AllocationGranted(pool=POOL, allocation_id=allocation, shares=shares, spec=spec)
        )
        return allocation

    async def end_of(self, allocation: str) -> Ended:
        """Return what became of a run, once both agents released it."""
        await self.first.until(
            AllocationReleased, lambda it: it.allocation_id == allocation, count=2
        )
        return await self.first.ended_run(allocation)

    async def pass_failures_on(self) -> None:
        """Do what the scheduler does about a part of the next run that fails."""
        trial = f"{EXPERIMENT}.{self._grants}."
        (failed, *_) = await self.first.until(
            AllocationReleased, lambda it: it.allocation_id.startswith(trial) and bool(it.failed)
        )
        others = [name for name in ("a1", "a2") if name != failed.agent_id]
        await self.first.decide(
            AllocationSignaled(
                pool=POOL,
                allocation_id=failed.allocation_id,
                agents=others,
                how="kill",
                reason=failed.failed,
                machine=failed.machine,
            )
        )

    async def drain(self, allocation: str) -> None:
        """Do what the scheduler does about a run on an agent that is to be drained."""
        await self.first.until(DrainRequested)
        await self.first.decide(
            AllocationSignaled(
                pool=POOL, allocation_id=allocation, agents=["a1", "a2"], how="preempt"
            )
        )


@contextlib.asynccontextmanager
async def running_pair(folder: Path, store: ObjectStore | None = None) -> AsyncIterator[Pair]:
    """Give two running agents on one ledger and one store."""
    first = Rig(folder / "1", store=store)
    second = Rig(folder / "2", first.ledger, first.store)
    first.start()
    second.start(agent_id="a2")
    try:
        yield Pair(first, second)
    finally:
        await second.close()
        await first.close()
