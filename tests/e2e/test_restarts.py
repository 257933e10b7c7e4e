"""A server that is stopped in good order and started again, under the eyes of those who wait."""

import os
import subprocess
import sys

import pytest

from support.installation import Installation
from support.user import config

LONG = {"name": "random", "max_trials": 1, "max_length": {"batches": 1_000_000}}
_LOOKED_S = 6.0
"""After so long who waits has looked again, even if nothing was heard."""
_SOON_S = 20.0
"""Less than what an absence of the server would cost if whoever waits slept in proportion."""


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_who_waits_for_an_experiment_waits_across_a_restart(installation: Installation) -> None:
    """While no server runs, its address is not known either; the exit code is the experiment's."""
    experiment = installation.submit(config("long", LONG))
    installation.rung("pause", experiment)
    with subprocess.Popen(
        [sys.executable, "-m", "rung.cli", "wait", experiment],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"RUNG_DATA": str(installation.folder)},
    ) as waiting:
        assert waiting.stderr is not None
        assert experiment in waiting.stderr.readline().decode()
        installation.down()
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(_LOOKED_S)
        installation.up()
        installation.rung("kill", experiment)
        _, said = waiting.communicate(timeout=_SOON_S)
    assert waiting.returncode == 5, said.decode()
