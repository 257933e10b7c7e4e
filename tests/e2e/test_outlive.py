"""A training outlives Rung: `rung up`, the agent and upgrades of either come and go beside it.

`RUNG_OUTLIVE_SECONDS` says for how long, and `RUNG_OUTLIVE_SEED` repeats the order of the faults;
`make soak` takes ten minutes.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rung.agent.forkserver.orphans import MARKER
from rung.events.allocation import AgentJoined
from rung.events.trial import TrialRestored, TrialStarted
from support.installation import Installation
from support.trainings import SECONDS, SEED, Record, Trainings, disturb
from support.upgrades import Upgrades
from support.user import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
UNATTENDED_S = 600.0


class Outliving(Installation):
    """An installation whose trials train on without it."""

    def __init__(self, tmp_path: Path, unattended_s: float = UNATTENDED_S) -> None:
        self.upgrades = Upgrades(tmp_path / "releases")
        environment = self.upgrades.environment
        super().__init__(tmp_path / "rung", 4, unattended_s, environment=environment, cold=False)
        self.record = Record(self.folder / "ledger")
        self._chance = random.Random(SEED)  # noqa: S311 - repeatable, not secret
        self.trainings = Trainings(self, self.record, tmp_path)

    def processes(self) -> set[int]:
        """All that the agent or its fork servers have made, wherever it is by now."""
        marker = f"{MARKER}={self.folder / 'agent'}"
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if marker in Path(f"/proc/{process.pid}/environ").read_text(errors="replace"):
                    found.add(process.pid)
        return found

    def kill_all(self, *, agent: bool) -> None:
        """Kill `rung up` with SIGKILL, its agent too if that is wanted, and start it again."""
        own, server = self.agent, self.server_process
        server.kill()
        if agent and own is not None:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends without its parent
                own.kill()
        server.wait()
        self.up()

    def kill_a_start(self) -> None:
        """Kill `rung up` with SIGKILL, and so once more while it starts, at whatever moment."""
        server = self.server_process
        server.kill()
        server.wait()
        starting = subprocess.Popen(
            [sys.executable, "-m", "rung.cli", "up", "--port", "0", "--slots", str(self.slots)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | self._environment,
        )
        time.sleep(self._chance.uniform(0.5, 5.0))
        starting.kill()
        starting.wait()
        self.up()

    def start_again(self) -> None:
        """Stop it, and start it again."""
        self.rung("down")
        self.up()

    def upgrade(self, then: Callable[[], None]) -> None:
        """Install another release, of which what starts next is."""
        self.upgrades.upgrade()
        then()


@pytest.fixture
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outliving]:
    """Give an installation, of which nothing is left afterwards; trials wait for it so long."""
    installation = Outliving(tmp_path, getattr(request, "param", UNATTENDED_S))
    installation.up()
    yield installation
    installation.record.close()
    installation.rung("down", "--kill")
    wait_for(lambda: not installation.processes(), "no process is left")


@pytest.mark.timeout(SECONDS + 600)
def test_trainings_outlive_rung(installation: Outliving) -> None:
    """No trial restarts, no step is repeated, no report is lost or doubled."""
    trainings = installation.trainings
    trainings.train("plain.py")
    trainings.train("ddp.py", slots=2)
    trainings.train("with_keras.py")
    faults: dict[str, Callable[[], None]] = {
        "kill the agent": installation.kill_agent,
        "kill rung up": lambda: installation.kill_all(agent=False),
        "kill rung up and its next start": installation.kill_a_start,
        "kill both": lambda: installation.kill_all(agent=True),
        "stop and start": installation.start_again,
        "upgrade the agent": lambda: installation.upgrade(installation.kill_agent),
        "upgrade both": lambda: installation.upgrade(installation.start_again),
    }
    disturb(trainings, faults, installation.record)


def _restored(installation: Outliving, experiment: str) -> int:
    """Return the step that a second run of a trial began at, once it trains."""
    record = installation.record
    wait_for(lambda: len(record.of(TrialStarted, experiment)) == 2, "the trial starts again")
    begun = wait_for(lambda: record.of(TrialRestored, experiment), "it reads its checkpoint")
    return int(begun[0].steps_completed)


def test_a_killed_fork_server_falls_back_to_the_checkpoint(installation: Outliving) -> None:
    """The trial starts again, which is no restart that counts, and the agent joins once more."""
    experiment = installation.trainings.train("plain.py")
    wait_for(lambda: len(installation.trainings.trained(experiment)) > 120, "it trains")
    agent = installation.agent
    assert agent is not None
    for server in agent.children():
        server.kill()
    assert _restored(installation, experiment) >= 50
    installation.trainings.stop()
    assert len(installation.record.of(AgentJoined)) == 2


def test_a_dead_machine_falls_back_to_the_checkpoint(installation: Outliving) -> None:
    """Where nothing outlives it, the next `rung up` trains on from the checkpoint."""
    experiment = installation.trainings.train("ddp.py", slots=2)
    wait_for(lambda: len(installation.trainings.trained(experiment)) > 220, "it trains")
    everything = [installation.server_process.pid, *installation.processes()]
    if (agent := installation.agent) is not None:
        everything.append(agent.pid)
    for pid in everything:
        psutil.Process(pid).suspend()  # so that none of them notices
    for pid in everything:
        psutil.Process(pid).kill()
    wait_for(lambda: not installation.processes(), "all are gone")
    installation.up()
    assert _restored(installation, experiment) >= 100
    installation.trainings.stop()


def test_rung_down_says_what_goes_on(installation: Outliving) -> None:
    """`rung down` names the trials that go on; with --kill none does."""
    installation.trainings.train("plain.py")
    installation.trainings.go_on()
    said = installation.rung("down").stdout
    assert "1 trial trains on for 10 min at most" in said
    assert f"rung down --kill --data {installation.folder}" in said
    assert installation.processes()
    installation.rung("down", "--kill")
    assert not installation.processes()


@pytest.mark.parametrize("installation", [15.0], indirect=True)
def test_a_trial_without_an_agent_ends(installation: Outliving) -> None:
    """After the set time trials leave by themselves, and no process is left.

    The next `rung up` has them start from the checkpoint that they left with.
    """
    experiment = installation.trainings.train("plain.py")
    installation.trainings.go_on()
    installation.rung("down")
    assert installation.processes()
    wait_for(lambda: not installation.processes(), "no process is left")
    left_at, _ = installation.trainings.trained(experiment)[-1]
    assert left_at > max(installation.trainings.reported(experiment))
    installation.up()
    assert _restored(installation, experiment) == left_at
