"""A gateway with 100,000 experiments of 20 trials: its first start, a restart, memory, lists.

Forty workspaces with five projects each and 1,000 users have from 1,000 to 100,000 experiments;
all but one in a hundred have ended, the others have four trials at work. At each size what is new
lies in the ledger; a gateway that is a process of its own folds it, and ends. Another one starts
from the stored projections and answers over HTTP: pages of 50 with filter and order, each time for
another one of the users, who are members of three workspaces. p50 and p99 are of the time on a
clock and of the processor time of the gateway's process, in which the client reads bytes and no
more. Memory is what the process alone has, and its share of what it has in common with others.

    python -m benchmarks.gateway.experiments [--experiments N,N,…] [--requests N] [--folder FOLDER]
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import structlog
from benchmarks.figures import figure
from benchmarks.gateway.show import Connection

from rung.events import Event, Payload, changes, decision, fact, topic
from rung.events.allocation import AgentJoined, Slot
from rung.events.checkpoint import CheckpointStored
from rung.events.directory import SYSTEM, ChangeRequested
from rung.events.experiment import (
    BracketPlan,
    ExperimentEnded,
    ExperimentState,
    ExperimentSubmitted,
    SearchPlanned,
)
from rung.events.trial import (
    RunRequested,
    RunSpec,
    TrialClosed,
    TrialExited,
    TrialRequested,
    TrialStarted,
    TrialValidated,
)
from rung.gateway import serve
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.identity.secret import digest_of, draw
from rung.gateway.settings import Settings
from rung.ledger import Draft
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.runtime import host
from rung.runtime.garbage import short_collections
from rung.storage import FolderStore

LIST_MS: Final = 50.0
RESTART_S: Final = 10.0
MEMORY_MIB: Final = 400.0
"""The aims."""

TRIALS: Final = 20
OPEN: Final = 4
ACTIVE_EVERY: Final = 100
CHECKPOINT_EVERY: Final = 5
"""Of so many trials one has a checkpoint on record."""
LENGTH: Final = 100
WORKSPACES: Final = 40
PROJECTS: Final = 5
USERS: Final = 1_000
OF_EACH: Final = 3
SLOTS: Final = 64
PAGE: Final = 50
_AT_ONCE: Final = 20
_STEP_S: Final = 300.0
"""Between two submissions."""
_CATCHES_UP_S: Final = 3_600.0
_WORDS: Final = ("resnet", "digits", "speech", "vision", "baseline", "ablation", "large", "small")
_STATES: Final[tuple[ExperimentState, ...]] = ("completed", "errored", "canceled")

QUERIES: Final[dict[str, dict[str, str]]] = {
    "the newest": {},
    "by name": {"sort": "name"},
    "the most trials, completed": {"sort": "-trials", "filter": "state:completed"},
    "errored, mine, by end": {"sort": "-ended", "filter": "state:errored owner:me"},
    "active, with label": {"filter": "state:active label:large"},
    "active, with forecasts": {"filter": "state:active"},
    "by metric, by name": {"sort": "name", "filter": "metric.loss<0.2 -label:small"},
    "by hyperparameter, by state": {"sort": "state", "filter": "hp.lr<0.001"},
    "search of a common word": {"q": "resnet", "sort": "ended"},
    "search of what is not there": {"q": "nothinglikeit"},
}


def member(number: int) -> list[changes.Change]:
    """Return how a user comes into the directory, an editor in three workspaces."""
    name = f"user-{number}"
    spaces = random.Random(number).sample(range(WORKSPACES), OF_EACH)  # noqa: S311 - a benchmark's
    roles = [
        changes.AssignRole(
            assignment_id=f"a-{number}-{space}",
            role="editor",
            user_id=name,
            workspace_id=f"team-{space}",
        )
        for space in spaces
    ]
    return [changes.CreateUser(user_id=name, name=name), *roles]


def company() -> Iterator[changes.Change]:
    """Yield how workspaces, projects and users come into the directory."""
    for space in range(WORKSPACES):
        name = f"team-{space}"
        yield changes.CreateWorkspace(workspace_id=name, name=name, owner_id="admin")
        for number in range(PROJECTS):
            project = f"{name}-p{number}"
            yield changes.CreateProject(
                project_id=project, workspace_id=name, name=f"project-{number}"
            )
    for number in range(USERS):
        yield from member(number)


def config(number: int, chance: random.Random) -> dict[str, Any]:
    """Return the expanded configuration of a random search."""
    words = chance.sample(_WORDS, 3)
    return {
        "name": f"{words[0]} {words[1]} {number % 997}",
        "labels": [words[2], f"sweep-{number % 50}"],
        "description": f"run {number} of {words[1]}",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "lr": {"type": "log", "base": 10.0, "minval": -5, "maxval": -1},
            "width": {"type": "int", "minval": 16, "maxval": 512},
        },
        "searcher": {
            "name": "random",
            "metric": "loss",
            "smaller_is_better": True,
            "time_metric": "batches",
            "max_time": LENGTH,
            "max_trials": TRIALS,
        },
        "resources": {"slots_per_trial": 1, "resource_pool": "default"},
    }


class Search:
    """What one experiment has in the ledger."""

    def __init__(self, number: int, now: float) -> None:
        """Take which one it is, and the time at which the first one was submitted."""
        self._id = f"{number:08d}"
        self._number = number
        self._chance = random.Random(number)  # noqa: S311 - a benchmark's
        self._at = now + _STEP_S * number
        self._ended = number % ACTIVE_EVERY != ACTIVE_EVERY - 1
        self._of: dict[str, Any] = {"experiment_id": self._id}

    def facts(self) -> list[Event]:
        """Return its submission, and what agents reported."""
        space = self._chance.randrange(WORKSPACES)
        data: list[Payload] = [
            ExperimentSubmitted(
                **self._of,
                config=config(self._number, self._chance),
                source="name: x\n",
                code_digest=None,
                workspace_id=f"team-{space}",
                project_id=f"team-{space}-p{self._chance.randrange(PROJECTS)}",
                owner=f"user-{self._chance.randrange(USERS)}",
            )
        ]
        for index in range(TRIALS):
            data += self._reports(index)
        times = (self._at + n for n in itertools.count())
        return [
            fact(it, source="/bench", origin=f"agent/{self._id}", sequence=n, time=_time(at))
            for n, (it, at) in enumerate(zip(data, times, strict=False))
        ]

    def decisions(self, facts: Sequence[Event], positions: Sequence[int]) -> list[Event]:
        """Return what was decided on its first and its last fact."""
        plan = [BracketPlan(bracket=0, lengths=[LENGTH], trials=TRIALS)]
        first: list[Payload] = [
            SearchPlanned(**self._of, method="random", time_metric="batches", brackets=plan)
        ]
        last: list[Payload] = []
        for index in range(TRIALS):
            first += self._requests(index)
            if self._is_over(index):
                closed = TrialClosed(
                    **self._of,
                    trial_id=f"{self._id}.{index}",
                    state="completed",
                    reason="trained",
                    restarts=0,
                )
                last.append(closed)
        if self._ended:
            state = _STATES[self._number % len(_STATES)]
            last.append(ExperimentEnded(**self._of, state=state, reason="all trials are closed"))
        return [
            decision(it, source="/bench", cause=facts[at], position=positions[at], index=n)
            for at, decided in ((0, first), (-1, last))
            for n, it in enumerate(decided)
        ]

    def _is_over(self, index: int) -> bool:
        return self._ended or index < TRIALS - OPEN

    def _requests(self, index: int) -> list[Payload]:
        trial_id, hparams = f"{self._id}.{index}", {"lr": 0.01 / (1 + index), "width": 16 + index}
        found: list[Payload] = [
            TrialRequested(
                **self._of, trial_id=trial_id, index=index, bracket=0, hparams=hparams, seed=index
            )
        ]
        if self._is_over(index):  # of others no list says more for it
            return found
        spec = RunSpec(
            **self._of,
            trial_id=trial_id,
            trial_index=index,
            run=1,
            hparams=hparams,
            seed=index,
            length=LENGTH,
            time_metric="batches",
            restore=[],
            code_digest=None,
        )
        run = RunRequested(
            **self._of,
            pool="default",
            slots=1,
            priority=42,
            max_slots=None,
            reason="a new trial",
            spec=spec,
        )
        return [*found, run]

    def _reports(self, index: int) -> list[Payload]:
        of: dict[str, Any] = {**self._of, "trial_id": f"{self._id}.{index}", "run": 1}
        over = self._is_over(index)
        steps = LENGTH if over else LENGTH // 2
        loss = self._chance.random()
        validated = TrialValidated(
            **of, steps_completed=steps, metrics={"loss": loss, "accuracy": 1 - loss}
        )
        if not over:
            return [TrialStarted(**of, agent_id="a"), validated]
        exited = TrialExited(
            **of, agent_id="a", outcome="finished", exit_code=0, signal=None, message=""
        )
        if index % CHECKPOINT_EVERY:
            return [validated, exited]
        stored = CheckpointStored(
            **of,
            checkpoint_id=f"{self._id}.{index}.1.{steps}",
            steps_completed=steps,
            size_bytes=1_000_000,
            files=3,
            digest="0" * 64,
        )
        return [validated, stored, exited]


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + ".000Z"


class Installation:
    """A folder with a ledger, projections, and the tokens of some users."""

    def __init__(self, folder: Path) -> None:
        self.ledger: Final = folder / "ledger"
        self.projections: Final = folder / "projections"
        self.objects: Final = folder / "objects"
        self._tokens: Final = folder / "tokens"

    @property
    def tokens(self) -> list[str]:
        """Tokens of users."""
        return self._tokens.read_text().split()

    async def found(self, tokens: int) -> None:
        """Make the directory, with tokens of so many users, and a pool."""
        secrets = [draw() for _ in range(tokens)]
        wanted = list(company())
        wanted += [
            changes.IssueToken(token_id=f"t{n}", user_id=f"user-{n}", digest=digest_of(each))
            for n, each in enumerate(secrets)
        ]
        ledger = await SqliteLedger.open(self.ledger)
        asked = [
            ChangeRequested(request_id=f"r{n}", by=SYSTEM, at_ms=n, change=change)
            for n, change in enumerate(wanted)
        ]
        slots = [Slot(id=n, kind="cuda", name="GPU") for n in range(SLOTS)]
        joined = AgentJoined(
            pool="default", agent_id="a", incarnation=1, hostname="a", slots=slots
        )
        data: list[Payload] = [*asked, joined]
        events = [
            fact(it, source="/bench", origin="gateway/bench", sequence=n, time=_time(time.time()))
            for n, it in enumerate(data)
        ]
        await ledger.append([Draft.of(event) for event in events])
        deciding = asyncio.create_task(host(ledger, DirectoryProcessor()))
        partitions = range(ledger.partitions(topic.DIRECTORY))
        while sum([await ledger.end(topic.DIRECTORY, n) for n in partitions]) < len(wanted):  # noqa: ASYNC110 - a benchmark
            await asyncio.sleep(0.05)
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
        await ledger.close()
        self._tokens.write_text("\n".join(secrets))

    async def write(self, begin: int, end: int, now: float) -> None:
        """Append the experiments of a range to the ledger."""
        ledger = await SqliteLedger.open(self.ledger)
        records = 0
        for start in range(begin, end, _AT_ONCE):
            searches = [Search(n, now) for n in range(start, min(start + _AT_ONCE, end))]
            facts = [each.facts() for each in searches]
            drafts = [Draft.of(event) for events in facts for event in events]
            positions = iter(await ledger.append(drafts))
            decided = [
                each.decisions(events, list(itertools.islice(positions, len(events))))
                for each, events in zip(searches, facts, strict=True)
            ]
            decisions = [Draft.of(event) for events in decided for event in events]
            await ledger.append(decisions)
            records += len(drafts) + len(decisions)
        await ledger.close()
        print(f"  {records:,} records of experiments {begin:,} to {end:,} in the ledger")

    @contextlib.asynccontextmanager
    async def gateway(self) -> AsyncIterator[tuple[Connection, float]]:
        """Run a gateway; yield a connection, and the seconds until it had caught up."""
        ledger = await SqliteLedger.open(self.ledger)
        listener = socket.create_server(("127.0.0.1", 0))
        started = asyncio.Event()
        began = time.perf_counter()
        serving = asyncio.create_task(
            serve(
                ledger,
                FolderStore(self.objects),
                listener=listener,
                token=draw(),
                settings=Settings(start_timeout=_CATCHES_UP_S),
                folder=self.projections,
                started=started.set,
            )
        )
        deciding = asyncio.create_task(host(ledger, DirectoryProcessor()))
        starting = asyncio.create_task(started.wait())
        await asyncio.wait([serving, starting], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        took_s = time.perf_counter() - began
        port = listener.getsockname()[1]
        yield Connection(*await asyncio.open_connection("127.0.0.1", port)), took_s
        for task in (serving, deciding):
            task.cancel()
        await asyncio.gather(serving, deciding, return_exceptions=True)
        await ledger.close()


def pss_mib() -> float:
    """Return the memory of this process: its own, and its share of what others have as well."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def fold(it: Installation) -> None:
    """Fold what is new, and end."""
    async with it.gateway() as (_, took_s):
        print(
            f"  folded after {took_s:.1f} s, {time.process_time():.1f} s of processor,"
            f" memory {pss_mib():.0f} MiB"
        )


async def answer(it: Installation, size: int, requests: int) -> None:
    """Start from the stored projections, and answer."""
    async with it.gateway() as (connection, took_s):
        figure(
            f"{size:,} experiments: restart of the gateway",
            took_s,
            "s",
            at_most=RESTART_S,
            beside=f"{time.process_time():.1f} s of CPU with imports",
        )
        tokens = it.tokens
        worst: tuple[float, str, float] = (0.0, "", 0.0)
        for name, query in QUERIES.items():
            path = f"/experiments?{urlencode({'limit': str(PAGE), **query})}"
            clock, used = list[float](), list[float]()
            for token in itertools.islice(itertools.cycle(tokens), requests):
                began, begun = time.perf_counter(), time.process_time()
                await connection.size(path, token)
                clock.append(1000 * (time.perf_counter() - began))
                used.append(1000 * (time.process_time() - begun))
                await asyncio.sleep(0)
            print(f"  {name:28}{_times(clock)}  processor{_times(used)}")
            worst = max(worst, (_p99(clock), name, _p99(used)))
        p99_ms, name, used_ms = worst
        figure(
            f"{size:,} experiments: the slowest list, p99",
            p99_ms,
            "ms",
            at_most=LIST_MS,
            beside=f"{name}; {used_ms:.1f} ms of CPU",
        )
        figure(
            f"{size:,} experiments: memory of the gateway", pss_mib(), "MiB", at_most=MEMORY_MIB
        )


def _times(ms: Sequence[float]) -> str:
    return f" p50 {statistics.median(ms):6.1f}  p99 {_p99(ms):6.1f} ms"


def _p99(ms: Sequence[float]) -> float:
    return statistics.quantiles(ms, n=100)[98]


def main() -> None:
    """Run the benchmark, or one of its parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", default="1000,10000,100000")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", choices=["found", "write", "fold", "answer"])
    parser.add_argument("--range", default="0,0", help=argparse.SUPPRESS)
    parser.add_argument("--now", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    if given.part is not None:
        it = Installation(given.folder)
        begin, end = map(int, given.range.split(","))
        work = {
            "found": lambda: it.found(min(given.requests, USERS)),
            "write": lambda: it.write(begin, end, given.now),
            "fold": lambda: fold(it),
            "answer": lambda: answer(it, end, given.requests),
        }
        with short_collections():
            asyncio.run(work[given.part]())
        return
    sizes = [int(size) for size in given.experiments.split(",")]
    now = time.time() - _STEP_S * sizes[-1]
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        common = [sys.executable, "-m", "benchmarks.gateway.experiments", "--folder", str(folder)]
        common += ["--requests", str(given.requests), "--now", str(now)]
        subprocess.run([*common, "--part", "found"], check=True)
        for before, size in itertools.pairwise([0, *sizes]):
            print(f"{size:,} experiments of {TRIALS} trials", flush=True)
            for part in ("write", "fold", "answer"):
                command = [*common, "--part", part, "--range", f"{before},{size}"]
                subprocess.run(command, check=True)
            used = sum(each.stat().st_size for each in (folder / "projections").iterdir())
            print(f"  files of the projections {used >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
