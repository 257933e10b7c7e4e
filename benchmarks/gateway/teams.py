"""Lists, filters and searches of one member of three workspaces, in a company of forty.

Forty workspaces with five projects each, 1,000 users, and from 1,000 to 100,000 experiments are
folded into the tables of the projection. What is measured is all that the gateway does for
`GET /experiments` behind HTTP: rights, filter, SQL, the records of a page of 100, JSON. Each
request is made many times, by another user each time; p50 and p99 are of the time on a clock, and
of the processor's, which a busy machine does not change.

    python -m benchmarks.gateway.teams [--experiments N,N,…] [--requests N]
"""

import argparse
import itertools
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from benchmarks.figures import figure

from rung import api
from rung.events import Payload, changes, decision, fact
from rung.events.directory import SYSTEM, DirectoryChanged
from rung.events.experiment import ExperimentEnded, ExperimentSubmitted
from rung.gateway.access.authorization import Access
from rung.gateway.access.place import Names
from rung.gateway.directory.directory import Directory
from rung.gateway.identity.principal import Principal
from rung.gateway.projections.experiments import (
    ExperimentProjection,
    Selection,
    count_experiments,
    ids_named,
    list_experiments,
    near,
)
from rung.gateway.projections.filter import conditions_of
from rung.gateway.routes.experiments import ROUTES
from rung.gateway.serializers import experiments as serializers
from rung.runtime.garbage import short_collections
from rung.runtime.projection.store import prepare

WORKSPACES: Final = 40
PROJECTS: Final = 5
USERS: Final = 1_000
OF_EACH: Final = 3
PAGE: Final = 100
AIM_MS: Final = 100.0
_BATCH: Final = 2_000
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WORDS: Final = ("resnet", "digits", "speech", "vision", "baseline", "ablation", "large", "small")
_STATES: Final = ("completed", "errored", "canceled")


class Case(NamedTuple):
    """One request."""

    name: str
    run: Callable[[sqlite3.Connection, Access], object]


def company() -> tuple[Directory, list[Principal]]:
    """Return a directory, and its users, each an editor in three workspaces."""
    chance = random.Random(7)  # noqa: S311 - a benchmark's
    directory = Directory()

    def fold(change: changes.Change) -> None:
        version = directory.state.version + 1
        directory.fold(
            DirectoryChanged(
                request_id=f"r{version}", by=SYSTEM, version=version, at_ms=version, change=change
            )
        )

    for space in range(WORKSPACES):
        name = f"team-{space}"
        fold(changes.CreateWorkspace(workspace_id=name, name=name, owner_id="admin"))
        for project in range(PROJECTS):
            of = f"{name}-p{project}"
            fold(
                changes.CreateProject(project_id=of, workspace_id=name, name=f"project-{project}")
            )
    users = []
    for number in range(USERS):
        name = f"user-{number}"
        fold(changes.CreateUser(user_id=name, name=name))
        for space in chance.sample(range(WORKSPACES), OF_EACH):
            assignment = changes.AssignRole(
                assignment_id=f"a-{number}-{space}",
                role="editor",
                user_id=name,
                workspace_id=f"team-{space}",
            )
            fold(assignment)
        users.append(Principal(user_id=name, name=name, via=name))
    return directory, users


def _config(number: int, chance: random.Random) -> dict[str, Any]:
    words = chance.sample(_WORDS, 3)
    return {
        "name": f"{words[0]} {words[1]} {number % 997}",
        "labels": [words[2], f"sweep-{number % 50}"],
        "description": f"run {number} of {words[1]}",
        "hyperparameters": {"lr": {"type": "log", "base": 10.0, "minval": -5, "maxval": -1}},
        "searcher": {"name": "random", "metric": "loss", "max_trials": 10},
        "resources": {"resource_pool": "default"},
    }


def fill(db: sqlite3.Connection, begin: int, end: int) -> None:
    """Fold experiments of all teams, of which one in ten has not ended."""
    chance = random.Random(begin)  # noqa: S311 - a benchmark's
    projection = ExperimentProjection()
    for number in range(begin, end):
        name = f"{number:08d}"
        space = chance.randrange(WORKSPACES)
        data: Payload = ExperimentSubmitted(
            experiment_id=name,
            config=_config(number, chance),
            source="",
            code_digest=None,
            workspace_id=f"team-{space}",
            project_id=f"team-{space}-p{chance.randrange(PROJECTS)}",
            owner=f"user-{chance.randrange(USERS)}",
        )
        at = (_BEGAN + timedelta(minutes=5 * number)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        submitted = fact(data, source="/bench", origin=f"client/{number}", sequence=1, time=at)
        projection.evolve(db, name, submitted)
        if number % 10:
            ended = ExperimentEnded(
                experiment_id=name, state=_STATES[number % len(_STATES)], reason="trained"
            )
            event = decision(ended, source="/bench", cause=submitted, position=number, index=0)
            projection.evolve(db, name, event)
        if number % _BATCH == _BATCH - 1:
            projection.flush(db)
    projection.flush(db)
    db.commit()


def listed(text: str, **fields: Any) -> Callable[[sqlite3.Connection, Access], bytes]:
    """Return a request for the first page of a filter."""

    def run(db: sqlite3.Connection, access: Access) -> bytes:
        names = Names(access)
        me = access.principal.user_id
        found = list_experiments(
            db,
            Selection(
                conditions=conditions_of(text, now=datetime.now(UTC), me=me, ids_of=names.ids_of),
                visible=access.seen,
                limit=PAGE + 1,
                **fields,
            ),
        )
        items = [serializers.summary(each.experiment, None, names) for each in found[:PAGE]]
        return msgspec.json.encode(api.ExperimentList(items=items, next_cursor=None))

    return run


def named(db: sqlite3.Connection, access: Access) -> list[str]:
    """Look up a name that no experiment has, and those that are spelt nearly so."""
    return [*ids_named(db, "resmet", 11, access.seen), *near(db, "resmet", access.seen)]


CASES: Final = (
    Case("list", listed("")),
    Case("list by name", listed("", sort="name", descending=False)),
    Case("filter state:errored owner:me", listed("state:errored owner:me")),
    Case("filter state:active label:large", listed("state:active label:large")),
    Case("filter workspace:team-1* older:30d", listed("workspace:team-1* older:30d")),
    Case("filter hp.lr<0.001 -label:small", listed("hp.lr<0.001 -label:small")),
    Case("search of a common word", listed("resnet")),
    Case("search of two words", listed("speech ablation")),
    Case("search of what is not there", listed("nothinglikeit")),
    Case("status: counts by state", lambda db, it: count_experiments(db, it.seen)),
    Case("a name, and near ones", named),
)


def measure(
    db: sqlite3.Connection, directory: Directory, users: Sequence[Principal], requests: int
) -> dict[str, float]:
    """Print the times of each case; return its p99 in ms of the processor."""
    found = {}
    route = next(each for each in ROUTES if each.name == "list_experiments")
    for case in CASES:
        clock, cpu = list[float](), list[float]()
        for user in users[:requests]:
            started, used = time.perf_counter(), time.process_time()
            case.run(db, Access(directory, user, route))
            clock.append(time.perf_counter() - started)
            cpu.append(time.process_time() - used)
        found[case.name] = _ms(cpu, 99)
        print(
            f"  {case.name:36} p50 {_ms(clock, 50):7.1f} ms  p99 {_ms(clock, 99):7.1f} ms"
            f"   processor p50 {_ms(cpu, 50):7.1f} ms  p99 {found[case.name]:7.1f} ms"
        )
    return found


def _ms(times: Sequence[float], percentile: int) -> float:
    return 1000 * statistics.quantiles(times, n=100)[percentile - 1]


def main() -> None:
    """Fill the tables step by step, and measure after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", default="1000,10000,100000")
    parser.add_argument("--requests", type=int, default=200)
    asked = parser.parse_args()
    directory, users = company()
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(Path(folder) / "experiments.db")
        db.execute("PRAGMA synchronous=OFF")
        prepare(db, ExperimentProjection(), "bench")
        sizes = [int(count) for count in asked.experiments.split(",")]
        found = []
        for done, count in itertools.pairwise([0, *sizes]):
            fill(db, done, count)
            print(f"{count:,} experiments in {WORKSPACES} workspaces, {USERS:,} users")
            with short_collections():  # as in each service
                found.append(measure(db, directory, users, asked.requests))
        db.close()
    for name, p99_ms in found[-1].items():
        figure(
            f"a member's page out of {sizes[-1]:,} experiments: {name}, p99",
            p99_ms,
            "ms of CPU",
            at_most=AIM_MS,
            beside=f"{p99_ms / found[0][name]:.1f} times that of {sizes[0]:,}",
        )


if __name__ == "__main__":
    main()
