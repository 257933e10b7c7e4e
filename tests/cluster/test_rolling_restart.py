"""Every service is restarted in turn while searches run: nobody has to notice."""

import contextlib
import itertools
import threading
import time
import urllib.error
from collections.abc import Iterator

import pytest
import yaml

from cluster.conftest import NewCluster, user_of
from e2e.user import User, config, wait_for
from rung.client import Client, ServerFailed, Unreachable

PATIENCE_S = 15.0
REPLICAS = {"searcher": 2, "scheduler": 2, "checkpoint-gc": 2, "metrics": 2, "gateway": 2}


class Reader:
    """Asks one gateway after the other, as a load balancer would; a retry asks the next."""

    def __init__(self, users: list[User], experiment: str) -> None:
        self.failed: list[str] = []
        self.asked = 0
        self.longest_s = 0.0
        self._users = users
        self._path = f"/experiments/{experiment}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._validations = 0

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        moved = time.monotonic()
        while not self._over.wait(0.1):
            shown = self._answer()
            if shown is None:
                self.failed.append(f"request {self.asked}")
                continue
            self.asked += 1
            validations = sum(len(trial["validations"]) for trial in shown["trials"])
            if validations > self._validations or shown["ended_at"]:
                self.longest_s = max(self.longest_s, time.monotonic() - moved)
                self._validations, moved = validations, time.monotonic()

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
        file = yaml.safe_dump(config(name, searcher))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(Unreachable, ServerFailed):
                return next(clients).submit(file, key=name).experiment_id
        return None


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_rolling_restart(new_cluster: NewCluster) -> None:
    """No request fails for longer than a retry, each counts once, the search goes on in 15 s."""
    cluster = new_cluster(replicas=REPLICAS, agents=2, slots=1, partitions=4)
    cluster.start()
    users = [
        User(cluster.folder, {**cluster.environment, "RUNG_URL": url}) for url in cluster.urls
    ]
    searcher = {"name": "random", "max_length": {"batches": 100_000}, "max_trials": 2}
    experiment = users[0].submit(config("rolling", searcher))
    wait_for(lambda: users[0].validations(experiment) > 0, "the search has begun")
    reader, writer = Reader(users, experiment), Writer(users)
    reader.start()
    writer.start()
    try:
        for service in cluster.services:
            assert service.stop() == 0, f"{service.name}: {service.said()}"
            service.start()
            service.until_ready()
    finally:
        reader.stop()
        writer.stop()
    users[0].rung("cancel", experiment)
    shown = users[0].ended(experiment)

    assert (reader.failed, writer.failed) == ([], [])
    assert reader.asked > len(cluster.services)
    assert reader.longest_s < PATIENCE_S
    assert len(writer.submitted) > len(cluster.services)
    listed = users[0].get("/experiments?limit=1000")["items"]
    assert sorted(item["id"] for item in listed) == sorted([experiment, *writer.submitted])
    assert shown["state"] == "canceled"
    assert user_of(cluster).rung("audit", experiment).returncode == 0
