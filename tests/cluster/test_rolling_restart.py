"""Every service and agent is restarted in turn while searches run: nobody has to notice."""

import contextlib
import itertools
import threading
import time
import urllib.error
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pytest
import yaml

from cluster.conftest import NewCluster, user_of
from rung.client import Client, ServerFailed, Unreachable
from rung.config.code_folder import pack
from servers.cluster import REPLICAS
from support.user import CURVE, User, config, wait_for

PATIENCE_S = 15.0
_STARTS = 4
"""The search may rest for as many times as long as a process takes to start, where the machine is
so busy that this is more than the above."""
# A run is over in a fifth of a second, so that no progress lasts which needs no decision and no
# grant; it leaves slots for what is submitted meanwhile, and does not end by itself.
SEARCH: dict[str, Any] = {
    "name": "async_halving",
    "time_metric": "batches",
    "max_time": 9,
    "num_rungs": 3,
    "divisor": 3,
    "max_trials": 10_000,
    "max_concurrent_trials": 2,
}


class Shows(Protocol):
    """Who shows what a gateway answers."""

    def get(self, path: str) -> Any:
        """Return the answer."""
        ...


class Reader:
    """Asks one gateway after the other, as a load balancer would; a retry asks the next."""

    def __init__(self, users: Sequence[Shows], experiment: str) -> None:
        self.failed: list[str] = []
        self.asked = 0
        self.longest_s = 0.0
        """How long the search showed nothing new, also if it never did again."""
        self._users = users
        self._path = f"/experiments/{experiment}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        moved, most = time.monotonic(), 0
        while not self._over.wait(0.1):
            shown = self._answer()
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - moved)
            if shown is None:
                self.failed.append(f"request {self.asked}")
                continue
            self.asked += 1
            validations = sum(len(trial["validations"]) for trial in shown["trials"])
            if validations > most:
                moved, most = now, validations

    def _answer(self) -> dict[str, list[dict[str, list[object]]]] | None:
        """Return an answer, from whichever gateway gives one in time."""
        deadline, number = time.monotonic() + PATIENCE_S, self.asked
        while time.monotonic() < deadline:
            number += 1
            try:
                found: dict[str, list[dict[str, list[object]]]] = self._users[
                    number % len(self._users)
                ].get(self._path)
            except (urllib.error.URLError, OSError, ValueError):
                self._over.wait(0.2)
            else:
                return found
        return None


class Writer:
    """Submits experiments, each under a key of its own; a retry goes to the next gateway."""

    def __init__(self, users: list[User]) -> None:
        self.failed: list[str] = []
        self.submitted: list[str] = []
        self._users = users
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def start(self) -> None:
        """Begin to submit."""
        self._thread.start()

    def stop(self) -> None:
        """Submit no more."""
        self._over.set()
        self._thread.join()

    def _submit(self) -> None:
        with contextlib.ExitStack() as stack:
            clients = itertools.cycle(
                [stack.enter_context(Client(*user.server, patience_s=1)) for user in self._users]
            )
            while not self._over.wait(0.5):
                name = f"write-{len(self.submitted)}"
                found = self._try(clients, name)
                (self.submitted if found else self.failed).append(found or name)

    def _try(self, clients: Iterator[Client], name: str) -> str | None:
        """Return the experiment that was submitted, None if no gateway took it in time."""
        searcher = {"name": "random", "max_length": {"batches": 1}, "max_trials": 1}
        file, code = yaml.safe_dump(config(name, searcher)), pack(CURVE).data
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(Unreachable, ServerFailed):
                return next(clients).submit(file, code, key=name).experiment_id
        return None


class Still:
    """A search in which nothing happens any more."""

    def get(self, path: str) -> Any:
        """Return always the same."""
        return {"path": path, "trials": [{"validations": [{}]}]}


def test_a_search_that_stops_for_good_is_noticed() -> None:
    """The time since it moved last counts, though it never moves again."""
    reader = Reader([Still()], "still")
    began = time.monotonic()
    reader.start()
    wait_for(lambda: reader.asked > 4, "it asked a few times")
    reader.stop()
    assert 0.2 < reader.longest_s < time.monotonic() - began


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_rolling_restart(new_cluster: NewCluster) -> None:
    """No request fails for longer than a retry, each counts once, the search goes on in 15 s."""
    cluster = new_cluster(
        replicas={**REPLICAS, "gateway": 2},
        agents=2,
        slots=2,
        partitions=4,
        options={"agent": ("--cold",)},
    )
    cluster.start()
    users = [
        User(cluster.folder, {**cluster.environment, "RUNG_URL": url}) for url in cluster.urls
    ]
    experiment = users[0].submit(config("rolling", SEARCH))
    wait_for(lambda: users[0].validations(experiment) > 0, "the search has begun")
    reader, writer = Reader(users, experiment), Writer(users)
    slowest_s = 0.0
    reader.start()
    writer.start()
    try:
        for process in [*cluster.services, *cluster.agents]:
            assert process.stop() == 0, f"{process.name}: {process.said()}"
            began = time.monotonic()
            process.start()
            process.until_ready()
            slowest_s = max(slowest_s, time.monotonic() - began)
    finally:
        reader.stop()
        writer.stop()
    users[0].rung("cancel", experiment)
    shown = users[0].ended(experiment)

    assert (reader.failed, writer.failed) == ([], [])
    assert reader.asked > len(cluster.services)
    assert reader.longest_s < max(PATIENCE_S, _STARTS * slowest_s), slowest_s
    assert len(writer.submitted) > len(cluster.services)
    listed = users[0].get("/experiments?limit=1000")["items"]
    assert sorted(item["id"] for item in listed) == sorted([experiment, *writer.submitted])
    assert shown["state"] == "canceled"
    for written in writer.submitted:
        assert users[0].ended(written)["state"] == "completed"
    assert user_of(cluster).rung("audit", experiment).returncode == 0
