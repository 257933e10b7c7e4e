"""One trial of several ranks: a parent with the framework for each, which forks that rank."""

import contextlib
import json
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from core.agent_end import AgentEnd, run_spec
from rung.agent.launcher import variables
from rung.agent.meeting import Meeting, Part
from rung.agent.network import LOOPBACK, ReservedPort
from rung.core import protocol
from rung.core.distributed import Place
from rung.core.protocol import Stored

LAUNCHER: Final = "tensorflow"


class Ranks:
    """One trial in a folder of its own: run after run, on so many slots each."""

    def __init__(
        self, parents: "Sequence[subprocess.Popen[str]]", folder: Path, fields: dict[str, Any]
    ) -> None:
        self._parents = parents
        self._folder = folder
        self.agents = [
            AgentEnd(folder / str(rank), run_spec(**fields)) for rank in range(len(parents))
        ]
        for agent in self.agents:
            agent.objects_url = self.agents[0].objects_url

    @property
    def chief(self) -> AgentEnd:
        """What hears the chief."""
        return self.agents[0]

    def train(self, slots: int, moment: int | None = None, **order: Any) -> list[int]:
        """Train the next run; return the ranks' exit codes."""
        stored = [message.checkpoint_id for message in self.chief.of(Stored)]
        number = len(self.chief.hellos) + 1
        ends = [len(agent.hellos) + 1 for agent in self.agents[:slots]]
        with contextlib.ExitStack() as stack:
            ports = [ReservedPort(LOOPBACK) for _ in range(1 + slots)]
            for port in ports:
                stack.callback(port.close)
            meeting = Meeting([Part(LOOPBACK, [p.number for p in ports])], secrets.token_hex(8))
            for rank in range(slots):
                agent = self.agents[rank]
                agent.spec = msgspec.structs.replace(agent.spec, run=number, restore=stored[::-1])
                self._send(rank, _environment(agent, rank, slots, meeting), moment, order)
            codes = [self._code(rank) for rank in range(slots)]
        for agent, end in zip(self.agents, ends, strict=False):
            agent.wait_for_end(end)
        return codes

    def curve(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the metrics by kind and step; a step reported twice said the same twice."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for kind in ("training", "validation"):
            for step, values in self.chief.reports(kind):
                assert found.setdefault((kind, step), values) == values, (kind, step)
        return found

    def results(self, slots: int) -> list[dict[str, Any]]:
        """Return what became of each rank in the last run."""
        folders = [self._folder / f"rank-{rank}" for rank in range(slots)]
        return [json.loads((folder / "result.json").read_text()) for folder in folders]

    def _send(
        self, rank: int, environment: dict[str, str], moment: int | None, order: dict[str, Any]
    ) -> None:
        folder = self._folder / f"rank-{rank}"
        folder.mkdir(exist_ok=True)
        full = {"environment": environment, "folder": str(folder), "moment": moment, **order}
        parent = self._parents[rank]
        assert parent.stdin is not None
        parent.stdin.write(json.dumps(full) + "\n")
        parent.stdin.flush()

    def _code(self, rank: int) -> int:
        answers = self._parents[rank].stdout
        assert answers is not None
        return int(answers.readline())


def _environment(agent: AgentEnd, rank: int, slots: int, meeting: Meeting) -> dict[str, str]:
    """Return what the agent sets for a rank."""
    place = Place(rank=rank, size=slots, local_rank=rank, local_size=slots)
    environment = agent.environment | place.variables()
    if slots == 1:
        return environment
    told = {protocol.CHIEF_VARIABLE: meeting.chief, protocol.KEY_VARIABLE: meeting.key}
    return environment | told | variables(LAUNCHER, place, meeting, None)


@contextlib.contextmanager
def ranks(
    parents: "Sequence[subprocess.Popen[str]]", folder: Path, **fields: Any
) -> Iterator[Ranks]:
    """Yield the runs of a trial of several ranks."""
    found = Ranks(parents, folder, fields)
    try:
        yield found
    finally:
        for agent in found.agents:
            agent.close()
