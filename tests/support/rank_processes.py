"""The ranks of a trial, for tests that kill one of them by its number."""

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from rung.agent.forkserver.orphans import MARKER
from support.processes import WHO, process_of
from support.user import User, wait_for

_ENTRY: Final = "begin.py"
_BEGIN: Final = """\
import os, pathlib
pathlib.Path({folder!r}, os.environ["RUNG_RANK"]).write_text({who})
"""
ENTRYPOINT: Final = f"python3 {_ENTRY}"
_SHARED: Final = Path(__file__).parent / "trials" / "shared.py"
_RUN_SHARED: Final = f"import runpy\nrunpy.run_path({_SHARED.name!r}, run_name='__main__')\n"


class Ranks:
    """The ranks of whatever trial runs the code that was prepared here."""

    def __init__(self, folder: Path, home: Path) -> None:
        """Know where to look.

        Args:
            folder: of this object's own, made if need be.
            home: below which all agents have their folders: no process elsewhere is killed.
        """
        self._pids: Final = folder / "pids"
        self._pids.mkdir(parents=True)
        self.hold: Final = folder / "hold"
        """While this file is there, whoever was told of it waits short of its last steps."""
        self.hold.touch()
        self._home: Final = home
        self._killed: Final = set[int]()

    def shared(self, folder: Path) -> Path:
        """Make the code of a trial that trains by DDP."""
        folder.mkdir()
        shutil.copy(_SHARED, folder)
        return self.prepare(folder, _RUN_SHARED)

    def prepare(self, code: Path, body: str) -> Path:
        """Have each rank write down which process it is, and then run something.

        Args:
            code: the trial's folder; it gains a file, which `ENTRYPOINT` runs.
            body: Python that trains.
        """
        (code / _ENTRY).write_text(_BEGIN.format(folder=str(self._pids), who=WHO) + body)
        return code

    def held(self) -> bool:
        """Whether training has come as far as it may."""
        return self.hold.with_suffix(".held").exists()

    def kill(self, rank: int) -> None:
        """Kill a rank with SIGKILL, once it runs if it does not yet."""
        wait_for(lambda: self._kill(rank), f"rank {rank} was killed")

    def _kill(self, rank: int) -> bool:
        found = self._process(rank)
        if found is None:
            return False
        try:
            found.kill()
        except psutil.NoSuchProcess:
            return False
        self._killed.add(found.pid)
        return True

    def _process(self, rank: int) -> psutil.Process | None:
        try:
            number = process_of((self._pids / str(rank)).read_text())
            if number is None:
                return None
            found = psutil.Process(number)
            ours = Path(found.environ()[MARKER]).is_relative_to(self._home)
        except (OSError, KeyError, psutil.Error):
            return None
        return found if ours and found.pid not in self._killed else None


def experiment(name: str, **data: Any) -> dict[str, Any]:
    """Return one DDP trial on two slots, with dropout, validated at every step."""
    return {
        "name": name,
        "entrypoint": ENTRYPOINT,
        "hyperparameters": {"global_batch_size": 8},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 40}},
        "resources": {"slots_per_trial": 2},
        "reproducibility": {"experiment_seed": 7},
        "min_validation_period": {"batches": 1},
        "min_checkpoint_period": {"batches": 2},
        "scheduling_unit": 1,
        "data": {"noise": True, **data},
        "max_restarts": 100,
    }


def storm(
    user: User,
    found: Ranks,
    experiment: str,
    faults: Sequence[Callable[[], None]],
    chance: random.Random,
) -> None:
    """Inflict faults in a random order, up to two validations apart, and let training end then.

    With none in between, a fault meets ranks that are still looking for each other.
    """
    order = list(faults)
    chance.shuffle(order)
    for fault in order:
        go_on(user, found, experiment, chance.randint(0, 2))
        fault()
    assert not user.get(f"/experiments/{experiment}")["ended_at"], "it ended under the faults"
    found.hold.unlink()


def go_on(user: User, found: Ranks, experiment: str, more: int) -> None:
    """Wait until training brought so many validations more, or has come as far as it may."""
    wanted = user.validations(experiment) + more
    wait_for(lambda: found.held() or user.validations(experiment) >= wanted, "training goes on")


def outcome(user: User, experiment: str) -> dict[str, Any]:
    """Return all that must be as if nothing had happened, once an experiment has ended.

    Without the one file of a checkpoint that names the trial.
    """
    result = user.result(experiment)
    result["content"] = [file for file in result["content"] if file[0] != "trainer.json"]
    return result


def audited(user: User, *experiments: str) -> None:
    """Check that the audit of each experiment finds nothing."""
    for each in experiments:
        user.rung("audit", each)
