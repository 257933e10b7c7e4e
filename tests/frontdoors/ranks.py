"""Trials of several ranks, run after run, each rank against an agent's end of its own."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from core.agent_end import AgentEnd, agent_end
from rung.agent.launcher import variables
from rung.agent.meeting import Ports, alone
from rung.core import protocol
from rung.core.distributed import Place
from rung.core.protocol import Stored


class Ranks:
    """One trial in a folder of its own; any of its runs may have another number of ranks."""

    def __init__(
        self, parent: "subprocess.Popen[str]", agents: list[AgentEnd], folder: Path
    ) -> None:
        self._parent = parent
        self._agents = agents
        self._folder = folder
        self._runs = 0
        for agent in agents[1:]:
            agent.objects_url = agents[0].objects_url

    @property
    def chief(self) -> AgentEnd:
        """The agent's end of rank 0, whose words count."""
        return self._agents[0]

    def train(
        self, size: int, *, victim: int = -1, moment: int | None = None, **order: Any
    ) -> list[int]:
        """Train the next run on so many ranks, one of which may die; return all exit codes."""
        stored = [message.checkpoint_id for message in self.chief.of(Stored)]
        self._runs += 1
        changes: dict[str, Any] = {"run": self._runs, "restore": stored[::-1]}
        heard = [len(agent.hellos) for agent in self._agents]
        ports = Ports(size, loopback=True)
        meeting = alone(ports)
        orders = []
        for rank, agent in enumerate(self._agents[:size]):
            agent.spec = msgspec.structs.replace(agent.spec, **changes)
            place = Place(rank=rank, size=size, local_rank=rank, local_size=size)
            network = variables("torch", place, meeting, None) if size > 1 else {}
            own = self._folder / f"rank-{rank}"
            own.mkdir(exist_ok=True)
            environment = {
                **agent.environment,
                **network,
                protocol.CHIEF_VARIABLE: meeting.chief,
                protocol.KEY_VARIABLE: meeting.key,
                **place.variables(),
            }
            fate = moment if rank == victim else None
            orders.append(
                {"environment": environment, "folder": str(own), "moment": fate, **order}
            )
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(orders) + "\n")
        self._parent.stdin.flush()
        codes: list[int] = json.loads(self._parent.stdout.readline())
        ports.close()
        for agent, before in zip(self._agents[:size], heard, strict=False):
            agent.wait_for_end(len(agent.hellos))
            assert len(agent.hellos) == before + 1
        return codes

    def result(self, rank: int) -> dict[str, Any]:
        """Return what a rank made of the trial."""
        found: dict[str, Any] = json.loads(
            (self._folder / f"rank-{rank}" / "result.json").read_text()
        )
        return found

    def refusal(self) -> str:
        """Return in which words the ranks refused to train."""
        return "".join(path.read_text() for path in self._folder.glob("rank-*/refused.txt"))

    def curves(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return what the chief reported, by kind and step; said twice, it was the same twice."""
        found: dict[str, dict[int, dict[str, Any]]] = {"training": {}, "validation": {}}
        for kind, curve in found.items():
            for step, values in self.chief.reports(kind):
                assert curve.setdefault(step, values) == values, (kind, step)
        return found

    def last_curves(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return what the chief reported; of what was said twice, what it said last."""
        return {kind: dict(self.chief.reports(kind)) for kind in ("training", "validation")}


@contextlib.contextmanager
def ranks(
    parent: "subprocess.Popen[str]", folder: Path, size: int, **fields: Any
) -> Iterator[Ranks]:
    """Yield a trial of up to so many ranks."""
    with contextlib.ExitStack() as stack:
        ends = [
            stack.enter_context(agent_end(folder / f"agent-{rank}", **fields))
            for rank in range(size)
        ]
        yield Ranks(parent, ends, folder)
